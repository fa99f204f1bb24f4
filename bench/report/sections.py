"""Sections of the report: the measurements, the layers of artifacts, and the run itself."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from msgspec.structs import astuple

from ...core.figures import DASH, bytes_text, counted, decibels, drop_text, figure, number, value_text
from ..results.render import columns_of, interval_words, slowest_layers, warning_lines
from ..results.row import Curve
from ..results.statistics import DROP_CONFIDENCE, SMALLEST_DIFFERENCE
from . import charts as drawing
from .range_plots import LINES, summarize
from .source import Block, Cell, Figure, ReportedArtifact, ReportSource, ReportTable, Section, row_of

_SWEEPS: dict[Curve, tuple[str, str]] = {
    "batches": ("batch size", "`batch_sizes` 1,8,32"),
    "concurrency": ("number of clients", "`clients` 1,2,4"),
    "in_flight": ("inferences in flight", "`streams` 1,2,4, on a GPU"),
}
_CLASSES_SHOWN = 10


def results_section(source: ReportSource, recommended: ReportedArtifact | None) -> Section:
    """Return the main table of figures and a folded table of details; `recommended` is marked."""
    columns = ["method", *(column.title_in("report") for column in columns_of("report"))]
    metric = next((s.row.accuracy.metric for s in source.measured if s.row.accuracy), "")
    unit = next((s.drop_unit for s in source.measured if s.drop), "points")
    caption = (
        "Median latency of a call with its 90th and 99th percentile below; speed-up against the baseline "
        f"with its {interval_words(source.results.confidence)}; reduction: how many times smaller than the "
        "baseline's file, or than the "
        "first FP32 file where the baseline has none"
    )
    if metric:
        caption += f"; accuracy: {metric}, its drop in {unit} with the {DROP_CONFIDENCE:.0%} interval"
    table = ReportTable(
        f"{caption}.", columns, [_result(subject, recommended) for subject in source.subjects]
    )
    contains = sorted({s.row.contains for s in source.measured if s.row.contains})
    lead = f"A latency contains: {'; '.join(contains)}." if contains else ""
    details = columns_of("details")
    further = ReportTable(
        "Saved: the share of the baseline's. Difference: absolute, from the baseline's outputs.",
        ["method", *(column.title_in("details") for column in details)],
        [row_of(s, *(getattr(s.text, column.key) for column in details)) for s in source.measured],
        folded=True,
    )
    return Section(lead, tables=[table, further])


def speed_section(source: ReportSource) -> Section:
    base = source.baseline.label if source.baseline else ""
    shown = interval_words(source.results.confidence)
    chart = drawing.speedup_chart(source.measured, base, shown)
    if not chart:
        return Section(missing="no artifact was compared with the baseline")
    counts = [s.speedup.launches for s in source.measured if s.speedup]
    least, most = min(counts), max(counts)
    mean = f"mean over {most if least == most else f'{least} to {most}'} launches"
    mark = mean if most > 1 else "median of one launch's rounds"
    note = (
        f"The mark is the {mark}, the bar its {shown}. "
        f"A verdict requires the whole bar {SMALLEST_DIFFERENCE:.0%} or more beyond the line."
    )
    drawn = Figure(chart, f"Speed-up against {base}", note)
    return Section(charts=[drawn], precisions=True)


def latency_section(source: ReportSource) -> Section:
    chart = drawing.latency_chart(source.measured)
    if not chart:
        return Section(missing="the results hold no quantiles of the calls")
    note = (
        "Shape: density of the latencies from the 1st to the 99th percentile. "
        "Thick bar: 25th to 75th percentile. Ring: median."
    )
    charts = [Figure(chart, "Latency of every timed call", note)]
    if calls := drawing.calls_chart(source.measured):
        note = "A rising line shows that calls become slower, for example because the processor throttles."
        charts.append(Figure(calls, "Call after call", note))
    if memory := drawing.gpu_memory_chart(source.measured):
        note = "A rising line shows that the process takes more memory in each round."
        charts.append(Figure(memory, "Memory on the GPU, round after round", note))
    by_gpu = [
        row_of(s, *map(figure, astuple(s.row.gpu_latency))) for s in source.measured if s.row.gpu_latency
    ]
    columns = ("artifact", "compute, ms", "with copies, ms", "host's enqueue, ms")
    tables = [ReportTable("By the GPU's clock, medians.", columns, by_gpu)] if by_gpu else []
    return Section(charts=charts, tables=tables, precisions=True)


def tradeoff_section(source: ReportSource) -> Section:
    chart = drawing.pareto_chart(source.measured)
    if not chart:
        return Section(missing="at least two artifacts with a latency and an accuracy or a size are needed")
    note = (
        "The area is the file's size; a small ring has no file. Strong colour: no other artifact is better "
        "in latency, drop and size at once. The dashed line joins the best in both axes."
    )
    if not drawing.drops_differ(source.measured):
        note = f"No accuracy differs, or none was measured: size against latency. {note}"
    drawn = Figure(chart, "The trade-off", note)
    return Section(charts=[drawn], signs=source.measured)


def accuracy_section(source: ReportSource) -> Section:
    dropped = [s for s in source.measured if s.drop is not None]
    metric = dropped[0].row.accuracy.metric if dropped and dropped[0].row.accuracy else ""
    chart = drawing.drop_chart(dropped, metric)
    if not chart:
        if dropped:
            return Section(missing="only the baseline's accuracy was measured")
        return Section(missing="accuracy was not measured (`evaluation` gives labelled samples)")
    base = source.baseline
    samples = dropped[0].row.accuracy.samples if dropped[0].row.accuracy else None
    value = base.text.accuracy if base else DASH
    lead = (
        f"{base.label if base else 'The baseline'} reaches {value} {metric} on {counted(samples, 'sample')}."
    )
    reason = source.results.settings.get("metric_note")
    if reason and isinstance(reason, str):
        lead += f" Accuracy is {reason}."
    note = f"Below 0 the artifact is better. The bar is the {DROP_CONFIDENCE:.0%} interval."
    shown = [
        row_of(s, s.row.accuracy.statement) for s in dropped if s.row.accuracy and s.row.accuracy.statement
    ]
    bounds = [ReportTable("Bounds from the samples.", ("artifact", "drop"), shown)] if shown else []
    agreement = [
        row_of(s, f"{share:.2%}", s.text.difference)
        for s in dropped
        if s.row.accuracy and (share := s.row.accuracy.agreement) is not None
    ]
    caption, columns = "Agreement with the baseline's predictions.", ("artifact", "same prediction")
    tables = [ReportTable(caption, (*columns, "output SNR"), agreement)] if agreement else []
    tables = [*bounds, *tables, *(table for s in dropped if (table := _classes(s)))]
    drawn = Figure(chart, f"Drop of {metric} against {base.label if base else 'the baseline'}", note)
    return Section(lead, [drawn], tables)


def sweep_section(source: ReportSource, key: Curve) -> Section:
    word, option = _SWEEPS[key]
    chart = drawing.curves_chart(source.measured, key, word)
    if not chart:
        return Section(missing=f"not measured for any artifact ({option})")
    shown = [s for s in source.measured if drawing.curve(s, key)]
    rows = [
        row_of(s, str(point.count), *map(figure, (point.median_ms, point.p99_ms, point.throughput_per_s)))
        for s in shown
        for point in drawing.curve(s, key)
    ]
    columns = ("artifact", word, "median, ms", "p99, ms", "samples/s")
    table = ReportTable(f"Throughput and latency by {word}.", columns, rows, folded=True)
    note = (
        f"One point per {word}; small figures label the highest line. "
        "Higher is more throughput, further left is a shorter latency."
    )
    return Section(charts=[Figure(chart, f"By {word}", note)], tables=[table], signs=shown)


def costs_section(source: ReportSource) -> Section:
    powers = [s.row.energy for s in source.measured if s.row.energy]
    unavailable = sorted({power.unavailable for power in powers if power.unavailable})
    columns = columns_of("costs")
    shown = [c for c in columns if any(getattr(s.text, c.key) != DASH for s in source.measured)]
    if not shown:
        return Section(missing="not measured")
    lead = f"Energy is not available: {'; '.join(unavailable)}." if unavailable else ""
    table = ReportTable(
        "From a new process to the first result; largest memory of the worker, Python and runtime included.",
        ["artifact", *(column.title_in("costs") for column in shown)],
        [row_of(s, *(getattr(s.text, column.key) for column in shown)) for s in source.measured],
    )
    return Section(lead, tables=[table])


def history_section(source: ReportSource) -> Section:
    earlier = [run for run in source.results.history or () if isinstance(run, Mapping)]
    this_run = {
        "created": source.results.created or "now",
        "artifacts": {
            s.name: {"speedup": s.speedup.value, "low": s.speedup.low, "high": s.speedup.high}
            for s in source.measured
            if s.speedup
        },
    }
    runs: list[Mapping[str, Any]] = [*earlier, this_run]
    chart = drawing.history_chart(runs, source.measured)
    if not chart:
        return Section(missing="the file holds one run; a further run into the same file adds to the history")
    machines = {str(run["machine"]) for run in earlier if run.get("machine")}
    lead = "The runs are from different machines, which differ in speed." if len(machines) > 1 else ""
    drawn = Figure(chart, f"Speed-up over {len(runs)} runs", "Bars are intervals; the last run is this one.")
    return Section(lead, [drawn], signs=source.measured)


def _result(subject: ReportedArtifact, recommended: ReportedArtifact | None) -> list[Cell]:
    row, text = subject.row, subject.text
    about = f"{text.runtime} · {row.precision} · {row.runs_on}" + (f" · {row.machine}" if row.machine else "")
    if subject.is_baseline:
        about = f"baseline · {about}"
    name = Cell(subject.label, about, subject, tone="chosen" if subject is recommended else "")
    cells = {
        column.key: Cell(getattr(text, column.key) if column.of_file or subject.is_measured else DASH)
        for column in columns_of("report")
    }
    if not subject.is_measured:
        cells["latency"] = Cell(DASH, subject.status)
        return [name, *cells.values()]
    tone = {"faster": "good", "slower": "bad"}.get(subject.verdict, "")
    compared = "\n".join(filter(None, (text.interval, text.verdict)))
    drop, cells["drop"] = subject.drop, Cell(DASH)
    if drop is not None and not subject.is_baseline:
        is_worse = drop.low is not None and drop.low > 0
        cells["drop"] = Cell(text.drop, text.drop_interval, tone="bad" if is_worse else "")
    cells["latency"] = Cell(text.latency, " · ".join(text.tail.split()))
    cells["speedup"] = Cell(text.speedup, compared, tone=tone)
    if subject.is_baseline:
        cells["speedup"] = Cell(text.speedup, "baseline")
    return [name, *cells.values()]


def _classes(subject: ReportedArtifact) -> ReportTable | None:
    rows = [
        [
            Cell(str(change.label)), Cell(f"{change.baseline:.2%}"), Cell(f"{change.value:.2%}"),
            Cell(drop_text(100 * (change.value - change.baseline), "points")), Cell(str(change.samples)),
        ]
        for change in (subject.row.accuracy.per_class or () if subject.row.accuracy else ())[:_CLASSES_SHOWN]
        if change.value != change.baseline
    ]  # fmt: skip
    if not rows:
        return None
    columns = ("class", "baseline", subject.label, "change, points", "samples")
    return ReportTable(f"{subject.label}: classes that changed most.", columns, rows, folded=True)


_STATE_KEYS = ("before", "after", "noise")
_BLOCK_KEYS = ("command", "recipe")
_EMPTY: tuple[object, ...] = (None, "", [], {})
_UNITS = {
    "_bytes": "", "_mhz": ", MHz", "_ms": ", ms", "_us": ", µs", "_s": ", s", "_1min": ", 1 minute",
    "_c": ", °C", "_w": ", W",
}  # fmt: skip


def precision_section(source: ReportSource) -> Section:
    chart = drawing.precision_chart(source.subjects)
    if not chart:
        return Section(missing="no artifact has a manifest with its layers' precisions")
    rows = [
        row_of(s, name, str(sum(kinds.values())), ", ".join(f"{n} {kind}" for kind, n in kinds.items()))
        for s in source.subjects
        for name, kinds in drawing.layers_by_precision(s).items()
    ]
    caption = "Layers by precision and operator, from the artifacts' manifests."
    columns = ("artifact", "precision", "layers", "operators")
    table = ReportTable(caption, columns, rows, words=(0, 1, 3), folded=True)
    drawn = Figure(chart, "Layers by precision", "Precisions of the built artifact, not of the request.")
    return Section(charts=[drawn], tables=[table], precisions=True)


def times_section(source: ReportSource) -> Section:
    timed = [s for s in source.measured if s.row.layer_times_ms]
    if not timed:
        return Section(missing="layer times were not measured (`layer_times`)")
    method, columns = "medians by the runtime's profiler, which slows the layers.", ("layer", "ms", "share")
    tables = [
        ReportTable(f"{s.label}: {method}", columns, [[*map(Cell, cells)] for cells in slowest_layers(s.row)])
        for s in timed
    ]
    return Section(tables=tables)


def layers_section(source: ReportSource) -> Section:
    if not source.layers:
        return _rounding_section(source)
    charts, tables = [], []
    for file, diff in source.layers:
        chart = drawing.errors_chart(diff)
        if not chart:
            continue
        shown, bad = min(len(diff.layers), drawing.WORST_TENSORS), diff.first_bad
        first = "No tensor diverges."
        if bad and bad.tensor:
            node = f", node {bad.node}" if bad.node else ""
            first = f"First diverging tensor: {bad.tensor} ({value_text(bad.operator)}{node})."
        note = f"The worst {shown} of {len(diff.layers)} compared tensors. {first}"
        charts.append(Figure(chart, f"{diff.artifact} against {diff.reference}", note))
        rows = [
            [
                Cell(layer.module or layer.tensor, layer.tensor if layer.module else layer.node),
                Cell(layer.operator or DASH), Cell(decibels(layer.snr_db)),
                Cell(figure(number(layer.max_abs_error))), Cell(figure(number(layer.max_abs))),
            ]
            for layer in diff.layers[:drawing.WORST_TENSORS]
        ]  # fmt: skip
        columns = ("layer", "operator", "SNR", "largest error", "largest value")
        caption = f"{file}: tensors, the worst first."
        tables.append(ReportTable(caption, columns, rows, words=(0, 1), folded=True))
    if not charts:
        return Section(missing="the files of layers hold no tensors")
    return Section(charts=charts, tables=tables)


def _rounding_section(source: ReportSource) -> Section:
    """Return the errors that the calibration's histograms predict for each layer."""
    summaries = summarize(source.ranges) if source.ranges is not None else []
    if source.ranges is None or not summaries:
        return Section(missing="there are neither `layers`, nor layers.json beside the results, nor `ranges`")
    note = (
        f"The worst {min(len(summaries), drawing.WORST_TENSORS)} of {len(summaries)} tensors. The histograms "
        "of the calibration predict the rounding of each layer, without the errors of earlier layers. "
        "`qcompile diff` with `layers` measures both and writes layers.json, which the report shows."
    )
    chart = drawing.rounding_chart(source.ranges, summaries)
    return Section(charts=[Figure(chart, "Rounding to INT8, by layer", note)])


def calibration_section(source: ReportSource) -> Section:
    if source.ranges is None:
        return Section(missing="no ranges were given (`ranges` takes a ranges file)")
    summaries = summarize(source.ranges)
    if not summaries:
        return Section(missing="the ranges hold no histograms")
    lead = (
        f"{counted(source.ranges.samples, 'sample')}, {counted(len(summaries), 'tensor')}, "
        f"method {source.ranges.method}. "
        f"The {counted(min(len(summaries), drawing.WORST_HISTOGRAMS), 'tensor')} with the lowest SNR in "
        "symmetric INT8; "
        "thick lines are the chosen thresholds."
    )
    charts = [
        Figure(
            drawing.histogram_chart(source.ranges, tensor),
            tensor.tensor,
            f"{'no error' if number(tensor.snr_db) is None else f'{figure(tensor.snr_db)} dB'} after "
            f"quantization, {tensor.clipped:.2%} of the values clipped. Thresholds: "
            + ", ".join(f"{method} {figure(amax)}" for method, amax in tensor.amax.items())
            + ".",
        )
        for tensor in summaries[: drawing.WORST_HISTOGRAMS]
    ]
    return Section(lead, charts, pairs=True, lines={method: LINES[method] for method in summaries[0].amax})


def failures_section(source: ReportSource) -> Section:
    """Return the artifacts without a latency, each with its reason, and the warnings of all."""
    rows, blocks = [], []
    for subject in source.subjects:
        if subject.is_measured:
            continue
        rows.append(row_of(subject, subject.status, value_text(subject.row.reason)))
        if subject.row.output_tail:
            blocks.append(Block(f"Last output of {subject.label}", subject.row.output_tail, folded=True))
    items = warning_lines(source.results)
    if not rows and not items:
        return Section(missing="every artifact was measured, without warnings")
    table = ReportTable(
        "Artifacts without measurements.", ("artifact", "status", "reason"), rows, words=(0, 1, 2)
    )
    return Section(tables=[table] if rows else [], blocks=blocks, items=items)


def environment_section(source: ReportSource) -> Section:
    environment = source.results.environment
    noise = environment.get("noise")
    if isinstance(noise, Mapping):
        lead = "The machine was quiet." if not noise.get("noisy") else "The machine was noisy:"
        items = [str(reason) for reason in noise.get("reasons") or ()]
    else:
        lead, items = "The results do not record noise.", []
    fixed = {k: value for k, value in environment.items() if k not in _STATE_KEYS and value not in _EMPTY}
    states = {key: _flat(environment.get(key) or {}) for key in ("before", "after")}
    tables = _values("The machine and the versions.", value=fixed)
    tables += _values("Before and after measuring.", **states)
    if not tables:
        return Section(missing="not recorded")
    return Section(lead, tables=tables, items=items)


def reproduce_section(source: ReportSource) -> Section:
    settings = source.results.settings
    command = settings.get("command")
    blocks = []
    if isinstance(command, list) and command:
        blocks.append(Block("Command", shlex.join(map(str, command))))
    if source.recipe:
        blocks.append(Block("Recipe", source.recipe))
    fixed = {key: value for key, value in settings.items() if key not in _BLOCK_KEYS and value not in _EMPTY}
    tables = _values("Settings of the measuring.", value=fixed)
    if not blocks and not tables:
        return Section(missing="the results hold no settings")
    lead = "" if blocks else "The results hold neither the command nor a recipe (`recipe` adds one)."
    return Section(lead, tables=tables, blocks=blocks)


def _values(caption: str, **columns: Mapping[str, Any]) -> list[ReportTable]:
    """Return a table of names and values with one column per mapping, or no table without values."""
    tables = columns.values()
    keys = [
        key for key in dict.fromkeys(key for table in tables for key in table)
        if any(table.get(key) is not None for table in tables)
    ]  # fmt: skip
    rows = [[Cell(_name(key)), *(Cell(_value(key, table.get(key))) for table in tables)] for key in keys]
    words_at = (0, 1) if len(columns) == 1 else (0,)
    return [ReportTable(caption, ("", *columns), rows, words=words_at, narrow=True)] if rows else []


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _name(key: str) -> str:
    """Return a key as a title: "frequency, MHz" for `frequency_mhz`, "memory" for `memory_bytes`."""
    for ending, unit in _UNITS.items():
        if key.endswith(ending):
            return key.removesuffix(ending).replace("_", " ") + unit
    return key.replace("_", " ")


def _value(key: str, value: object) -> str:
    if key.endswith("_bytes"):
        return bytes_text(number(value))
    return value_text(value) if value is not None else DASH
