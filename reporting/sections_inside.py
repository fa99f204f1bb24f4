"""Sections about the layers of artifacts, and about the run: failures, environment, reproduction."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..bench.results.render import slowest_layers, warning_lines
from ..calibration.plot import LINES, summarize
from ..figures import DASH, bytes_text, decibels, figure, number, words
from .charts import (
    WORST_HISTOGRAMS,
    WORST_TENSORS,
    errors_chart,
    histogram_chart,
    layers_by_precision,
    precision_chart,
)
from .source import Block, Cell, Drawn, Section, Source, Table, row_of

if TYPE_CHECKING:
    from ..comparison.layers.outcome import LayerDiff

_OF_THE_RUN = ("before", "after", "noise")
_ELSEWHERE = ("command", "recipe")
_EMPTY: tuple[object, ...] = (None, "", [], {})
_UNITS = {
    "_bytes": "", "_mhz": ", MHz", "_ms": ", ms", "_us": ", µs", "_s": ", s", "_1min": ", 1 minute",
    "_c": ", °C", "_w": ", W",
}  # fmt: skip


def precision_section(source: Source) -> Section:
    chart = precision_chart(source.subjects)
    if not chart:
        return Section(missing="no artifact has a manifest that tells its layers' precisions")
    rows = [
        row_of(s, name, str(sum(kinds.values())), ", ".join(f"{n} {kind}" for kind, n in kinds.items()))
        for s in source.subjects
        for name, kinds in layers_by_precision(s).items()
    ]
    caption = "Layers by precision and operator, from the artifacts' manifests."
    columns = ("artifact", "precision", "layers", "operators")
    table = Table(caption, columns, rows, words=(0, 1, 3), folded=True)
    drawn = Drawn(chart, "Layers by precision", "What the built artifact holds, not what was asked for.")
    return Section(charts=[drawn], tables=[table], precisions=True)


def times_section(source: Source) -> Section:
    timed = [s for s in source.measured if s.row.layer_times_ms]
    if not timed:
        return Section(missing="layer times were not measured (`layer_times`)")
    tables = []
    for s in timed:
        caption = f"{s.label}: medians by the runtime's profiler, which slows the layers."
        rows = [[*map(Cell, cells)] for cells in slowest_layers(s.row)]
        tables.append(Table(caption, ("layer", "ms", "share"), rows))
    return Section(tables=tables)


def layers_section(source: Source) -> Section:
    if not source.layers:
        missing = "no layer differences were given (`qcompile diff` writes layers.json, `layers` takes it)"
        return Section(missing=missing)
    charts, tables = [], []
    for file, diff in source.layers:
        chart = errors_chart(diff)
        if not chart:
            continue
        shown, bad = min(len(diff.layers), WORST_TENSORS), diff.first_bad
        first = "None of them diverges."
        if bad and bad.tensor:
            node = f", node {bad.node}" if bad.node else ""
            first = f"The first that diverges is {bad.tensor} ({words(bad.operator)}{node})."
        note = f"The worst {shown} of {len(diff.layers)} compared tensors. {first}"
        charts.append(Drawn(chart, f"{diff.artifact} against {diff.reference}", note))
        tables.append(_errors(file, diff))
    if not charts:
        return Section(missing="the files of layers hold no tensors")
    return Section(charts=charts, tables=tables)


def calibration_section(source: Source) -> Section:
    if source.ranges is None:
        return Section(missing="no ranges were given (`ranges` takes a ranges file)")
    summaries = summarize(source.ranges)
    if not summaries:
        return Section(missing="the ranges hold no histograms")
    lead = (
        f"{source.ranges.samples} samples, {len(summaries)} tensors, method {source.ranges.method}. "
        f"The {min(len(summaries), WORST_HISTOGRAMS)} tensors with the lowest SNR in symmetric INT8; thick "
        "lines are the chosen thresholds."
    )
    charts = [
        Drawn(
            histogram_chart(source.ranges, one),
            one.tensor,
            f"{'no error' if number(one.snr_db) is None else f'{figure(one.snr_db)} dB'} after quantization, "
            f"{one.clipped:.2%} of the values clipped. Thresholds: "
            + ", ".join(f"{method} {figure(amax)}" for method, amax in one.amax.items())
            + ".",
        )
        for one in summaries[:WORST_HISTOGRAMS]
    ]
    return Section(lead, charts, pairs=True, lines={method: LINES[method] for method in summaries[0].amax})


def _errors(file: str, diff: LayerDiff) -> Table:
    rows = [
        [
            Cell(layer.tensor, layer.node), Cell(layer.operator or DASH), Cell(decibels(layer.snr_db)),
            Cell(figure(number(layer.max_abs_error))), Cell(figure(number(layer.max_abs))),
        ]
        for layer in diff.layers[:WORST_TENSORS]
    ]  # fmt: skip
    columns = ("tensor", "operator", "SNR", "largest error", "largest value")
    return Table(f"{file}: tensors, the worst first.", columns, rows, words=(0, 1), folded=True)


def failures_section(source: Source) -> Section:
    """Artifacts without numbers, each with the reason, and what users should know of the others."""
    rows, blocks = [], []
    for subject in source.subjects:
        if subject.is_measured:
            continue
        row = subject.row
        status = "no latency" if row.status == "measured" else row.status
        rows.append(row_of(subject, status, words(row.reason)))
        if row.output_tail:
            blocks.append(Block(f"Last output of {subject.label}", row.output_tail, folded=True))
    items = warning_lines(source.results)
    if not rows and not items:
        return Section(missing="every artifact was measured, and none has a warning")
    table = Table("Artifacts without numbers.", ("artifact", "status", "reason"), rows, words=(0, 1, 2))
    return Section(tables=[table] if rows else [], blocks=blocks, items=items)


def environment_section(source: Source) -> Section:
    """The machine, and what changed on it while it was measured."""
    environment = source.results.environment
    noise = environment.get("noise")
    if isinstance(noise, Mapping):
        lead = "The run was quiet." if not noise.get("noisy") else "The run was noisy:"
        items = [str(reason) for reason in noise.get("reasons") or ()]
    else:
        lead, items = "Whether the run was quiet was not recorded.", []
    fixed = {k: value for k, value in environment.items() if k not in _OF_THE_RUN and value not in _EMPTY}
    states = {key: _flat(environment.get(key) or {}) for key in ("before", "after")}
    tables = _values("The machine and the versions.", value=fixed)
    tables += _values("Before and after measuring.", **states)
    if not tables:
        return Section(missing="the results hold none")
    return Section(lead, tables=tables, items=items)


def reproduce_section(source: Source) -> Section:
    """The command, the recipe and the settings."""
    settings = source.results.settings
    command = settings.get("command")
    blocks = []
    if isinstance(command, list) and command:
        blocks.append(Block("Command", shlex.join(map(str, command))))
    if source.recipe:
        blocks.append(Block("Recipe", source.recipe))
    fixed = {key: value for key, value in settings.items() if key not in _ELSEWHERE and value not in _EMPTY}
    tables = _values("Settings of the measuring.", value=fixed)
    if not blocks and not tables:
        return Section(missing="the results hold no settings")
    lead = "" if blocks else "The results hold neither the command nor a recipe (`recipe` adds one)."
    return Section(lead, tables=tables, blocks=blocks)


def _values(caption: str, **columns: Mapping[str, Any]) -> list[Table]:
    """A table of names with their values, a column for each mapping; none where there is no value."""
    tables = columns.values()
    keys = [
        key for key in dict.fromkeys(key for table in tables for key in table)
        if any(table.get(key) is not None for table in tables)
    ]  # fmt: skip
    rows = [[Cell(_name(key)), *(Cell(_value(key, table.get(key))) for table in tables)] for key in keys]
    words_at = (0, 1) if len(columns) == 1 else (0,)
    return [Table(caption, ("", *columns), rows, words=words_at, narrow=True)] if rows else []


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings become dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _name(key: str) -> str:
    """`memory_bytes` is read "memory": its unit stands at the value; `frequency_mhz` is "frequency, MHz"."""
    for ending, unit in _UNITS.items():
        if key.endswith(ending):
            return key.removesuffix(ending).replace("_", " ") + unit
    return key.replace("_", " ")


def _value(key: str, value: object) -> str:
    if key.endswith("_bytes"):
        return bytes_text(number(value))
    return words(value) if value is not None else DASH
