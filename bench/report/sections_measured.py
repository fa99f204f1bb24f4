"""Sections of what was measured: the table, speed, trade-offs, accuracy, sweeps, costs, history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .charts_curves import curve, curves_chart, history_chart
from .charts_speed import drop_chart, latency_chart, speedup_chart
from .charts_tradeoff import drops_differ, pareto_chart
from .formats import (
    DASH,
    accuracy_text,
    bytes_text,
    drop_interval,
    drop_text,
    figure,
    interval,
    number,
    times,
)
from .parts import Cell, Drawn, Section, Table
from .source import Source, Subject

_RUNTIMES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "pytorch": "PyTorch",
    "torchscript": "TorchScript",
    "tensorrt": "TensorRT",
    "tensorrt-rtx": "TensorRT-RTX",
}
_SWEEPS = {
    "batches": ("batch_size", "batch size", "Batch sizes", "--batch-sizes 1,8,32"),
    "concurrency": ("clients", "number of clients", "Concurrent clients", "--clients 1,2,4"),
}
_CLASSES_SHOWN = 10


def results_section(source: Source, chosen: Subject | None) -> Section:
    """The table that papers print; `chosen` is the recommended artifact."""
    columns = ("method", "latency, ms", "speed-up", "size", "reduction", "accuracy", "drop")
    metric = next((str(s.part("accuracy")["metric"]) for s in source.measured if s.part("accuracy")), "")
    unit = next((s.drop_unit for s in source.measured if s.drop), "points")
    caption = (
        "Median latency of a call with its 90th and 99th percentile below; speed-up against the baseline "
        "with its 95% interval; reduction: how many times smaller than the baseline's file, or than the "
        "first FP32 file where the baseline has none"
    )
    if metric:
        caption += f"; accuracy: {metric}, its drop in {unit} with the 95% interval"
    table = Table(f"{caption}.", columns, [_result(subject, chosen) for subject in source.subjects])
    contains = sorted({str(s.entry["contains"]) for s in source.measured if s.entry.get("contains")})
    lead = f"A latency contains: {'; '.join(contains)}." if contains else ""
    return Section("results", "Results", lead, tables=[table])


def speed_section(source: Source) -> Section:
    """Speed-ups with their intervals."""
    base = source.baseline.label if source.baseline else ""
    chart = speedup_chart(source.measured, base)
    if chart is None:
        return Section("speed", "Speed-up", missing="no artifact was compared with the baseline")
    note = (
        f"The mark is the {_launches(source)}, the bar its 95% interval. "
        "Where the bar crosses the line, no difference may be claimed."
    )
    drawn = Drawn(chart, f"Speed-up against {base}", note)
    return Section("speed", "Speed-up", charts=[drawn], precisions=True)


def _launches(source: Source) -> str:
    """How often the artifacts were started: what the intervals rest on."""
    counts = [number(s.part("speedup").get("launches")) or 1.0 for s in source.measured if s.speedup]
    least, most = int(min(counts)), int(max(counts))
    if most == 1:
        return "median of one launch's rounds"
    return f"mean over {most if least == most else f'{least} to {most}'} launches"


def latency_section(source: Source) -> Section:
    """Where every call lies."""
    chart = latency_chart(source.measured)
    if chart is None:
        reason = "the results hold no quantiles of the calls (files of version 1 have none)"
        return Section("latency", "Latency distributions", missing=reason)
    note = (
        "Shape: how often a call took so long, from the 1st to the 99th percentile. "
        "Thick bar: the middle half of the calls. Ring: the median."
    )
    drawn = Drawn(chart, "Latency of every timed call", note)
    return Section("latency", "Latency distributions", charts=[drawn], precisions=True)


def tradeoff_section(source: Source) -> Section:
    """Accuracy, latency and size at once."""
    chart = pareto_chart(source.measured)
    if chart is None:
        reason = "at least two artifacts with a latency and an accuracy or a size are needed"
        return Section("tradeoff", "Accuracy, latency and size", missing=reason)
    note = (
        "Area is the file's size; a small ring has no file of its own. Strong: beaten by no other in all "
        "three. The dashed line joins the best in latency and the vertical axis."
    )
    if not drops_differ(source.measured):
        note = f"No accuracy differs, or none was measured: size against latency. {note}"
    drawn = Drawn(chart, "The trade-off", note)
    return Section("tradeoff", "Accuracy, latency and size", charts=[drawn], signs=source.measured)


def accuracy_section(source: Source) -> Section:
    """Drops with their intervals, agreement, classes."""
    found = [s for s in source.measured if s.drop is not None]
    metric = str(found[0].part("accuracy").get("metric")) if found else ""
    chart = drop_chart(found, metric)
    if chart is None:
        reason = "accuracy was not measured (--evaluation gives labelled samples)"
        if found:
            reason = "only the baseline's accuracy was measured"
        return Section("accuracy", "Accuracy", missing=reason)
    base = source.baseline
    samples = found[0].part("accuracy").get("samples")
    value = accuracy_text(number(base.part("accuracy").get("value")), base.drop_unit) if base else DASH
    lead = f"{base.label if base else 'The baseline'} reaches {value} {metric} on {samples} samples."
    note = "Below 0 the artifact is better. The bar is the 95% interval of a paired bootstrap."
    agreement = [
        [Cell(s.label, subject=s), Cell(f"{share:.2%}"), Cell(_difference(s.part("difference")))]
        for s in found
        if (share := number(s.part("accuracy").get("agreement"))) is not None
    ]
    tables = []
    if agreement:
        columns = ("artifact", "same prediction", "output SNR")
        tables.append(Table("How often artifacts answer as the baseline does.", columns, agreement))
    tables += [table for s in found if (table := _classes(s))]
    drawn = Drawn(chart, f"Drop of {metric} against {base.label if base else 'the baseline'}", note)
    return Section("accuracy", "Accuracy", lead, [drawn], tables)


def sweep_section(source: Source, key: str) -> Section:
    """Throughput against latency over batch sizes or clients."""
    count, word, title, option = _SWEEPS[key]
    chart = curves_chart(key, source.measured, key, count)
    if chart is None:
        return Section(key, title, missing=f"no artifact was measured over them ({option})")
    shown = [s for s in source.measured if curve(s, key, count)]
    rows = [
        [
            Cell(s.label, subject=s),
            Cell(f"{n:g}"),
            Cell(figure(x)),
            Cell(_p99(s, key, count, n)),
            Cell(figure(y)),
        ]
        for s in shown
        for n, x, y in curve(s, key, count)
    ]
    columns = ("artifact", word, "median, ms", "p99, ms", "samples/s")
    table = Table(f"Throughput and latency by {word}.", columns, rows, folded=True)
    note = (
        f"A point per {word}, growing along each line; small figures tell it on the highest. "
        "Up is more throughput, left is a quicker answer."
    )
    return Section(key, title, charts=[Drawn(chart, f"By {word}", note)], tables=[table], signs=shown)


def costs_section(source: Source) -> Section:
    """Start, memory, energy."""
    rows, energy = [], set[str]()
    for s in source.measured:
        cold, power = s.part("cold_start_ms"), s.part("energy")
        if power.get("unavailable"):
            energy.add(str(power["unavailable"]))
        load = number(cold.get("load"))
        cells = [
            figure(number(cold.get("process"))),
            figure(number(s.entry.get("load_ms")) if load is None else load),
            figure(number(cold.get("first_result"))),
            figure(number(cold.get("total"))),
            bytes_text(number(s.entry.get("peak_memory_bytes"))),
            bytes_text(number(s.entry.get("gpu_memory_bytes"))),
            figure(number(power.get("mj_per_sample"))),
        ]
        rows.append([Cell(s.label, subject=s), *map(Cell, cells)])
    columns = (
        "artifact", "process, ms", "load, ms", "first result, ms", "cold start, ms", "peak memory",
        "GPU memory", "energy, mJ/sample",
    )  # fmt: skip
    kept = [0, *(i for i in range(1, len(columns)) if any(row[i].text != DASH for row in rows))]
    if len(kept) == 1:
        return Section("costs", "Start, memory, energy", missing="nothing of it was measured")
    lead = f"Energy is not available: {'; '.join(sorted(energy))}." if energy else ""
    table = Table(
        "From a new process to the first result; largest memory of the worker, Python and runtime included.",
        [columns[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
    )
    return Section("costs", "Start, memory, energy", lead, tables=[table])


def history_section(source: Source) -> Section:
    """Speed-ups over the runs that were written to the same file."""
    earlier = [run for run in source.results.get("history") or () if isinstance(run, Mapping)]
    now = {
        "created": source.results.get("created") or "now",
        "artifacts": {
            s.name: {"speedup": s.speedup.value, "low": s.speedup.low, "high": s.speedup.high}
            for s in source.measured
            if s.speedup
        },
    }
    runs: list[Mapping[str, Any]] = [*earlier, now]
    chart = history_chart(runs, source.measured)
    if chart is None:
        reason = "the file holds one run; measuring again into the same file keeps its history"
        return Section("history", "History", missing=reason)
    machines = {str(run["machine"]) for run in earlier if run.get("machine")}
    lead = "Runs of different machines are beside each other: compare with care." if len(machines) > 1 else ""
    drawn = Drawn(
        chart, f"Speed-up over {len(runs)} runs", "Bars are 95% intervals; the last run is this one."
    )
    return Section("history", "History", lead, [drawn], signs=source.measured)


def _result(subject: Subject, chosen: Subject | None) -> list[Cell]:
    row, latency = subject.row, subject.part("latency_ms")
    engine = str(subject.entry.get("engine", ""))
    mode = subject.entry.get("mode")
    how = [_RUNTIMES.get(engine, engine), *([str(mode)] if mode and engine == "pytorch" else ())]
    about = " · ".join(
        [" ".join(how), str(subject.entry.get("precision", "")), str(subject.entry.get("runs_on", ""))]
    )
    if subject.is_baseline:
        about = f"baseline · {about}"
    name = Cell(subject.label, about, subject, tone="chosen" if subject is chosen else "")
    size = Cell(bytes_text(subject.size_bytes))
    reduction = Cell(times(number(row.get("reduction"))))
    if not subject.is_measured:
        status = Cell(DASH, str(subject.entry.get("status") or "not measured"))
        return [name, status, Cell(DASH), size, reduction, Cell(DASH), Cell(DASH)]
    tail = [number(latency.get("p90")), number(latency.get("p99"))]
    below = " · ".join(figure(value) for value in tail) if any(tail) else ""
    return [
        name,
        Cell(figure(subject.latency_ms), below),
        _speedup(subject),
        size,
        reduction,
        Cell(accuracy_text(number(row.get("accuracy")), subject.drop_unit)),
        _drop(subject),
    ]


def _speedup(subject: Subject) -> Cell:
    if subject.is_baseline:
        return Cell(times(1.0), "baseline")
    if subject.speedup is None:
        return Cell(DASH)
    shown = interval(subject.speedup.low, subject.speedup.high)
    tone = {"faster": "good", "slower": "bad"}.get(subject.verdict, "")
    verdict = "" if subject.verdict == "faster" else subject.verdict
    below = "\n".join(text for text in (shown, verdict) if text)
    return Cell(times(subject.speedup.value), below, tone=tone)


def _drop(subject: Subject) -> Cell:
    if subject.drop is None or subject.is_baseline:
        return Cell(DASH)
    low, high, unit = subject.drop.low, subject.drop.high, subject.drop_unit
    return Cell(
        drop_text(subject.drop.value, unit),
        drop_interval(low, high, unit),
        tone="bad" if low and low > 0 else "",
    )


def _difference(found: Mapping[str, Any]) -> str:
    if not found:
        return DASH
    snr = number(found.get("snr_db"))
    text = "equal" if snr is None else f"{figure(snr)} dB"
    return text if found.get("passed") is not False else f"{text}, mismatch"


def _classes(subject: Subject) -> Table | None:
    """The classes whose value changed most; None where none did."""
    found: Sequence[Mapping[str, Any]] = subject.part("accuracy").get("per_class") or ()
    rows = []
    for item in found[:_CLASSES_SHOWN]:
        before, after = number(item.get("baseline")), number(item.get("value"))
        if before is None or after is None or before == after:
            continue
        change = drop_text(100 * (after - before), "points")
        rows.append([
            Cell(str(item.get("label"))), Cell(f"{before:.2%}"), Cell(f"{after:.2%}"), Cell(change),
            Cell(str(item.get("samples", DASH))),
        ])  # fmt: skip
    if not rows:
        return None
    columns = ("class", "baseline", subject.label, "change, points", "samples")
    return Table(f"{subject.label}: classes that changed most.", columns, rows, folded=True)


def _p99(subject: Subject, key: str, count: str, n: float) -> str:
    point = next((item for item in subject.parts(key) if number(item.get(count)) == n), {})
    return figure(number(point.get("p99_ms")))
