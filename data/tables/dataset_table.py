"""The rows of one split of a data set of Hugging Face's `datasets`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import DataError
from ..sample_set import digest_contents
from .table import Table


class DatasetTable(Table):
    """The rows of one split."""

    def __init__(self, path: Path, rows: Any, files: Sequence[Path]) -> None:
        self.path, self.columns = path, tuple(rows.column_names)
        self._rows, self._files = rows, files

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> Sequence[Any]:
        column: Sequence[Any] = self._rows[name]
        return column

    def where(self, row: int) -> str:
        return f"{self.path.name} row {row}"

    def digest(self) -> str:
        return digest_contents(self._files)

    def class_names(self, name: str) -> Sequence[str]:
        feature = self._rows.features[name]
        feature = getattr(feature, "feature", feature)  # of a list
        return tuple(getattr(feature, "names", None) or ())

    def media(self, name: str) -> str:
        """Return "Image" or "Audio" for a column of such files; an empty text for another."""
        kind = type(self._rows.features[name]).__name__
        return kind if kind in ("Image", "Audio") else ""

    def file(self, name: str, row: int) -> Path | io.BytesIO:
        """Return the file of a row, or its content.

        Raises:
            DataError: If there is neither.
        """
        value = self._rows[row][name] or {}
        if value.get("bytes"):
            return io.BytesIO(value["bytes"])
        if value.get("path"):
            return Path(value["path"])
        raise DataError(f"{self.where(row)}: column {name} holds no file", sample=row)
