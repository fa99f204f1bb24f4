"""Where a recipe lies on a worker, and what its files are called to a client, which has no such folders."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import QCompileError
from ..messages import OUTPUT, RECIPE


@dataclass(frozen=True)
class Place:
    """Where a recipe lies on this worker.

    Attributes:
        recipe: The recipe's file.
        files: The folder that holds it and what it reads, deeper or not.
        output: The folder that its stages publish to.
        base: The folder of the client that `files` stands for.
    """

    recipe: Path
    files: Path
    output: Path
    base: str = ""


@contextlib.contextmanager
def naming(place: Place) -> Iterator[None]:
    """Have errors say `OUTPUT` and `RECIPE` in place of folders of this worker; the client has its own."""
    try:
        yield
    except QCompileError as error:
        error.message, error.hint = _named(error.message, place), _named(error.hint, place)
        error.data = {
            name: _named(str(value), place) if isinstance(value, str | Path) else value
            for name, value in error.data.items()
        }
        raise


def name_as_client(results: Path, place: Place, output: str) -> None:
    """Have a file of results name files as they are seen from the recipe's folder.

    Args:
        results: JSON, in which a stage wrote paths, absolute or relative to the working folder.
        place: The folders that they lead to.
        output: The recipe's spelling of the folder that it publishes to.
    """
    folder = place.recipe.parent
    spellings = [
        (str(place.output), output),
        (os.path.relpath(place.output), output),
        (str(folder), ""),
        (str(place.files), os.path.relpath(place.files, folder)),
    ]
    text = results.read_text(encoding="utf-8")
    for here, there in spellings:
        before, after = (json.dumps(one, ensure_ascii=False)[1:-1] for one in (here, there))
        text = text.replace(f"{before}/", f"{after}/" if after else "")
    results.write_text(text, encoding="utf-8")


def _named(text: str, place: Place) -> str:
    folder = place.recipe.parent
    beside = Path(RECIPE, os.path.relpath(place.files, folder))
    text = text.replace(str(place.output), OUTPUT).replace(str(folder), RECIPE)
    return text.replace(str(place.files), str(beside))
