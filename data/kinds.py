"""Detect the kind of a DATA argument from the files at its path, open the data, and list its files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..core.files import require_file
from ..core.files.storage import translating_read_errors
from ..errors import DataError, InvalidOption
from ..model.sources.load import preprocessing_files
from ..model.sources.source import parse_source, source_files
from ..spec.tensors import TensorInfo
from .arrays import ArraySet
from .images import AnnotatedImages, ImageFolder, MaskedImages
from .readers import FORMATS, IMAGES, METADATA, RECORDINGS, TABLES, SampleSet, list_files, split_folder
from .rows import RowSet, VocabularySet
from .spelling import FILE_KEYS, FUNCTION, KEYS, Spelling, parse_spelling, wrong_spelling

ARRAYS = ("npz", "npy", "arrays", "polygraphy")
_BY_SUFFIX = {".npz": "npz", ".npy": "npy", ".json": "polygraphy"} | {
    suffix: kind for suffix, (kind, _) in FORMATS.items()
}
_SAVED = ("dataset_info.json", "dataset_dict.json", "state.json")
_PICKLES = (".pkl", ".pickle", ".pt", ".pth")
_EXAMINED = 10_000
"""Most files that are examined to detect the kind of a folder."""


def find_kind(spelling: Spelling) -> str:
    """Return the kind of the data at the path of a spelling, the parsed DATA argument KIND:PATH?KEY=VALUE.

    Raises InvalidOption unless exactly one kind matches.
    """
    path = Path(spelling.path)
    with translating_read_errors(path):
        is_folder = path.is_dir()
        names = sorted(os.listdir(path)) if is_folder else [path.name]
    if not is_folder:
        require_file(path, what="data")
    if spelling.kind:
        return spelling.kind
    kind = _kind_of_folder(path, names, spelling.spec) if is_folder else _BY_SUFFIX.get(path.suffix.lower())
    if kind:
        return kind
    if any(name.endswith((*_PICKLES, "batches.meta", "data_batch_1", "test_batch")) for name in names):
        raise DataError(
            f"{path}: holds pickles; unpickling can run code",
            hint="save arrays with numpy.savez, or give a function that reads the pickles",
            file=path,
        )
    raise InvalidOption(
        f"data {spelling.spec!r} is of no known kind; KIND:PATH with one of {', '.join(KEYS)}, or "
        "file.py:function is required"
    )


def _kind_of_folder(path: Path, names: Sequence[str], spec: str) -> str:
    if any(name in _SAVED or name in METADATA for name in names):
        return "datasets"
    if any(name.endswith((".npz", ".npy")) for name in names) or not names:
        return "arrays"  # the reader reports an empty folder
    first: dict[str, str] = {}
    for name in itertools.islice(list_files(path), _EXAMINED):
        for kind, suffixes in (("images", IMAGES), ("audio", RECORDINGS), ("datasets", TABLES)):
            if name.lower().endswith(suffixes):
                first.setdefault(kind, name)
        if name.rpartition("/")[2] in METADATA:
            return "datasets"
    kind = next(iter(first), "")
    if len(first) > 1:
        shown = ", ".join(f"{kind} ({name})" for kind, name in first.items())
        raise InvalidOption(f"data {spec!r} holds {shown}; one kind is required", hint=f"write {kind}:{spec}")
    return kind


def open_set(spelling: Spelling, inputs: Sequence[TensorInfo]) -> SampleSet:
    """Return the samples of a spelling with a known kind and absolute paths."""
    if spelling.kind in ARRAYS:
        return ArraySet(spelling.kind, Path(spelling.path), inputs)
    if spelling.kind != "images":
        return (VocabularySet if spelling.kind == "vocabulary" else RowSet)(spelling)
    if all(key in spelling.query for key in FILE_KEYS):
        raise wrong_spelling(spelling.spec, f"{' and '.join(FILE_KEYS)} exclude each other")
    if "masks" in spelling.query:
        return MaskedImages(spelling)
    return AnnotatedImages(spelling) if "annotations" in spelling.query else ImageFolder(spelling)


def data_files(spec: str, base: Path) -> Iterator[Path]:
    """Yield the files of a spelling one by one, without opening them: a folder may hold millions.

    Relative paths start from `base`. For a function: the files in its digest; `depends` lists others.
    """
    spelling = parse_spelling(spec)
    if spelling.kind == FUNCTION:
        yield from source_files(parse_source(spelling.path, base=base))
        return
    spelling = spelling.located(base)
    spelling = spelling.with_kind(find_kind(spelling))
    for key, value in spelling.query.items():
        if key in FILE_KEYS:
            yield from _list_with_suffixes(Path(value), IMAGES)
        elif key == "preprocessing":
            yield from preprocessing_files(value, base=base)
    path = Path(spelling.path)
    if spelling.kind == "images":
        yield from _list_with_suffixes(split_folder(spelling), IMAGES)
    elif spelling.kind == "arrays":
        yield from (file for file in _list_with_suffixes(path, (".npy", ".npz")) if file.parent == path)
    else:
        yield from _list_with_suffixes(path, ())


def _list_with_suffixes(path: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield `path`, or the files of a folder with these suffixes; all files if `suffixes` is empty."""
    if not path.is_dir():
        yield path
        return
    yield from (path / name for name in list_files(path) if not suffixes or name.lower().endswith(suffixes))
