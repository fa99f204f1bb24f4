"""List a folder of images and the classes that its subfolders, or a CSV file, give them.

| what lies there                         | labels                                                  |
|-----------------------------------------|---------------------------------------------------------|
| two or more folders with images in them | the folders are classes, numbered as by `class_numbers` |
| images, or one folder of them           | none                                                    |
| any of these, and `labels=FILE.csv`     | a line `file,label` for each image                      |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import DataError, InvalidOption
from ..walk import list_files

_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "testing"),
}
_SPLIT_NAMES = tuple(name for names in _SPLITS.values() for name in names)


@dataclass(frozen=True)
class Listing:
    """The files of one kind in a folder.

    Attributes:
        root: The folder.
        files: Paths relative to it, with `/`, sorted.
        folders: The folder of each file that names its class; empty where there are no classes.
        notes: What was left out.
    """

    root: Path
    files: tuple[str, ...]
    folders: tuple[str, ...]
    notes: tuple[str, ...]


def list_folder(root: Path, suffixes: Collection[str], *, what: str, beside: Collection[str] = ()) -> Listing:
    """List the files with these suffixes, at any depth.

    Args:
        root: The folder.
        suffixes: Lower case, with the dot.
        what: "image" or "recording", for messages.
        beside: Suffixes of files that belong there too and are not told of.

    Raises:
        DataError: If there is none.
    """
    files, others = [], 0
    for name in list_files(root):
        suffix = Path(name).suffix.lower()
        if suffix in suffixes:
            files.append(name)
        else:
            others += suffix not in beside
    if not files:
        raise DataError(
            f"{root}: holds no {what}; at least one file {', '.join(sorted(suffixes))} is required",
            file=root,
        )
    notes = [f"{others} files in {root} are no {what}s, and are left out"] if others else []
    folders = [name.split("/")[0] if "/" in name else "" for name in files]
    named = sorted({folder for folder in folders if folder})
    if len(named) < 2:
        return Listing(root, tuple(files), (), tuple(notes))
    if loose := folders.count(""):
        notes.append(f"{loose} {what}s lie in {root} beside the folders of classes, and are left out")
    kept = [(name, folder) for name, folder in zip(files, folders, strict=True) if folder]
    return Listing(root, tuple(name for name, _ in kept), tuple(folder for _, folder in kept), tuple(notes))


def split_folder(root: Path, split: str, spec: str) -> Path:
    """Return the folder of a split.

    Raises:
        InvalidOption: If there is no such folder, or if the folders are splits and none was chosen.
    """
    present = sorted(one.name for one in root.iterdir() if one.is_dir())
    if not split:
        if len(present) > 1 and all(name.lower() in _SPLIT_NAMES for name in present):
            raise InvalidOption(
                f"data {spec!r}: holds {', '.join(present)}; one of them is required",
                hint=f"add ?split={present[0]}, or name the folder {root / present[0]}",
            )
        return root
    same = next((names for names in _SPLITS.values() if split in names), (split,))
    for name in (split, *same):
        if name in present:
            return root / name
    raise InvalidOption(
        f"data {spec!r}: split={split}: no folder of this name in {root}; "
        f"found {', '.join(present[:8]) or 'none'}"
    )


def class_numbers(
    folders: Sequence[str], classes: Sequence[str], *, what: str = "folders"
) -> tuple[dict[str, int], list[str]]:
    """Return the number of each class's name, and what to tell of it.

    1. Where the model's classes are known and hold every name, in any case and with `_` for a space, or as
       one of the synonyms between commas, they number the names.
    2. Names that are all whole numbers are the numbers themselves.
    3. Else names are numbered in sorted order, as torchvision's ImageFolder does; told where the model has
       another number of classes.
    """
    names = sorted(set(folders))
    known = _numbers_by_synonym(classes)
    if known and all(_plain(name) in known for name in names):
        return {name: known[_plain(name)] for name in names}, []
    if all(name.isascii() and name.isdigit() and len(name) < 10 for name in names):
        return {name: int(name) for name in names}, []
    notes = []
    if classes:
        strangers = [name for name in names if _plain(name) not in known]
        notes.append(
            f"{what} are numbered in sorted order: {len(strangers)} of {len(names)} names, as "
            f"{strangers[0]!r}, are none of the model's {len(classes)} classes, as {classes[0]!r}"
        )
    return {name: number for number, name in enumerate(names)}, notes


def _numbers_by_synonym(classes: Sequence[str]) -> dict[str, int]:
    """Every name of a class to its number; a name of several classes is of none."""
    numbers: dict[str, set[int]] = {}
    for number, text in enumerate(classes):
        for name in {_plain(text), *(_plain(part) for part in text.split(","))}:
            numbers.setdefault(name, set()).add(number)
    return {name: next(iter(found)) for name, found in numbers.items() if len(found) == 1}


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())
