"""The report of a sweep: one HTML file that loads nothing, made from `sweep.json`.

A section for each model: its artifacts by shape, and for each shape, which is one measurement, the trade-off
of accuracy, latency and size. Figures of different measurements stand beside each other, and no verdict
compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..bench.results.row import Accuracy, Interval, Latency, Row
from ..bench.results.sweep_results import CellResult, SweepResults, load_sweep
from ..bench.statistics.speedup import CONFIDENCE, Speedup
from ..figures import (
    DASH,
    bytes_text,
    clean,
    drop_interval,
    figure,
    interval,
    shortened,
    words,
)
from ..files import write_text
from ..version import __version__
from .charts import drops_differ, pareto_chart
from .page import check_page, style, template
from .parts import Cell, Drawn, Section, Table
from .source import FAMILIES, LONGEST_NAME, ReportedArtifact, family_of
from .summary import Fact

_MOST_CHARTS = 24
"""Charts of a page: a reader looks at no more, and each takes a moment to draw."""
_NOTE = (
    "Area is the file's size. Strong: beaten by no other of this measurement in all three. The dashed line "
    "joins the best in latency and the vertical axis."
)


@dataclass(frozen=True)
class SweepSummary:
    """What a reader who reads nothing else should know; `chosen`: a sweep recommends nothing."""

    title: str
    headline: str
    facts: Sequence[Fact]
    reasons: Sequence[str]
    caveats: Sequence[str] = ()
    chosen: None = None


def write_sweep_report(results: str | Path, output: str | Path) -> Path:
    """Write the report of a sweep, atomically.

    Args:
        results: `sweep.json`.
        output: The HTML file.

    Returns:
        The path of the report.

    Raises:
        InvalidOption: If the output is no .html, or a folder.
        MissingFile, ArtifactError: If the results are not there, or not what they should be.
        EngineUnavailable: If matplotlib or Jinja is missing.
    """
    path = Path(output)
    check_page(path)
    swept = msgspec.convert(clean(msgspec.to_builtins(load_sweep(results))), SweepResults)
    write_text(path, render_sweep(swept, name=Path(results).name))
    return path


def render_sweep(swept: SweepResults, *, name: str) -> str:
    """Return the page.

    Args:
        swept: What it shows, with texts that can be shown.
        name: Of the results file.
    """
    every = sweep_sections(swept)
    used = {family_of(cell.precision) for cell in swept.cells}
    machines = sorted({cell.measured_on for cell in swept.cells if cell.measured_on})
    return template("sweep.html").render(
        summary=summarize_sweep(swept),
        sections=[section for section in every if not section.missing],
        left_out=[section for section in every if section.missing],
        families={family: text for family, text in FAMILIES.items() if family in used},
        facts=[f"Measured on {', '.join(machines)}"] if machines else ["Measured where the sweep ran"],
        results=name,
        created=swept.created,
        version=__version__,
        style=style(),
    )


def summarize_sweep(swept: SweepResults) -> SweepSummary:
    """Return the counts of cells, and what may be compared."""
    counts = {
        state: sum(cell.state == state for cell in swept.cells) for state in ("done", "failed", "impossible")
    }
    measurements = {cell.measurement for cell in swept.cells if cell.measurement}
    headline = f"{counts['done']} of {swept.planned} cells are done"
    headline += f", {counts['failed']} failed." if counts["failed"] else "."
    facts = [
        Fact("Cells done", str(counts["done"]), f"of {swept.planned}"),
        Fact("Failed", str(counts["failed"]), f"{counts['impossible']} more are not possible"),
        Fact("Measurements", str(len(measurements)), "each of one model and shape"),
    ]
    reasons = [
        "Artifacts of one model and shape were measured in the same interleaved rounds: speed-ups and "
        "verdicts compare these with each other, and nothing else."
    ]
    caveats = []
    if not swept.finished:
        missing = swept.planned - len(swept.cells)
        caveats.append(
            f"{missing} cells were not reached: the sweep was ended before. Running it again goes on."
        )
    return SweepSummary(f"Sweep of {swept.name}", headline, facts, reasons, caveats)


def sweep_sections(swept: SweepResults) -> list[Section]:
    """Return a section for each model, then what failed, what is not possible, and all figures."""
    models = dict.fromkeys(cell.model for cell in swept.cells)
    sections, charts = [], _MOST_CHARTS
    for index, model in enumerate(models):
        cells = [cell for cell in swept.cells if cell.model == model]
        section = _model_section(f"model-{index}", model, cells, charts)
        charts -= len(section.charts)
        sections.append(section)
    for state, title, nothing in (
        ("failed", "Failed", "no cell failed"),
        ("impossible", "Not possible", "every combination is possible"),
    ):
        sections.append(_reasons_section(state, title, nothing, swept.cells))
    return [*sections, _figures_section(swept.cells)]


def _model_section(name: str, model: str, cells: Sequence[CellResult], most_charts: int) -> Section:
    """The artifacts of a model by shape."""
    shapes = list(dict.fromkeys(cell.shape for cell in cells))
    artifacts = list(dict.fromkeys(_artifact(cell) for cell in cells))
    found = {(_artifact(cell), cell.shape): cell for cell in cells}
    subjects = {
        (artifact, shape): _subject(number, artifact, found[artifact, shape])
        for number, artifact in enumerate(artifacts, 1)
        for shape in shapes
        if (artifact, shape) in found
    }
    signs = {
        artifact: next(s for (one, _), s in subjects.items() if one == artifact) for artifact in artifacts
    }
    rows = [
        [Cell(shortened(artifact, LONGEST_NAME), subject=signs[artifact])]
        + [_matrix_cell(found.get((artifact, shape))) for shape in shapes]
        for artifact in artifacts
    ]
    charts = []
    for shape in shapes[: max(most_charts, 0)]:
        measured = [s for (_, of), s in subjects.items() if of == shape and s.is_measured]
        chart = pareto_chart(measured)
        if chart:
            sizes = (
                ""
                if drops_differ(measured)
                else "No accuracy differs, or none was measured: size against latency. "
            )
            charts.append(Drawn(chart, f"{model}, {shape}" if shape else model, sizes + _NOTE))
    done = sum(cell.state == "done" for cell in cells)
    baselines = sorted({cell.speedup.baseline for cell in cells if cell.speedup})
    lead = f"{done} of {len(cells)} cells are done."
    if baselines:
        lead += f" Speed-ups are against {', '.join(baselines)}, measured in the same rounds."
    columns = ("artifact", *(shape or "median latency" for shape in shapes))
    table = Table("Median latency of a call; below: speed-up, size, drop in accuracy.", columns, rows)
    return Section(
        name, shortened(model, LONGEST_NAME), lead, tables=[table], charts=charts,
        signs=list(signs.values()) if charts else (), precisions=not charts,
    )  # fmt: skip


def _artifact(cell: CellResult) -> str:
    """Name of a cell's artifact: what its name has behind the model and the shape."""
    return cell.name.removeprefix(f"{cell.model}-").removeprefix(f"{cell.shape}-" if cell.shape else "")


def _subject(number: int, artifact: str, cell: CellResult) -> ReportedArtifact:
    """A cell as charts and signs take it."""
    speed, accuracy = cell.speedup, cell.accuracy
    row = Row(
        artifact,
        cell.artifact,
        cell.target,
        cell.precision,
        status="measured" if cell.state == "done" else "failed",
        size_bytes=cell.size_bytes,
        latency=Latency(cell.latency.median_ms, p99_ms=cell.latency.p99_ms) if cell.latency else None,
        speedup=Speedup(speed.value, speed.low, speed.high, 0, speed.verdict) if speed else None,
        accuracy=Accuracy(
            accuracy.metric,
            accuracy.value,
            Interval(accuracy.drop, accuracy.drop_low, accuracy.drop_high)
            if accuracy.drop is not None
            else None,
        )
        if accuracy
        else None,
    )
    return ReportedArtifact(number, row, cell.is_baseline)


def _matrix_cell(cell: CellResult | None) -> Cell:
    """Latency, and below it speed-up, size and drop; or what became of it."""
    if cell is None:
        return Cell(DASH)
    if cell.state != "done":
        return Cell(cell.state, tone="bad" if cell.state == "failed" else "")
    below = [
        text for text in (cell.speedup_words, bytes_text(cell.size_bytes), cell.drop_words) if text != DASH
    ]
    tone = "good" if cell.speedup and cell.speedup.verdict == "faster" else ""
    return Cell(
        f"{figure(cell.latency.median_ms)} ms" if cell.latency else "built", "\n".join(below), tone=tone
    )


def _reasons_section(state: str, title: str, nothing: str, cells: Sequence[CellResult]) -> Section:
    """Cells without an artifact or a measurement, each with the reason."""
    rows = [[Cell(cell.name), Cell(words(cell.reason))] for cell in cells if cell.state == state]
    if not rows:
        return Section(state, title, missing=nothing)
    return Section(state, title, tables=[Table("Cells and reasons.", ("cell", "reason"), rows, words=(0, 1))])


def _figures_section(cells: Sequence[CellResult]) -> Section:
    """Everything that was measured, and where."""
    done = [cell for cell in cells if cell.state == "done"]
    if not done:
        return Section("figures", "All figures", missing="no cell is done")
    columns = ("cell", "latency, ms", "speed-up", "size", "drop", "inputs", "built on", "measured on")
    caption = f"Every cell that is done, with intervals of {CONFIDENCE:.0%} below."
    table = Table(caption, columns, [list(_figures(cell)) for cell in done], words=(0, 5, 6, 7), folded=True)
    return Section("figures", "All figures", tables=[table])


def _figures(cell: CellResult) -> Iterator[Cell]:
    latency, speed, accuracy = cell.latency, cell.speedup, cell.accuracy
    yield Cell(cell.name, cell.digest[:19])
    ends = f"[{figure(latency.low_ms)}, {figure(latency.high_ms)}]" if latency and latency.low_ms else ""
    yield Cell(figure(latency.median_ms) if latency else DASH, ends)
    yield Cell(cell.speedup_words, interval(speed.low, speed.high) if speed else "")
    yield Cell(bytes_text(cell.size_bytes))
    ends = drop_interval(accuracy.drop_low, accuracy.drop_high, accuracy.unit) if accuracy else ""
    yield Cell(cell.drop_words, ends)
    yield Cell(", ".join(f"{name}:{shape}" for name, shape in cell.inputs.items()) or DASH)
    yield Cell(cell.built_on or "the sweep's process" if cell.artifact else DASH)
    yield Cell(cell.measured_on or ("the sweep's process" if cell.latency else DASH))
