"""What a run of one recipe says of each of its cells."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...bench.results.sweep_results import CellAccuracy, CellLatency, CellResult, CellSpeedup
from ...errors import QCompileError
from ...files import side_files
from .cells import Cell, Member

if TYPE_CHECKING:
    from ...bench.results.results import Results
    from ...bench.results.row import Row
    from ..run import RunReport


def without_run(cell: Cell, state: str, reason: str) -> CellResult:
    """Return what became of a cell that no run reached: "failed" or "impossible"."""
    return CellResult(
        name=cell.name, model=cell.model, shape=cell.shape, target=cell.target, precision=cell.precision,
        gpu=cell.gpu, state="failed" if state == "failed" else "impossible", reason=reason,
    )  # fmt: skip


def sentence(error: Exception) -> str:
    """Return what an error says in one line."""
    if not isinstance(error, QCompileError):
        return f"unexpected {type(error).__name__}: {error}"
    return f"{error.message}; {error.hint}" if error.hint else error.message


def cells_of(member: Member, report: RunReport, folder: Path) -> Iterator[CellResult]:
    """Yield what became of the cells of a recipe that was run.

    Args:
        member: What it was made of.
        report: What the run says.
        folder: Of the sweep: paths are relative to it.
    """
    for cell in member.cells:
        if cell.why_not:
            yield without_run(cell, "impossible", cell.why_not)
        elif cell.artifact in report.failures:
            yield without_run(cell, "failed", sentence(report.failures[cell.artifact]))
        else:
            yield _built(cell, report, folder)


def _built(cell: Cell, report: RunReport, folder: Path) -> CellResult:
    path = report.artifacts[cell.artifact]
    row = _row(report.results, cell.artifact)
    failed = row is not None and row.status != "measured"
    settings = report.results.settings if report.results else {}
    measured = row is not None and not failed
    return CellResult(
        name=cell.name,
        model=cell.model,
        shape=cell.shape,
        target=cell.target,
        precision=cell.precision,
        gpu=cell.gpu,
        state="failed" if failed else "done",
        reason=f"not measured: {row.reason}" if row is not None and failed else "",
        artifact=path.relative_to(folder).as_posix(),
        digest=report.digests[cell.artifact],
        size_bytes=_size(path),
        batch_size=settings.get("batch_size") if measured else None,
        inputs=dict(settings.get("inputs") or {}) if measured else {},
        measurement=(path.parent / "results.json").relative_to(folder).as_posix() if measured else "",
        latency=_latency(row) if row is not None and measured else None,
        speedup=_speedup(row, report.results) if row is not None and measured else None,
        accuracy=_accuracy(row) if row is not None and measured else None,
        built_on=report.where.get(f"build-{cell.artifact}", ""),
        measured_on=_benched_on(report) if measured else "",
    )


def _benched_on(report: RunReport) -> str:
    return ", ".join(sorted({where for stage, where in report.where.items() if stage.startswith("bench")}))


def _row(results: Results | None, name: str) -> Row | None:
    return next((row for row in results.rows if row.name == name), None) if results else None


def _latency(row: Row) -> CellLatency | None:
    """The median over all calls, and the interval of the level of its processes."""
    if row.latency is None:
        return None
    low, high = _level_ends(row)
    return CellLatency(
        median_ms=row.latency.median_ms, low_ms=low, high_ms=high, p99_ms=row.latency.p99_ms or None
    )


def _level_ends(row: Row) -> tuple[float | None, float | None]:
    from ...bench.statistics.launches import half_width, level_of
    from ...bench.statistics.speedup import CONFIDENCE, logarithms

    if not row.round_medians_ms:
        return None, None
    level = level_of(logarithms(row.launches_ms))
    half = half_width([level], CONFIDENCE)
    return math.exp(level.mean - half), math.exp(level.mean + half)


def _speedup(row: Row, results: Results | None) -> CellSpeedup | None:
    if row.speedup is None or results is None:
        return None
    one = row.speedup
    return CellSpeedup(
        baseline=results.baseline, value=one.value, low=one.low, high=one.high, verdict=one.verdict
    )


def _accuracy(row: Row) -> CellAccuracy | None:
    one = row.accuracy
    if one is None or not math.isfinite(one.value):
        return None
    drop = one.drop
    return CellAccuracy(
        metric=one.metric,
        value=one.value,
        drop=drop.value if drop else None,
        drop_low=drop.low if drop else None,
        drop_high=drop.high if drop else None,
        unit=one.unit,
    )


def _size(path: Path) -> int | None:
    """Bytes of an artifact with its side files; None where it is gone."""
    try:
        return sum(one.stat().st_size for one in (path, *side_files(path)))
    except OSError:
        return None
