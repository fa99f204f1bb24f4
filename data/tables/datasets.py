"""Folders of the package `datasets`: saved by `save_to_disk`, or parquet and arrow files; local ones only.

Arrow files are mapped, parquet files are read into memory. Images and recordings are decoded as those of
folders are, not by `datasets`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import DataError, InvalidOption, first_line
from ...progress import quiet
from ..packages import require_package
from ..sample_set import SampleSet
from ..spelling import Spelling
from ..walk import list_files
from .dataset_table import DatasetTable
from .table import require_column, require_rows

_SUFFIXES = (".parquet", ".arrow")
_SPLIT_OF_FILE = re.compile(r"(train|test|validation|valid|val|dev)\b|(.+?)-\d+-of-\d+")


def open_datasets(spelling: Spelling) -> SampleSet:
    """Return the samples of a folder: images, recordings, or texts, as its columns are.

    Raises:
        EngineUnavailable: If `datasets` is missing.
        DataError: If it cannot be read.
        InvalidOption: If it has several splits and none was chosen, or lacks a column.
    """
    table = _load(spelling)
    require_rows(table)
    asked = spelling.query.get("column", "")
    if asked and "," not in asked:
        require_column(table, asked, spelling, key="column")
    named = [asked] if asked and "," not in asked else table.columns
    found = next((name for name in named if table.media(name)), "")
    if not found:
        from ..text.samples import TextSamples

        return TextSamples(table, spelling)
    from .media import AudioRows, ImageRows

    return (ImageRows if table.media(found) == "Image" else AudioRows)(table, found, spelling)


def _load(spelling: Spelling) -> DatasetTable:
    require_package("datasets", "datasets", "reads folders of data sets")
    path, split = Path(spelling.path), spelling.query.get("split", "")
    try:
        with quiet():
            rows, files = _saved(path) if _is_saved(path) else _from_files(path, spelling)
    except (DataError, InvalidOption):
        raise
    except Exception as error:  # pyarrow's and datasets' own types, OSError, KeyError, ...
        raise DataError(f"{path}: cannot be read by datasets ({first_line(error)})", file=path) from error
    if isinstance(rows, dict):
        if len(rows) > 1 and not split:
            raise InvalidOption(
                f"data {spelling.spec!r}: holds {', '.join(rows)}; one of them is required",
                hint=f"add ?split={next(iter(rows))}",
            )
        chosen = split or next(iter(rows))
        if chosen not in rows:
            raise InvalidOption(
                f"data {spelling.spec!r}: split={split}: no such split; found {', '.join(rows)}"
            )
        rows, files = rows[chosen], [one for one in files if one.parent.name == chosen]
    elif split and _is_saved(path):
        raise InvalidOption(f"data {spelling.spec!r}: split={split}: there is one split only")
    return DatasetTable(path, _undecoded(rows), files)


def _is_saved(path: Path) -> bool:
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def _saved(path: Path) -> tuple[Any, list[Path]]:
    import datasets

    files = [path / name for name in list_files(path) if not Path(name).name.startswith("cache-")]
    return datasets.load_from_disk(str(path)), files


def _from_files(path: Path, spelling: Spelling) -> tuple[Any, list[Path]]:
    import datasets
    import pyarrow.parquet  # type: ignore[import-untyped]

    files = [path] if path.is_file() else [path / n for n in list_files(path) if Path(n).suffix in _SUFFIXES]
    files = _of_split(files, path, spelling)
    parts = [
        datasets.Dataset.from_file(str(one))
        if one.suffix == ".arrow"
        else datasets.Dataset(pyarrow.parquet.read_table(one))
        for one in files
    ]
    return datasets.concatenate_datasets(parts), files


def _of_split(files: Sequence[Path], path: Path, spelling: Spelling) -> list[Path]:
    """The files of the chosen split: they begin with its name, or lie in a folder of it."""
    splits: dict[str, list[Path]] = {}
    for file in files:
        match = _SPLIT_OF_FILE.match(file.name)
        inside = file.parent.name if file.parent != path and path.is_dir() else ""
        splits.setdefault(inside or (match[1] or match[2] if match else ""), []).append(file)
    split = spelling.query.get("split", "")
    if (split and split not in splits) or not splits:
        raise InvalidOption(
            f"data {spelling.spec!r}: no parquet or arrow file of split {split or 'any'}; "
            f"found {', '.join(filter(None, splits)) or 'none'}"
        )
    if not split and len(splits) > 1:
        named = sorted(filter(None, splits))
        raise InvalidOption(
            f"data {spelling.spec!r}: holds {', '.join(named)}; one of them is required",
            hint=f"add ?split={named[0]}",
        )
    return splits[split or next(iter(splits))]


def _undecoded(rows: Any) -> Any:
    import datasets

    for name, feature in list(rows.features.items()):
        if isinstance(feature, datasets.Image | datasets.Audio):
            rows = rows.cast_column(name, type(feature)(decode=False))
    return rows
