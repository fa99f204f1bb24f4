"""The journal of a sweep: whole at any time, without writing everything again for each cell."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import pytest

from qcompile.bench.results.sweep_results import CellResult, load_sweep
from qcompile.pipeline.sweep import journal as journals
from qcompile.pipeline.sweep.journal import JOURNAL, Journal, earlier_cells


def cell(number: int) -> CellResult:
    return CellResult(
        name=f"m-{number}", model="m", target="openvino", precision="fp32", state="failed", reason="x" * 50
    )


def test_the_results_are_whole_after_every_cell_and_at_the_end(tmp_path: Path) -> None:
    with Journal(tmp_path, tmp_path, name="m", planned=3) as journal:
        journal.add(cell(0))
        first = load_sweep(tmp_path / "sweep.json")
        assert (len(first.cells), first.planned, first.finished) == (1, 3, False)
        journal.add(cell(1))
        journal.add(cell(2))
        assert journal.count == 3
    last = load_sweep(tmp_path / "sweep.json")
    assert (last.cells, last.finished) == (tuple(map(cell, range(3))), True)
    assert earlier_cells(tmp_path) == {f"m-{number}": cell(number) for number in range(3)}
    assert not (tmp_path / JOURNAL).exists()


def test_the_results_are_written_after_an_error_too(tmp_path: Path) -> None:
    def ended_by_hand() -> None:
        with Journal(tmp_path, tmp_path, name="m", planned=3) as journal:
            for number in range(2):
                journal.add(cell(number))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ended_by_hand()
    assert [one.name for one in load_sweep(tmp_path / "sweep.json").cells] == ["m-0", "m-1"]
    (tmp_path / "sweep.json").write_text("{")
    assert earlier_cells(tmp_path) == {}
    assert earlier_cells(tmp_path / "nowhere") == {}


def test_ten_thousand_cells_are_written_again_a_few_times_and_none_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock where a cell takes a second, and writing n of them n thousandths."""
    now, written = [0.0], []
    write = journals.write_results

    def counted(path: Path, head: dict[str, object], cells: itertools.chain[bytes]) -> None:
        size = sum(1 for _ in cells)
        written.append(size)
        now[0] += size / 1000
        write(path, head, [])

    monkeypatch.setattr(journals.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(journals, "write_results", counted)
    tracemalloc.start()
    try:
        with Journal(tmp_path, tmp_path, name="m", planned=10_000) as journal:
            for number in range(10_000):
                now[0] += 1.0
                journal.add(cell(number))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written[-1] == 10_000
    assert sum(written) < 25 * 10_000  # every cell 25 times at most, in place of 5,000 times
    assert peak < 1_000_000
