"""Render a row: one text of each figure for terminal, Markdown and report; CSV has the numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
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
from ..measuring.environment import machine_text
from ..statistics.bootstrap import CONFIDENCE as DROP_CONFIDENCE
from ..statistics.speedup import CONFIDENCE, Speedup
from .results import Results
from .row import Row
from .row_json import row_json

RUNTIMES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "pytorch": "PyTorch",
    "torchscript": "TorchScript",
    "tensorrt": "TensorRT",
    "tensorrt-rtx": "TensorRT-RTX",
}
_NEAR_ONE = 0.03  # so near to 1, two decimals do not show what a verdict follows from
_LAYERS_SHOWN = 10
_SINGLE = (
    "name", "artifact", "engine", "mode", "precision", "runs_on", "device", "status", "reason", "size_bytes",
    "size_ratio", "throughput_per_s", "load_ms", "peak_memory_bytes", "gpu_memory_bytes", "contains",
    "parameters", "weights_bytes", "memory_ratio", "machine",
)  # fmt: skip
_GROUPS = {
    "latency_ms": ("min", "median", "p90", "p99", "max", "calls"),
    "speedup": ("value", "low", "high", "rounds", "launches", "verdict"),
    "accuracy": ("metric", "value", "drop_points", "low", "high", "samples", "agreement"),
    "difference": ("snr_db", "state", "max_abs_error", "passed", "mean_abs_error"),
    "cold_start_ms": ("process", "load", "first_result", "total"),
    "energy": ("mj_per_sample", "source", "unavailable"),
}


@dataclass(frozen=True)
class RowText:
    """The figures of a row as text: a dash where nothing was measured, empty where a figure does not apply.

    Attributes:
        name: With "(baseline)" behind that of the baseline.
        runtime: What runs it, and how where that is not the usual.
        problem: Why it has no latency; empty where it has one.
        latency: Median in milliseconds; `tail` the 90th and 99th percentile.
        throughput: Samples per second.
        speedup, interval, verdict: Against the baseline; no verdict where it is faster.
        parameters: Values of the weights, in millions.
        size, reduction, memory: Of the file, how many times smaller it is, of the worker.
        size_saved, memory_saved: Shares of the baseline's size and peak memory that it does without.
        accuracy, drop, drop_interval: In the metric's unit.
        difference: Signal-to-noise ratio of the outputs, and whether they fail.
        mean_error, max_error: Mean and largest absolute difference from the baseline's outputs.
    """

    name: str
    runtime: str
    problem: str
    latency: str
    tail: str
    throughput: str
    speedup: str
    interval: str
    verdict: str
    size: str
    reduction: str
    memory: str
    accuracy: str
    drop: str
    drop_interval: str
    difference: str
    parameters: str = DASH
    size_saved: str = DASH
    memory_saved: str = DASH
    mean_error: str = DASH
    max_error: str = DASH

    @property
    def compared(self) -> str:
        """Speed-up, interval and verdict in one line."""
        return " ".join(text for text in (self.speedup, self.interval, self.verdict) if text)


def render(row: Row, baseline: str) -> RowText:
    """Return the words of a row."""
    latency, accuracy, ratio = row.latency, row.accuracy, row.speedup
    is_baseline = row.name == baseline
    problem = ""
    if row.status != "measured" or latency is None:
        status = "no latency" if row.status == "measured" else row.status
        problem = f"{status}: {row.reason}" if row.reason else status
    tail = [latency.p90_ms, latency.p99_ms] if latency else []
    drop = accuracy.drop if accuracy else None
    mode = "" if row.mode == "eager" else f" ({row.mode})"
    unit = accuracy.unit if accuracy else "points"
    speed, ends = speedup_text(ratio) if ratio else (times(1.0) if is_baseline and not problem else DASH, "")
    return RowText(
        name=f"{row.name} (baseline)" if is_baseline else row.name,
        runtime=f"{RUNTIMES.get(row.engine, row.engine)}{mode}",
        problem=problem,
        latency=figure(latency.median_ms if latency else None),
        tail="" if None in tail or not tail else " ".join(map(figure, tail)),
        throughput=figure(row.throughput_per_s),
        speedup=speed,
        interval=ends,
        verdict=ratio.verdict if ratio and ratio.verdict != "faster" else "",
        size=bytes_text(row.held_bytes),
        reduction=times(row.size_ratio),
        memory=bytes_text(row.memory.peak_bytes if row.memory else None),
        accuracy=accuracy_text(accuracy.value if accuracy else None, unit),
        drop=drop_text(drop.value if drop else None, unit),
        drop_interval=drop_interval(drop.low, drop.high, unit) if drop else "",
        difference=_difference(row),
        parameters=DASH if row.parameters is None else f"{row.parameters / 1e6:.3f} M",
        size_saved=DASH if is_baseline else saved(row.size_ratio),
        memory_saved=DASH if is_baseline else saved(row.memory_ratio),
        mean_error=_error(row.difference.mean_abs_error if row.difference else None),
        max_error=_error(row.difference.max_abs_error if row.difference else None),
    )


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


def csv_columns() -> list[str]:
    """Return the columns of a row's numbers; the unit stands at the end: `latency_median_ms`."""
    return [*_SINGLE, *(_column(group, part) for group, parts in _GROUPS.items() for part in parts)]


def csv_row(row: Row) -> dict[str, Any]:
    """Return column to number or word; None where nothing was measured."""
    value = row_json(row)
    cells = {name: value.get(name) for name in _SINGLE}
    for group, parts in _GROUPS.items():
        figures = value[group] or {}
        cells |= {_column(group, part): figures.get(part) for part in parts}
    return cells


def _column(group: str, part: str) -> str:
    stem = group.removesuffix("_ms")
    return f"{stem}_{part}_ms" if stem != group and part != "calls" else f"{stem}_{part}"


def _error(value: float | None) -> str:
    return "∞" if value == math.inf else DASH if value is None else f"{value:.2g}"


def _difference(row: Row) -> str:
    if row.difference is None:
        return DASH
    text = decibels(row.difference.snr_db)
    return text if row.difference.passed else f"{text} MISMATCH"


_CHARACTERS = str.maketrans({"|": "\\|", "\n": " "})
_MARKUP = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;", "[": "\\[", "`": "\\`"})
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
HEADER = (
    "method", "latency ms", "samples/s", "speed-up", "parameters", "size", "size saved", "peak memory",
    "memory saved", "accuracy", "drop", "mean difference", "largest difference",
)  # fmt: skip
MEANING = (
    "Latency is the median of a call, which is one batch. Size is that of the file; of a MODEL, which has "
    "none, that of its weights. Peak memory is the largest of the process, with runtime and loading. Saved "
    "is the share of the baseline's, difference the absolute one from the baseline's outputs."
)


def save_csv(results: Results, path: Path) -> None:
    """Write one row per artifact; columns carry their units, an empty cell was not measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, csv_columns(), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in csv_row(row).items()} for row in results.rows)
    write_text(path, text.getvalue())


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
    lines: list[Sequence[str]] = [HEADER, ["---"] + ["---:"] * (len(HEADER) - 1)]
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
    sizes = [text.parameters, text.size, text.size_saved]
    if text.problem:
        cells = [text.name, text.problem, DASH, DASH, *sizes, *[DASH] * 6]
    else:
        cells = [
            text.name, text.latency, text.throughput, text.compared, *sizes, text.memory, text.memory_saved,
            text.accuracy, f"{text.drop} {text.drop_interval}".strip(), text.mean_error, text.max_error,
        ]  # fmt: skip
    name, *others = cells
    return [markdown_cell(name), *(cell.translate(_CHARACTERS) for cell in others)]


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would compute gets the apostrophe that makes it a text there."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
