"""Read text files, JSON lines and CSV files as tables.

A table is held in memory: what is larger belongs into a folder of `datasets`, which is mapped.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import DataError, MissingFile
from ...files import digest_files, nearest_name
from ..spelling import Spelling
from .table import MemoryTable, Table, require_rows

_SUFFIXES = {"text": (".txt",), "jsonl": (".jsonl", ".ndjson"), "csv": (".csv", ".tsv")}


def read_table(spelling: Spelling) -> Table:
    """Read the file of a spelling of kind `text`, `jsonl` or `csv`; of a folder, the file named by `split=`.

    Raises:
        MissingFile: If there is no such file.
        DataError: If it is damaged, is no UTF-8, or holds nothing.
    """
    path = _file(Path(spelling.path), spelling)
    readers: dict[str, Callable[[Path], Table]] = {"text": _lines, "jsonl": _json_lines, "csv": _csv}
    try:
        table = readers[spelling.kind](path)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is no UTF-8 at byte {error.start}", hint="convert it to UTF-8", file=path
        ) from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error})", file=path) from error
    require_rows(table)
    return table


def _file(path: Path, spelling: Spelling) -> Path:
    split = spelling.query.get("split", "")
    if not path.is_dir():
        if split:
            raise DataError(f"data {spelling.spec!r}: split={split}: a file has no splits")
        return path
    for suffix in _SUFFIXES[spelling.kind]:
        if split and (path / f"{split}{suffix}").is_file():
            return path / f"{split}{suffix}"
    file = path / f"{split or 'SPLIT'}{_SUFFIXES[spelling.kind][0]}"
    raise MissingFile(
        f"data {spelling.spec!r}: a folder of {spelling.kind} holds a file for each split, and is read with "
        f"?split=NAME; {file} does not exist",
        hint=nearest_name(file),
        file=file,
    )


def _lines(path: Path) -> Table:
    texts, numbers = [], []
    with path.open(encoding="utf-8-sig", newline=None) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                texts.append(line.rstrip("\n"))
                numbers.append(number)
    return MemoryTable(path, {"text": texts}, numbers, digest_files([path]))


def _json_lines(path: Path) -> Table:
    rows: list[dict[str, Any]] = []
    numbers = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path} line {number}: is no JSON ({error}); an object per line is required",
                    hint="correct or remove the line",
                    file=path,
                ) from error
            if not isinstance(row, dict):
                raise DataError(f"{path} line {number}: an object is required", file=path)
            rows.append(row)
            numbers.append(number)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return MemoryTable(path, columns, numbers, digest_files([path]))


def _csv(path: Path) -> Table:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows, numbers = [], []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        head = next(reader, [])
        for row in reader:
            if not any(row):
                continue
            if len(row) != len(head):
                raise DataError(
                    f"{path} line {reader.line_num}: has {len(row)} columns; its first line has {len(head)}",
                    hint="correct or remove the line; a text with commas needs quotes",
                    file=path,
                )
            rows.append(row)
            numbers.append(reader.line_num)
    columns = {name.strip(): [row[place] for row in rows] for place, name in enumerate(head)}
    return MemoryTable(path, columns, numbers, digest_files([path]))
