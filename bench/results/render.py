"""Render rows: `COLUMNS` lists their figures, with the titles in terminal, CSV, Markdown and report."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from ...core import figures
from ...core.figures import DASH, bytes_text, counted, figure, saving, times
from ...core.files import write_text
from ...core.plain_text import plain
from ...spec.engines import rows
from .environment import machine_text
from .results import Results
from .row import Curve, Row
from .statistics import DROP_CONFIDENCE, Speedup

RUNTIMES = {row.name: row.title for row in rows().values()}
_NEAR_ONE = 0.03  # closer to 1, two decimals do not show the reason for a verdict
_LAYERS_SHOWN = 10


def _runtime(row: Row) -> str:
    mode = "" if row.mode == "eager" else f" ({row.mode})"
    return RUNTIMES.get(row.engine, row.engine) + mode


def _problem(row: Row) -> str:
    """Return the reason for a missing latency; empty if the row has a latency."""
    if row.status == "measured" and row.latency is not None:
        return ""
    status = "no latency" if row.status == "measured" else row.status
    return f"{status}: {row.reason}" if row.reason else status


def _speedup(row: Row, is_baseline: bool) -> str:
    if row.speedup is not None:
        return speedup_text(row.speedup)[0]
    return times(1.0) if is_baseline and not _problem(row) else DASH


def _tail(row: Row) -> str:
    ends = (row.latency.p90_ms, row.latency.p99_ms) if row.latency else (None,)
    return "" if None in ends else " ".join(map(figure, ends))


def _interval(row: Row) -> str:
    return speedup_text(row.speedup)[1] if row.speedup else ""


def _verdict(row: Row) -> str:
    """Return the verdict; empty for "faster", which the figure shows."""
    return row.speedup.verdict if row.speedup and row.speedup.verdict != "faster" else ""


def _drop(row: Row) -> tuple[str, str]:
    if row.accuracy is None or (drop := row.accuracy.drop) is None:
        return DASH, ""
    unit = row.accuracy.unit
    return figures.drop_text(drop.value, unit), figures.drop_interval(drop.low, drop.high, unit)


def _difference(row: Row) -> str:
    if row.difference is None:
        return DASH
    text = figures.decibels(row.difference.snr_db)
    return text if row.difference.passed else f"{text} MISMATCH"


def _error(value: object) -> str:
    return "∞" if value == math.inf else f"{value:.2g}" if isinstance(value, float) else DASH


def _cold(row: Row, part: str) -> float | None:
    return getattr(row.cold_start, part) if row.cold_start else None


Place = Literal["terminal", "markdown", "report", "details", "costs"]
"""Tables of rows; the report has three: results, details and costs."""
_BY_DEFAULT: tuple[Place, ...] = ("terminal", "markdown", "details")


@dataclass(frozen=True)
class Column:
    """One figure of a row, as text.

    Attributes:
        key: Attribute of its text in the result of `render`.
        text: Function of a row and whether it is the baseline: a dash if not measured, empty if the figure
            does not apply.
        numbers: Keys of the row's JSON form that replace it in CSV, in the order of `COLUMNS`.
        places, rank: Tables that show it, and its position from the left. CSV has all figures.
        titles: Titles in tables that differ; "narrow" is the terminal's of two lines.
        of_file: Whether artifacts without measurements have it, too.
    """

    key: str
    title: str
    text: Callable[[Row, bool], str]
    numbers: str = ""
    places: Sequence[Place] = _BY_DEFAULT
    rank: int = 99
    titles: Mapping[Place | Literal["narrow"], str] = field(default_factory=dict)
    of_file: bool = False

    def title_in(self, place: Place | Literal["narrow"]) -> str:
        return self.titles.get(place, self.title)


COLUMNS: tuple[Column, ...] = (
    Column(
        "name", "method", lambda row, is_baseline: f"{row.name} (baseline)" if is_baseline else row.name,
        "name artifact", ("markdown",), 0, of_file=True,
    ),
    Column(
        "runtime", "runs on", lambda row, _: _runtime(row), "engine mode precision runs_on device",
        ("terminal",), 2,
    ),
    Column("problem", "", lambda row, _: _problem(row), "status reason", ()),
    Column(
        "size", "size", lambda row, _: bytes_text(row.held_bytes), "size_bytes",
        ("terminal", "markdown", "report"), 20,
        {"terminal": "size, memory", "narrow": "size\nmemory"}, of_file=True,
    ),
    Column(
        "reduction", "reduction", lambda row, _: times(row.size_ratio), "size_ratio", ("report",), 21,
        of_file=True,
    ),
    Column(
        "size_saved", "size saved", lambda row, is_baseline: DASH if is_baseline else saving(row.size_ratio),
        places=("markdown", "details"), rank=22, of_file=True,
    ),
    Column(
        "throughput", "samples/s", lambda row, _: figure(row.throughput_per_s), "throughput_per_s", rank=12,
    ),
    Column(
        "load", "load, ms", lambda row, _: figure(_cold(row, "load_ms") or row.load_ms), "load_ms",
        ("costs",), 31,
    ),
    Column(
        "memory", "peak memory", lambda row, _: bytes_text(row.peak_memory_bytes), "peak_memory_bytes",
        ("markdown", "costs"), 40,
    ),
    Column(
        "gpu_memory", "GPU memory", lambda row, _: bytes_text(row.gpu_memory_bytes), "gpu_memory_bytes",
        ("costs",), 41,
    ),
    Column("contains", "contains", lambda row, _: row.contains, "contains", ()),
    Column(
        "parameters", "parameters",
        lambda row, _: DASH if row.parameters is None else f"{row.parameters / 1e6:.3f} M", "parameters",
        ("markdown", "details"), 14, of_file=True,
    ),
    Column("weights", "weights", lambda row, _: bytes_text(row.weights_bytes), "weights_bytes", ()),
    Column(
        "memory_saved", "memory saved",
        lambda row, is_baseline: DASH if is_baseline else saving(row.memory_ratio), "memory_ratio",
        ("markdown", "details"), 42, {"details": "peak memory saved"},
    ),
    Column("machine", "machine", lambda row, _: row.machine, "machine", ()),
    Column(
        "latency", "latency ms", lambda row, _: figure(row.latency.median_ms if row.latency else None),
        "latency_ms.min latency_ms.median latency_ms.p90 latency_ms.p99 latency_ms.max latency_ms.calls",
        ("terminal", "markdown", "report"), 10,
        {"terminal": "latency ms: median, p90, p99", "narrow": "latency ms\np90  p99",
         "report": "latency, ms"},
    ),
    Column("tail", "p90, p99", lambda row, _: _tail(row), places=()),
    Column(
        "speedup", "speed-up", _speedup,
        "speedup.value speedup.low speedup.high speedup.rounds speedup.launches speedup.verdict",
        ("terminal", "report"), 13, {"narrow": "speed-up\ninterval"},
    ),
    Column("interval", "interval", lambda row, _: _interval(row), places=()),
    Column("verdict", "verdict", lambda row, _: _verdict(row), places=()),
    Column(
        "compared", "speed-up",
        lambda row, is_baseline: _line(_speedup(row, is_baseline), _interval(row), _verdict(row)),
        places=("markdown",), rank=13,
    ),
    Column(
        "accuracy", "accuracy",
        lambda row, _: figures.accuracy_text(row.accuracy.value, row.accuracy.unit) if row.accuracy else DASH,
        "accuracy.metric accuracy.value",
        ("terminal", "markdown", "report"), 50,
        {"terminal": "accuracy, drop", "narrow": "accuracy\ndrop"},
    ),
    Column(
        "drop", "drop", lambda row, _: _drop(row)[0],
        "accuracy.drop_points accuracy.low accuracy.high accuracy.samples accuracy.agreement",
        ("report",), 51,
    ),
    Column("drop_interval", "interval", lambda row, _: _drop(row)[1], places=()),
    Column("lost", "drop", lambda row, _: _line(*_drop(row)), places=("markdown",), rank=51),
    Column(
        "difference", "output SNR", lambda row, _: _difference(row),
        "difference.snr_db difference.state", ("terminal",), 52, {"narrow": "output\nSNR"},
    ),
    Column(
        "max_error", "largest difference",
        lambda row, _: _error(row.difference.max_abs_error if row.difference else None),
        "difference.max_abs_error difference.passed", ("markdown", "details"), 54,
    ),
    Column(
        "mean_error", "mean difference",
        lambda row, _: _error(row.difference.mean_abs_error if row.difference else None),
        "difference.mean_abs_error", ("markdown", "details"), 53,
    ),
    Column(
        "process", "process, ms", lambda row, _: figure(_cold(row, "process_ms")),
        "cold_start_ms.process cold_start_ms.load", ("costs",), 30,
    ),
    Column(
        "first_result", "first result, ms", lambda row, _: figure(_cold(row, "first_result_ms")),
        "cold_start_ms.first_result", ("costs",), 32,
    ),
    Column(
        "cold_start", "cold start, ms", lambda row, _: figure(_cold(row, "total_ms")), "cold_start_ms.total",
        ("costs",), 33,
    ),
    Column(
        "energy", "energy, mJ/sample",
        lambda row, _: figure(row.energy.mj_per_sample if row.energy else None),
        "energy.mj_per_sample energy.source energy.unavailable", ("costs",), 55,
    ),
)  # fmt: skip
"""To add a figure: add a field to `Row`, the code that measures it, and an entry here."""


def columns_of(place: Place) -> list[Column]:
    return sorted((column for column in COLUMNS if place in column.places), key=lambda column: column.rank)


def render(row: Row, baseline: str) -> SimpleNamespace:
    return SimpleNamespace(**{column.key: column.text(row, row.name == baseline) for column in COLUMNS})


def _line(*texts: str) -> str:
    return " ".join(filter(None, texts))


def speedup_text(ratio: Speedup) -> tuple[str, str]:
    """Return "3.59×" and "[3.56, 3.63]"; a third decimal shows whether an end near 1 is beyond it."""
    near = min(abs(ratio.low - 1.0), abs(ratio.high - 1.0)) < _NEAR_ONE
    decimals = 3 if near else 2
    return times(ratio.value, decimals), figures.interval(ratio.low, ratio.high, decimals)


def slowest_layers(row: Row) -> list[tuple[str, str, str]]:
    """Return name, milliseconds and share of the slowest layers, of the further layers, and of the sum."""
    total_ms = math.fsum(row.layer_times_ms.values())
    layers = sorted(row.layer_times_ms.items(), key=lambda layer: -layer[1])
    if len(layers) > _LAYERS_SHOWN:
        further = [taken_ms for _, taken_ms in layers[_LAYERS_SHOWN:]]
        layers = [*layers[:_LAYERS_SHOWN], (f"{len(further)} further layers", math.fsum(further))]
    layers.append(("together", total_ms))
    return [(name, figure(taken_ms), f"{taken_ms / total_ms:.1%}") for name, taken_ms in layers]


def interval_words(confidence: float) -> str:
    """Return "99% interval"."""
    return f"{confidence:.0%} interval"


def warning_lines(results: Results) -> list[str]:
    """Return the warnings of all rows; artifacts with the same warning share a line."""
    return _by_text((text, row.name) for row in results.rows for text in row.warnings)


def accuracy_lines(results: Results) -> list[str]:
    """Return the statements on all drops; artifacts with the same statement share a line."""
    return _by_text(
        (f"drop of {row.accuracy.metric}: {row.accuracy.statement}", row.name)
        for row in results.rows
        if row.accuracy and row.accuracy.statement
    )


def _by_text(texts: Iterable[tuple[str, str]]) -> list[str]:
    names: dict[str, list[str]] = {}
    for text, name in texts:
        names.setdefault(text, []).append(name)
    return [f"{', '.join(rows)}: {text}" for text, rows in names.items()]


_CHARACTERS = str.maketrans({"|": "\\|", "\n": " "})
_MARKUP = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;", "[": "\\[", "`": "\\`"})
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
MEANING = (
    "Latency is the median of a call, which is one batch. Size is that of the file; of a MODEL, which has "
    "none, that of its weights. Peak memory is the largest of the process, with runtime and loading. Saved "
    "is the share of the baseline's, difference the absolute one from the baseline's outputs."
)


def save_csv(results: Results, path: Path) -> None:
    """Write one row per artifact; titles carry the units, and an empty cell was not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    titles, rows = flat_rows(results)
    writer.writerow(titles)
    writer.writerows(map(_csv_cell, row) for row in rows)
    write_text(path, text.getvalue())


def flat_rows(results: Results) -> tuple[list[str], list[list[Any]]]:
    """Return the titles of all figures, and the figures of each artifact; None was not measured."""
    keys = " ".join(column.numbers for column in COLUMNS).split()
    split = [key.partition(".") for key in keys]
    rows = [
        [(value[group] or {}).get(part) if part else value[group] for group, _, part in split]
        for value in results.as_json()["artifacts"]
    ]
    return [*map(_csv_column, keys)], rows


def _csv_column(key: str) -> str:
    """Return the title of a key, with the unit at the end: `latency_ms.median` is `latency_median_ms`."""
    group, _, part = key.partition(".")
    stem = group.removesuffix("_ms") if part else group
    return "_".join(filter(None, (stem, part, "ms" if stem != group and part != "calls" else "")))


def _csv_cell(cell: Any) -> Any:
    """Return a cell; an apostrophe before a formula makes it text in a spreadsheet."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def markdown(results: Results) -> str:
    table = markdown_table(results)
    settings = results.settings
    shapes = ", ".join(f"{name}:{shape}" for name, shape in (settings.get("inputs") or {}).items())
    parts = [f"{name}: {machine_text(part.environment)}" for name, part in results.machines.items()]
    machines = "; ".join(parts) or machine_text(results.environment)
    about = (
        f"{machines}, {counted(settings.get('threads'), 'thread')}, input {shapes}; "
        f"speed-up against {results.baseline} with its {interval_words(results.confidence)}"
    )
    if any(row.accuracy for row in results.rows):
        about += f", drop with its {DROP_CONFIDENCE:.0%} interval"
        metric = settings.get("metric_note") or settings.get("metric")
        about += f"; accuracy is {markdown_cell(str(metric))}" if metric else ""
    noise = results.environment.get("noise") or {}
    disturbed = "".join(f"\n- disturbed: {reason}" for reason in noise.get("reasons", ()))
    stopped = "\n- interrupted: not every round was measured" if results.interrupted else ""
    curves = "".join(f"\n\n{text}" for text in _curves(results))
    drops = "".join(f"\n- {markdown_cell(line)}" for line in accuracy_lines(results))
    return f"{table}{curves}\n\n{about}\n\n{MEANING}\n{drops}{disturbed}{stopped}".rstrip() + "\n"


CURVES: Mapping[Curve, str] = {"batches": "batch size", "concurrency": "clients", "in_flight": "in flight"}
"""Curve to the quantity that it counts."""


def _curves(results: Results) -> Iterator[str]:
    """Yield a table for each measured curve: latency and throughput of each artifact at each count."""
    for curve, word in CURVES.items():
        points = {row.name: {point.count: point for point in getattr(row, curve)} for row in results.rows}
        counts = sorted({count for of_row in points.values() for count in of_row})
        if not counts:
            continue
        lines = [["median ms (samples/s)", *(f"{word} {count}" for count in counts)]]
        lines.append(["---", *["---:"] * len(counts)])
        for name, of_row in points.items():
            items = [of_row.get(count) for count in counts]
            cells = [f"{figure(p.median_ms)} ({figure(p.throughput_per_s)})" if p else DASH for p in items]
            if of_row:
                lines.append([markdown_cell(name), *cells])
        yield "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def markdown_table(results: Results) -> str:
    rows = sorted(results.rows, key=lambda row: row.name != results.baseline)
    titles = [column.title_in("markdown") for column in columns_of("markdown")]
    lines: list[Sequence[str]] = [titles, ["---"] + ["---:"] * (len(titles) - 1)]
    lines += [_cells(render(row, results.baseline_of(row))) for row in rows]
    if results.machines:  # in the second column
        machines = ["machine", "---", *(markdown_cell(row.machine) for row in rows)]
        lines = [[line[0], text, *line[1:]] for line, text in zip(lines, machines, strict=True)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def markdown_cell(text: str) -> str:
    """Return untrusted text as a cell of a table, with its markup escaped."""
    return plain(text).translate(_MARKUP)


def _cells(text: SimpleNamespace) -> list[str]:
    cells = {
        column.key: getattr(text, column.key) if column.of_file or not text.problem else DASH
        for column in columns_of("markdown")
    } | ({"latency": text.problem} if text.problem else {})
    name, *numbers = cells.values()
    return [markdown_cell(name), *(cell.translate(_CHARACTERS) for cell in numbers)]
