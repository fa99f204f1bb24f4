"""Render a row: one text of each figure for terminal, Markdown and report; CSV has the numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures import (
    DASH,
    accuracy_text,
    bytes_text,
    decibels,
    drop_interval,
    drop_text,
    figure,
    interval,
    saved,
    times,
)
from ...files import write_text
from ...plain_text import plain
from ...spec.engines import rows
from ..measuring.environment import machine_text
from ..statistics.bootstrap import CONFIDENCE as DROP_CONFIDENCE
from ..statistics.speedup import CONFIDENCE, Speedup
from .results import Results
from .row import Interval, Row, Unit
from .row_json import row_json

RUNTIMES = {row.name: row.title for row in rows().values()}
_NEAR_ONE = 0.03  # so near to 1, two decimals do not show what a verdict follows from
_LAYERS_SHOWN = 10
_NUMBERS = """
    name artifact engine mode precision runs_on device status reason size_bytes size_ratio throughput_per_s
    load_ms peak_memory_bytes gpu_memory_bytes contains parameters weights_bytes memory_ratio machine
    latency_ms.min latency_ms.median latency_ms.p90 latency_ms.p99 latency_ms.max latency_ms.calls
    speedup.value speedup.low speedup.high speedup.rounds speedup.launches speedup.verdict
    accuracy.metric accuracy.value accuracy.drop_points accuracy.low accuracy.high accuracy.samples
    accuracy.agreement
    difference.snr_db difference.state difference.max_abs_error difference.passed difference.mean_abs_error
    cold_start_ms.process cold_start_ms.load cold_start_ms.first_result cold_start_ms.total
    energy.mj_per_sample energy.source energy.unavailable
""".split()
"""Keys of a row's JSON form that CSV has, in its order."""


class RowText:
    """The figures of a row as text, by the keys of `COLUMNS`."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def __getattr__(self, key: str) -> str:
        try:
            return self._texts[key]
        except KeyError:
            raise AttributeError(key) from None

    @property
    def compared(self) -> str:
        """Speed-up, interval and verdict in one line."""
        return " ".join(filter(None, (self.speedup, self.interval, self.verdict)))


def render(row: Row, baseline: str) -> RowText:
    """Return the words of a row: a dash where nothing was measured, empty where a figure does not apply."""
    return RowText({key: text(row, row.name == baseline) for key, text in COLUMNS.items()})


def _problem(row: Row) -> str:
    """Why it has no latency; empty where it has one."""
    if row.status == "measured" and row.latency is not None:
        return ""
    status = "no latency" if row.status == "measured" else row.status
    return f"{status}: {row.reason}" if row.reason else status


def _speedup(row: Row, is_baseline: bool) -> str:
    if row.speedup is not None:
        return speedup_text(row.speedup)[0]
    return times(1.0) if is_baseline and not _problem(row) else DASH


def _tail(row: Row) -> str:
    """The 90th and 99th percentile."""
    ends = (row.latency.p90_ms, row.latency.p99_ms) if row.latency else (None,)
    return "" if None in ends else " ".join(map(figure, ends))


def _drop(row: Row) -> Interval | None:
    return row.accuracy.drop if row.accuracy else None


def _unit(row: Row) -> Unit:
    return row.accuracy.unit if row.accuracy else "points"


def _difference(row: Row) -> str:
    """Signal-to-noise ratio of the outputs, and whether they fail."""
    if row.difference is None:
        return DASH
    text = decibels(row.difference.snr_db)
    return text if row.difference.passed else f"{text} MISMATCH"


def _error(value: float | None) -> str:
    return "∞" if value == math.inf else DASH if value is None else f"{value:.2g}"


COLUMNS: dict[str, Callable[[Row, bool], str]] = {
    "name": lambda row, is_baseline: f"{row.name} (baseline)" if is_baseline else row.name,
    "runtime": lambda row, _: (
        RUNTIMES.get(row.engine, row.engine) + ("" if row.mode == "eager" else f" ({row.mode})")
    ),
    "problem": lambda row, _: _problem(row),
    "latency": lambda row, _: figure(row.latency.median_ms if row.latency else None),
    "tail": lambda row, _: _tail(row),
    "throughput": lambda row, _: figure(row.throughput_per_s),
    "speedup": _speedup,
    "interval": lambda row, _: speedup_text(row.speedup)[1] if row.speedup else "",
    "verdict": lambda row, _: row.speedup.verdict if row.speedup and row.speedup.verdict != "faster" else "",
    "size": lambda row, _: bytes_text(row.held_bytes),
    "reduction": lambda row, _: times(row.size_ratio),
    "memory": lambda row, _: bytes_text(row.peak_memory_bytes),
    "accuracy": lambda row, _: accuracy_text(row.accuracy.value if row.accuracy else None, _unit(row)),
    "drop": lambda row, _: drop_text(drop.value if (drop := _drop(row)) else None, _unit(row)),
    "drop_interval": lambda row, _: (
        drop_interval(drop.low, drop.high, _unit(row)) if (drop := _drop(row)) else ""
    ),
    "difference": lambda row, _: _difference(row),
    "parameters": lambda row, _: DASH if row.parameters is None else f"{row.parameters / 1e6:.3f} M",
    "size_saved": lambda row, is_baseline: DASH if is_baseline else saved(row.size_ratio),
    "memory_saved": lambda row, is_baseline: DASH if is_baseline else saved(row.memory_ratio),
    "mean_error": lambda row, _: _error(row.difference.mean_abs_error if row.difference else None),
    "max_error": lambda row, _: _error(row.difference.max_abs_error if row.difference else None),
}
"""Key to the text that terminal, Markdown and report show of a row; the second argument is `is_baseline`."""


def speedup_text(ratio: Speedup) -> tuple[str, str]:
    """Return "3.59×" and "[3.56, 3.63]", with as many decimals as show whether an end is beyond 1."""
    near = min(abs(ratio.low - 1.0), abs(ratio.high - 1.0)) < _NEAR_ONE
    decimals = 3 if near else 2
    return times(ratio.value, decimals), interval(ratio.low, ratio.high, decimals)


def slowest_layers(row: Row) -> list[tuple[str, str, str]]:
    """Return layer, milliseconds and share of the slowest layers, of all further ones, and of all."""
    total_ms = math.fsum(row.layer_times_ms.values())
    layers = sorted(row.layer_times_ms.items(), key=lambda layer: -layer[1])
    if len(layers) > _LAYERS_SHOWN:
        further = [taken_ms for _, taken_ms in layers[_LAYERS_SHOWN:]]
        layers = [*layers[:_LAYERS_SHOWN], (f"{len(further)} further layers", math.fsum(further))]
    layers.append(("together", total_ms))
    return [(name, figure(taken_ms), f"{taken_ms / total_ms:.1%}") for name, taken_ms in layers]


def interval_words(confidence: float) -> str:
    """Return "99% interval", which the verdicts follow from; older files had two confidences."""
    words = f"{confidence:.0%} interval"
    return words if confidence == CONFIDENCE else f"{words}, verdicts of {CONFIDENCE:.0%}"


def warning_lines(results: Results) -> list[str]:
    """Return what the user should know, artifacts with the same warning in one line."""
    names: dict[str, list[str]] = {}
    for row in results.rows:
        for text in row.warnings:
            names.setdefault(text, []).append(row.name)
    return [f"{', '.join(rows)}: {text}" for text, rows in names.items()]


_CHARACTERS = str.maketrans({"|": "\\|", "\n": " "})
_MARKUP = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;", "[": "\\[", "`": "\\`"})
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MARKDOWN = {
    "name": "method", "latency": "latency ms", "throughput": "samples/s", "compared": "speed-up",
    "parameters": "parameters", "size": "size", "size_saved": "size saved", "memory": "peak memory",
    "memory_saved": "memory saved", "accuracy": "accuracy", "drop": "drop", "mean_error": "mean difference",
    "max_error": "largest difference",
}  # fmt: skip
"""Key of `COLUMNS` to the title of the Markdown table."""
_OF_FILES = ("name", "parameters", "size", "size_saved")  # known of what was not measured, too
MEANING = (
    "Latency is the median of a call, which is one batch. Size is that of the file; of a MODEL, which has "
    "none, that of its weights. Peak memory is the largest of the process, with runtime and loading. Saved "
    "is the share of the baseline's, difference the absolute one from the baseline's outputs."
)


def save_csv(results: Results, path: Path) -> None:
    """Write one row per artifact; columns carry their units, an empty cell was not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_csv_column, _NUMBERS))
    for value in map(row_json, results.rows):
        writer.writerow(_csv_cell(value, *key.split(".")) for key in _NUMBERS)
    write_text(path, text.getvalue())


def _csv_column(key: str) -> str:
    """The unit stands at the end: `latency_ms.median` is `latency_median_ms`."""
    group, _, part = key.partition(".")
    stem = group.removesuffix("_ms") if part else group
    return "_".join(filter(None, (stem, part, "ms" if stem != group and part != "calls" else "")))


def _csv_cell(value: Mapping[str, Any], group: str, part: str = "") -> Any:
    """A text that a spreadsheet would compute gets the apostrophe that makes it a text there."""
    cell = (value[group] or {}).get(part) if part else value[group]
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def save_markdown(results: Results, path: Path) -> None:
    """Write the table, and beneath it the machine, the input and whether the run was disturbed."""
    write_text(path, markdown(results))


def markdown(results: Results) -> str:
    """Return the table as GitHub's Markdown, the baseline first."""
    table = markdown_table(results)
    settings = results.settings
    shapes = ", ".join(f"{name}:{shape}" for name, shape in (settings.get("inputs") or {}).items())
    about = (
        f"{_machines(results)}, {settings.get('threads')} threads, input {shapes}; "
        f"speed-up against {results.baseline} with its {interval_words(results.confidence)}"
    )
    if any(row.accuracy for row in results.rows):
        about += f", drop with its {DROP_CONFIDENCE:.0%} interval"
    noise = results.environment.get("noise") or {}
    disturbed = "".join(f"\n- disturbed: {reason}" for reason in noise.get("reasons", ()))
    stopped = "\n- interrupted: not every round was measured" if results.interrupted else ""
    return f"{table}\n\n{about}\n\n{MEANING}\n{disturbed}{stopped}".rstrip() + "\n"


def markdown_table(results: Results) -> str:
    """Return the table alone."""
    rows = sorted(results.rows, key=lambda row: row.name != results.baseline)
    titles = [*_MARKDOWN.values()]
    lines: list[Sequence[str]] = [titles, ["---"] + ["---:"] * (len(titles) - 1)]
    lines += [_cells(render(row, results.baseline_of(row))) for row in rows]
    if results.machines:  # in the second column
        machines = ["machine", "---", *(markdown_cell(row.machine) for row in rows)]
        lines = [[line[0], text, *line[1:]] for line, text in zip(lines, machines, strict=True)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def markdown_cell(text: str) -> str:
    """Return a text of strangers as a cell of a table shows it: no markup of it counts."""
    return plain(text).translate(_MARKUP)


def _machines(results: Results) -> str:
    """The machine, or each by its name."""
    named = [f"{name}: {machine_text(one.environment)}" for name, one in results.machines.items()]
    return "; ".join(named) or machine_text(results.environment)


def _cells(text: RowText) -> list[str]:
    cells = {key: getattr(text, key) for key in _MARKDOWN}
    cells["drop"] = f"{text.drop} {text.drop_interval}".strip()
    if text.problem:
        cells = {key: cells[key] if key in _OF_FILES else DASH for key in cells} | {"latency": text.problem}
    name, *others = cells.values()
    return [markdown_cell(name), *(cell.translate(_CHARACTERS) for cell in others)]
