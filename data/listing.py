"""List the files that the reading of DATA opens, without opening them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..model.preprocessing_names import preprocessing_files
from ..model.source import parse_source, source_files
from .kinds import find_kind
from .spelling import FILE_KEYS, FUNCTION, Spelling, parse_spelling
from .walk import list_files

_ARRAYS = (".npy", ".npz")


def data_files(spec: str, base: Path, *, inside: bool = True) -> Iterator[Path]:
    """Yield the files of a spelling, one by one: a folder may hold millions.

    Of a function they are those that its digest is of; it can open others, which `depends` names. Of a folder
    with `split=` only that split's, where it is a folder of its own.

    Args:
        spec: The spelling.
        base: Folder that relative paths start from.
        inside: Whether files of folders are listed, too; without it only what the spelling itself names.

    Raises:
        MissingFile, InvalidOption: If the spelling leads nowhere.
    """
    parsed = parse_spelling(spec)
    if parsed.kind == FUNCTION:
        yield from source_files(parse_source(parsed.path, base=base))
        return
    parsed = parsed.located(base)
    parsed = parsed.with_kind(find_kind(parsed))
    for key, value in parsed.query.items():
        if key in FILE_KEYS:
            yield from _below(Path(value), _image_suffixes()) if inside else [Path(value)]
        elif key == "preprocessing":
            yield from preprocessing_files(value, base=base)
    path = Path(parsed.path)
    if not inside or not path.is_dir():
        yield path
    else:
        yield from _of_folder(parsed, path)


def _of_folder(parsed: Spelling, path: Path) -> Iterator[Path]:
    split = parsed.query.get("split", "")
    if parsed.kind == "images":
        yield from _of_media(parsed, path, split, _image_suffixes())
    elif parsed.kind == "audio":
        from .audio.decode import SUFFIXES

        yield from _of_media(parsed, path, split, (*SUFFIXES, ".txt"))
    elif parsed.kind == "arrays":
        yield from (one for one in sorted(path.iterdir()) if one.suffix in _ARRAYS and one.is_file())
    else:  # datasets, cifar, tables: few files
        yield from _below(path, ())


def _of_media(parsed: Spelling, path: Path, split: str, suffixes: tuple[str, ...]) -> Iterator[Path]:
    from .images.folder import split_folder

    yield from _below(split_folder(path, split, parsed.spec), suffixes)


def _below(path: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """A file, or those of a folder with these suffixes; with none, all of them."""
    if not path.is_dir():
        yield path
        return
    for name in list_files(path):
        if not suffixes or name.lower().endswith(suffixes):
            yield path / name


def _image_suffixes() -> tuple[str, ...]:
    from .images.decode import SUFFIXES

    return tuple(SUFFIXES)
