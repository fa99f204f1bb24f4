"""Read `labels=FILE.csv`: a line `file,label` for each sample."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..files import digest_files, require_file


@dataclass(frozen=True)
class LabelTable:
    """The label of each file, as text, in the order of the files.

    Attributes:
        labels: One per file.
        digest: Of the CSV file.
    """

    labels: tuple[str, ...]
    digest: str


def read_label_table(path: Path, files: Sequence[str], root: Path) -> LabelTable:
    """Read the labels of files.

    The first column is a file, relative to the folder, with or without its suffix, or its name alone where no
    other file has it; the second is the label. A first line that names no file of the folder is a head. Lines
    of other files are ignored.

    Raises:
        MissingFile: If there is no such table.
        DataError: If a file has no label, or the table is none.
    """
    require_file(path, what="labels")
    rows: dict[str, str] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","):
                if len(row) >= 2:
                    rows[row[0].strip().removeprefix("./")] = row[1].strip()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})", file=path) from error
    stems = Counter(Path(name).stem for name in files)
    shared = {stem for stem, count in stems.items() if count > 1}
    labels = []
    for name in files:
        found = next((rows[key] for key in _spellings(name, shared) if key in rows), None)
        if found is None:
            raise DataError(
                f"{path}: has no label for {name} of {root}; a line `file,label` is required for each file",
                hint="add the line, or move the file away",
                file=path,
            )
        labels.append(found)
    return LabelTable(tuple(labels), digest_files([path]))


def _spellings(name: str, shared: Collection[str]) -> list[str]:
    """How a table may name a file; by its name alone only where no other file has it."""
    path = Path(name)
    alone = [] if path.stem in shared else [path.name, path.stem]
    return [name, str(path.with_suffix("")), *alone]
