"""Samples in rows with named columns, and which column is what."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import DataError, InvalidOption
from ..spelling import Spelling

_TEXTS = (
    ("text",), ("sentence",), ("content",), ("tokens",), ("words",), ("premise", "hypothesis"),
    ("sentence1", "sentence2"), ("question1", "question2"), ("question", "sentence"),
)  # fmt: skip
"""Columns of texts by the names that data sets commonly give them; two are a pair."""
_LABELS = ("label", "labels", "target", "ner_tags", "tags", "fine_label", "score")


class Table(ABC):
    """Rows with named columns.

    Attributes:
        path: The file or folder.
        columns: Their names.
    """

    path: Path
    columns: Sequence[str]

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def column(self, name: str) -> Sequence[Any]:
        """Return the values of a column."""

    @abstractmethod
    def where(self, row: int) -> str:
        """Return where a row is, for messages: "reviews.csv line 3"."""

    @abstractmethod
    def digest(self) -> str:
        """Return a digest of the content."""

    def class_names(self, name: str) -> Sequence[str]:
        """Return the names of the classes that the numbers of a column stand for; none where unknown."""
        del name
        return ()


class MemoryTable(Table):
    """A table that is in memory."""

    def __init__(self, path: Path, columns: dict[str, list[Any]], lines: Sequence[int], digest: str) -> None:
        self.path, self.columns = path, tuple(columns)
        self._columns, self._lines, self._digest = columns, lines, digest

    def __len__(self) -> int:
        return len(self._lines)

    def column(self, name: str) -> Sequence[Any]:
        return self._columns[name]

    def where(self, row: int) -> str:
        return f"{self.path.name} line {self._lines[row]}"

    def digest(self) -> str:
        return self._digest


def text_columns(table: Table, spelling: Spelling) -> tuple[str, ...]:
    """Return the column of the texts, or both of a pair: `column=`, or by their common names.

    Raises:
        InvalidOption: If there is no such column, or none with a common name.
    """
    asked = spelling.query.get("column")
    if asked is not None:
        chosen = tuple(asked.split(","))
        if len(chosen) > 2:
            raise InvalidOption(f"data {spelling.spec!r}: column={asked}; one column, or two of a pair")
        for name in chosen:
            require_column(table, name, spelling, key="column")
        return chosen
    for names in _TEXTS:
        if all(name in table.columns for name in names):
            return names
    raise InvalidOption(
        f"data {spelling.spec!r}: no column has a name that texts have; found {', '.join(table.columns)}",
        hint="add ?column=NAME, or column=FIRST,SECOND for pairs",
    )


def label_column(table: Table, spelling: Spelling) -> str:
    """Return the column of the labels: `label=`, or by its common names; empty where there is none.

    Raises:
        InvalidOption: If there is no such column.
    """
    asked = spelling.query.get("label")
    if asked is not None:
        require_column(table, asked, spelling, key="label")
        return asked
    return next((name for name in _LABELS if name in table.columns), "")


def require_column(table: Table, name: str, spelling: Spelling, *, key: str) -> None:
    """Refuse a column that is not there.

    Raises:
        InvalidOption: With the near ones.
    """
    if name in table.columns:
        return
    near = difflib.get_close_matches(name, table.columns, n=1)
    raise InvalidOption(
        f"data {spelling.spec!r}: {key}={name}: no such column; found {', '.join(table.columns)}",
        hint=f"did you mean {key}={near[0]}?" if near else "",
    )


def require_rows(table: Table) -> None:
    """Refuse a table without rows.

    Raises:
        DataError: If it is one.
    """
    if not len(table):
        raise DataError(f"{table.path}: holds no samples; at least one is required", file=table.path)
