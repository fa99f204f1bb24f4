"""Find the kind of DATA from what lies at its path, and open it."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InvalidOption
from ..files import require_file
from ..files.storage import reading
from .sample_set import SampleSet
from .spelling import KEYS, Spelling
from .walk import list_files

_BY_SUFFIX = {
    ".npz": "npz",
    ".npy": "npy",
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "polygraphy",
    ".parquet": "datasets",
    ".arrow": "datasets",
}
_OF_DATASETS = ("dataset_info.json", "dataset_dict.json", "state.json")
_LOOKED_AT = 10_000
"""Files that are looked at to tell the kind of a folder."""
_ARRAYS = (".npz", ".npy")


def find_kind(spelling: Spelling) -> str:
    """Return the kind of what lies at a spelling's path.

    Raises:
        MissingFile: If nothing does, or a pipe or device.
        StorageError: If it cannot be read.
        InvalidOption: If it is of no kind, or of several.
    """
    path = Path(spelling.path)
    with reading(path):
        is_folder = path.is_dir()
        if is_folder:
            os.listdir(path)
    if not is_folder:
        require_file(path, what="data")
    if spelling.kind:
        return spelling.kind
    kind = _of_folder(path, spelling.spec) if path.is_dir() else _of_file(path)
    if kind:
        return kind
    raise InvalidOption(
        f"data {spelling.spec!r} is of no known kind; KIND:PATH with one of {', '.join(KEYS)}, or "
        "file.py:function is required"
    )


def _of_file(path: Path) -> str:
    from .cifar import is_cifar

    return _BY_SUFFIX.get(path.suffix.lower(), "") or is_cifar(path)


def _of_folder(path: Path, spec: str) -> str:
    from .audio.decode import SUFFIXES as RECORDINGS
    from .cifar import is_cifar
    from .images.decode import SUFFIXES as IMAGES

    present = sorted(one.name for one in path.iterdir())
    if any(name in _OF_DATASETS for name in present):
        return "datasets"
    if any(Path(name).suffix in _ARRAYS for name in present):
        return "arrays"
    if cifar := is_cifar(path):
        return cifar
    kinds = {"images": IMAGES, "audio": RECORDINGS, "datasets": (".parquet", ".arrow")}
    found: dict[str, str] = {}
    for count, name in enumerate(list_files(path)):
        suffix = Path(name).suffix.lower()
        for kind, suffixes in kinds.items():
            if suffix in suffixes:
                found.setdefault(kind, name)
        if count > _LOOKED_AT:
            break
    if len(found) > 1:
        shown = ", ".join(f"{kind} ({name})" for kind, name in found.items())
        raise InvalidOption(
            f"data {spec!r} holds {shown}; one kind is required",
            hint=f"write {next(iter(found))}:{spec}",
        )
    if not found and not present:
        return "arrays"  # whose reader says that it is empty
    return next(iter(found), "arrays" if not found and not _has_folders(path) else "")


def _has_folders(path: Path) -> bool:
    return any(one.is_dir() for one in path.iterdir())


def open_set(spelling: Spelling) -> SampleSet:
    """Return the samples of a spelling whose kind is known and whose paths are absolute.

    Raises:
        QCompileError: If what lies there is not of the kind.
    """
    if spelling.kind == "images":
        from .images.kinds import open_images

        return open_images(spelling)
    if spelling.kind in ("cifar10", "cifar100"):
        from .cifar import CifarFiles

        return CifarFiles(spelling)
    if spelling.kind == "audio":
        from .audio.folder import AudioFolder

        return AudioFolder(spelling)
    if spelling.kind == "datasets":
        from .tables.datasets import open_datasets

        return open_datasets(spelling)
    from .tables.files import read_table
    from .text.samples import TextSamples

    return TextSamples(read_table(spelling), spelling)
