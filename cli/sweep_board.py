"""The live table of a sweep, and its cells as lines and rows."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..figures import DASH, bytes_text, figure
from ..plain_text import plain
from .tables import add_row, make_table

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench.results.sweep_results import CellResult
    from ..pipeline.sweep.cells import Member

SHOWN = 60
"""Most cells of a table; the report shows all."""
_COLUMNS = ("cell", "state", "latency ms", "speed-up", "size", "drop")
_AROUND = 6
"""Lines that a terminal needs beside the rows."""


class Board:
    """What a sweep is at: the cells in work, the last ones that failed, the last ones that are done.

    It holds no more than a screen shows, however many cells there are.
    """

    def __init__(self) -> None:
        self.planned, self.counts, self._began_s = 0, dict[str, int](), time.monotonic()
        self._running: dict[str, tuple[int, str]] = {}
        self._failed: deque[CellResult] = deque(maxlen=SHOWN)
        self._done: deque[CellResult] = deque(maxlen=SHOWN)
        self._lock = threading.Lock()

    def began(self, member: Member) -> None:
        """A model with a shape is taken up."""
        with self._lock:
            self._running[member.name] = len(member.cells), "begins"

    def progress(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        """This is the `progress` of the sweep: "MEMBER: STAGE: what it does"."""
        name, _, step = text.partition(": ")
        count = f" {done}" + (f"/{total}" if total else "") if done else ""
        with self._lock:
            if name in self._running:
                self._running[name] = self._running[name][0], f"{step}{count}"

    def finished(self, cell: CellResult, *, changed: bool) -> None:
        """A cell is over."""
        state = "unchanged" if cell.state == "done" and not changed else cell.state
        with self._lock:
            self.counts[state] = self.counts.get(state, 0) + 1
            (self._done if cell.state == "done" else self._failed).append(cell)

    def left(self, member: Member) -> None:
        """All cells of a model with a shape are over."""
        with self._lock:
            self._running.pop(member.name, None)

    def render(self) -> Table:
        """Return the table as it is now, no higher than the terminal."""
        room = max(shutil.get_terminal_size().lines - _AROUND, 4)
        with self._lock:
            table = make_table(self._title(), *_COLUMNS)
            running = list(self._running.items())[: max(room // 2, 1)]
            room -= len(running)
            failed = list(self._failed)[-max(room // 3, 1) :]
            done = list(self._done)[-max(room - len(failed), 1) :]
        for cell in (*done, *failed):
            add_row(table, cell.name, *cell_cells(cell))
        for name, (cells, step) in running:
            add_row(table, f"{name}-*", f"{cells} cells: {step}"[:48], DASH, DASH, DASH, DASH)
        return table

    def _title(self) -> str:
        over = sum(self.counts.values())
        parts = [f"{count} {state}" for state, count in sorted(self.counts.items())]
        return f"{over} of {self.planned} cells{', ' if parts else ''}{', '.join(parts)}  {self._age()}"

    def _age(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        return f"{minutes}:{seconds:02}"


def cells_table(cells: Sequence[CellResult]) -> Any:
    """Return the table of a sweep; of a large one, the cells that are not done."""
    shown = cells if len(cells) <= SHOWN else [cell for cell in cells if cell.state != "done"][:SHOWN]
    more = len(cells) - len(shown)
    table = make_table(f"{more} more cells are in the report" if more else "", *_COLUMNS)
    for cell in shown:
        add_row(table, cell.name, *cell_cells(cell))
    return table


def cell_cells(cell: CellResult) -> list[str]:
    """Return the row of a cell without its name."""
    state = cell.state if cell.state == "done" else f"{cell.state}: {cell.reason}"
    return [state, _latency(cell), cell.speedup_words, bytes_text(cell.size_bytes), cell.drop_words]


def cell_line(cell: CellResult) -> str:
    """Return a cell as one line: what it is, or why it is not."""
    head = f"{cell.state:>10}  {plain(cell.name)}"
    if cell.state != "done":
        return f"{head}  {plain(cell.reason)}"
    latency = f"{_latency(cell)} ms" if cell.latency else ""
    parts = [
        latency,
        cell.speedup_words,
        bytes_text(cell.size_bytes),
        cell.built_on and f"on {cell.built_on}",
    ]
    return "  ".join([head, *(part for part in parts if part and part != DASH)])


def _latency(cell: CellResult) -> str:
    return figure(cell.latency.median_ms) if cell.latency else DASH
