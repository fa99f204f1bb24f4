"""The cells that a sweep has finished, kept on the disk, and the results file that is made of them.

A cell is appended to a journal when it is finished; `sweep.json` is written again from the journal now and
then, so that it is whole at any time, and at the end. Memory does not depend on the number of cells, and the
time to write `sweep.json` again is a small share of the time between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

import msgspec

from ...bench.results.sweep_results import RESULTS, CellResult, head, load_sweep, write_results
from ...errors import ArtifactError, MissingFile

JOURNAL = "sweep.journal"
_SHARE = 0.02
"""Of the time, that may be spent on writing `sweep.json` again."""


class Journal:
    """Finished cells of one run of a sweep; any thread may add one.

    Args:
        folder: Of the sweep; `sweep.json` is written to it.
        own: Folder for the journal itself.
        name: Of the recipe.
        planned: Number of cells of the matrix.
    """

    def __init__(self, folder: Path, own: Path, *, name: str, planned: int) -> None:
        self.results, self.path = folder / RESULTS, own / JOURNAL
        self.name, self.planned, self.counts = name, planned, dict[str, int]()
        self._lock = threading.Lock()
        self._file = self.path.open("wb")
        self._next_s = 0.0

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write `sweep.json` of all cells, after an error or Ctrl-C too."""
        with self._lock:
            self._file.close()
            self._write()
        self.path.unlink(missing_ok=True)

    @property
    def count(self) -> int:
        """Number of cells that are finished."""
        return sum(self.counts.values())

    def keep(self, cells: Mapping[str, CellResult]) -> None:
        """Add the cells of an earlier run that this one does not reach."""
        for cell in cells.values():
            self.add(cell)

    def add(self, cell: CellResult) -> None:
        """Add a finished cell."""
        with self._lock:
            self._file.write(msgspec.json.encode(cell) + b"\n")
            self.counts[cell.state] = self.counts.get(cell.state, 0) + 1
            if time.monotonic() >= self._next_s:
                self._file.flush()
                start = time.monotonic()
                self._write()
                now = time.monotonic()
                self._next_s = now + (now - start) / _SHARE

    def _write(self) -> None:
        """Write `sweep.json` of what the journal holds."""
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        finished = self.count >= self.planned
        about = head(self.name, created=created, planned=self.planned, finished=finished)
        write_results(self.results, about, self._lines())

    def _lines(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            for line in file:
                yield line.rstrip(b"\n")


def earlier_cells(folder: Path) -> dict[str, CellResult]:
    """Return the cells of an earlier run by name; nothing where there is none that can be read."""
    try:
        return {cell.name: cell for cell in load_sweep(folder / RESULTS).cells}
    except (ArtifactError, MissingFile):
        return {}
