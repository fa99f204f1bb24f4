"""List the files of a folder, in an order that does not depend on the file system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def list_files(root: Path) -> Iterator[str]:
    """Yield the paths of all files below a folder, relative to it, with `/`, sorted folder by folder.

    Names that begin with a dot are left out. Links are followed, but not into a folder that they lie in.
    """
    yield from _below(root, "", (os.path.realpath(root),))


def _below(folder: Path, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
    with os.scandir(folder) as entries:
        found = sorted(
            (entry for entry in entries if not entry.name.startswith(".")), key=lambda one: one.name
        )
    for entry in found:
        if entry.is_file():
            yield prefix + entry.name
        elif entry.is_dir():
            real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            if real not in above:
                yield from _below(folder / entry.name, f"{prefix}{entry.name}/", (*above, real))
