"""List the files of a folder, and the folder of a split."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError, InvalidOption
from .spelling import Spelling

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
RECORDINGS = (".wav", ".flac", ".ogg")
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Labels and texts of the files beside it, as `imagefolder` and `audiofolder` of `datasets` read them."""
TABLES = (".parquet", ".arrow")


def list_files(root: Path) -> Iterator[str]:
    """Yield the paths of all files below a folder, relative to it, with `/`, sorted folder by folder.

    Names that begin with a dot are left out. Links are followed, but not into a folder that they lie in.
    """
    yield from _below(root, "", (os.path.realpath(root),))


def _below(folder: Path, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
    with os.scandir(folder) as scanned:
        entries = sorted(
            (entry for entry in scanned if not entry.name.startswith(".")), key=lambda entry: entry.name
        )
    for entry in entries:
        if entry.is_file():
            yield prefix + entry.name
        elif entry.is_dir():
            real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            if real not in above:
                yield from _below(folder / entry.name, f"{prefix}{entry.name}/", (*above, real))


_BESIDE = (".csv", ".json", ".txt", ".md")


_SPLITS = {
    "train": ("train", "training"), "validation": ("validation", "val", "valid"), "test": ("test", "testing"),
}  # fmt: skip


def list_images(root: Path) -> tuple[list[str], list[str]]:
    """Return the images below a folder, relative to it, and what was left out."""
    files = list(list_files(root))
    names = [name for name in files if name.lower().endswith(IMAGES)]
    if not names:
        raise DataError(
            f"{root}: holds no image; at least one file {', '.join(sorted(IMAGES))} is required", file=root
        )
    others = sum(not name.lower().endswith((*IMAGES, *_BESIDE)) for name in files)
    return names, [f"{others} files in {root} are no images, and are left out"] if others else []


def split_folder(spelling: Spelling) -> Path:
    """Return the folder of the split that a spelling names; its own folder without splits."""
    root, split, spec = Path(spelling.path), spelling.query.get("split", ""), spelling.spec
    present = sorted(path.name for path in root.iterdir() if path.is_dir())
    spellings = {name: names for names in _SPLITS.values() for name in names}
    if not split:
        if len(present) > 1 and all(name.lower() in spellings for name in present):
            raise InvalidOption(
                f"data {spec!r}: holds {', '.join(present)}; one of them is required",
                hint=f"add ?split={present[0]}, or name the folder {root / present[0]}",
            )
        return root
    for name in (split, *spellings.get(split, ())):
        if name in present:
            return root / name
    raise InvalidOption(
        f"data {spec!r}: split={split}: no folder of this name in {root}; "
        f"found {', '.join(present[:8]) or 'none'}"
    )
