"""Folders that lie elsewhere here than on the machine that a recipe is from, as on a worker of a cluster.

An ONNX file names the folder of its model's tokenizer. It names the one of the machine that the recipe is
from, wherever it was exported, so that it is the same file; who reads the tokenizer elsewhere looks for it in
the folder that stands for it there. Processes that are started meanwhile do the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VARIABLE = "QCOMPILE_MOVED"


@contextmanager
def moved(there: str, here: Path) -> Iterator[None]:
    """Have a folder of another machine stand for one of this machine while the block runs.

    Args:
        there: Absolute path on the machine that the recipe is from; empty changes nothing.
        here: The folder that holds the same files.
    """
    before = os.environ.get(_VARIABLE)
    if there:
        os.environ[_VARIABLE] = json.dumps([there, str(here.resolve())])
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before


def path_there(path: Path) -> str:
    """Return a path of this machine as the machine names it that the recipe is from."""
    there, here = _folders()
    return _swapped(str(path), here, there)


def path_here(path: str) -> str:
    """Return what `path_there` was made of; what is not below the folder here stays as it is."""
    there, here = _folders()
    found = _swapped(path, there, here)
    return found if os.path.exists(found) else path


def _folders() -> tuple[str, str]:
    """The folder there, and here; empty where none was moved."""
    there, here = json.loads(os.environ.get(_VARIABLE, '["", ""]'))
    return there, here


def _swapped(path: str, old: str, new: str) -> str:
    if not old:
        return path
    if path == old:
        return new
    inside = path.removeprefix(old.rstrip("/") + "/")
    return path if inside == path else f"{new.rstrip('/')}/{inside}"
