"""Sections of measurements: results, speed, trade-offs, accuracy, sweeps, costs, history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import astuple

from ..bench.results.render import columns_of, interval_words
from ..bench.results.row import Curve
from ..bench.statistics import DROP_CONFIDENCE, SMALLEST_DIFFERENCE
from ..figures import DASH, drop_text, figure
from .charts import (
    curve,
    curves_chart,
    drop_chart,
    drops_differ,
    history_chart,
    latency_chart,
    pareto_chart,
    speedup_chart,
)
from .source import Cell, Drawn, ReportedArtifact, Section, Source, Table, row_of

_SWEEPS: dict[Curve, tuple[str, str]] = {
    "batches": ("batch size", "`batch_sizes` 1,8,32"),
    "concurrency": ("number of clients", "`clients` 1,2,4"),
    "in_flight": ("inferences in flight", "`streams` 1,2,4, on a GPU"),
}
_CLASSES_SHOWN = 10


def results_section(source: Source, chosen: ReportedArtifact | None) -> Section:
    """The table that papers print; `chosen` is the recommended artifact."""
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
    table = Table(f"{caption}.", columns, [_result(subject, chosen) for subject in source.subjects])
    contains = sorted({s.row.contains for s in source.measured if s.row.contains})
    lead = f"A latency contains: {'; '.join(contains)}." if contains else ""
    details = columns_of("details")
    further = Table(
        "Saved: the share of the baseline's. Difference: absolute, from the baseline's outputs.",
        ["method", *(column.title_in("details") for column in details)],
        [row_of(s, *(getattr(s.text, column.key) for column in details)) for s in source.measured],
        folded=True,
    )
    return Section(lead, tables=[table, further])


def speed_section(source: Source) -> Section:
    base = source.baseline.label if source.baseline else ""
    shown = interval_words(source.results.confidence)
    chart = speedup_chart(source.measured, base, shown)
    if not chart:
        return Section(missing="no artifact was compared with the baseline")
    counts = [s.speedup.launches for s in source.measured if s.speedup]
    least, most = min(counts), max(counts)
    mean = f"mean over {most if least == most else f'{least} to {most}'} launches"
    mark = mean if most > 1 else "median of one launch's rounds"
    note = (
        f"The mark is the {mark}, the bar its {shown}. "
        f"A difference is claimed where all of the bar is {SMALLEST_DIFFERENCE:.0%} or more beyond the line."
    )
    drawn = Drawn(chart, f"Speed-up against {base}", note)
    return Section(charts=[drawn], precisions=True)


def latency_section(source: Source) -> Section:
    chart = latency_chart(source.measured)
    if not chart:
        return Section(missing="the results hold no quantiles of the calls (files of version 1 have none)")
    note = (
        "Shape: how often a call took so long, from the 1st to the 99th percentile. "
        "Thick bar: the middle half of the calls. Ring: the median."
    )
    drawn = Drawn(chart, "Latency of every timed call", note)
    by_gpu = [
        row_of(s, *map(figure, astuple(s.row.gpu_latency))) for s in source.measured if s.row.gpu_latency
    ]
    columns = ("artifact", "compute, ms", "with copies, ms", "host's enqueue, ms")
    tables = [Table("By the GPU's clock, medians.", columns, by_gpu)] if by_gpu else []
    return Section(charts=[drawn], tables=tables, precisions=True)


def tradeoff_section(source: Source) -> Section:
    chart = pareto_chart(source.measured)
    if not chart:
        return Section(missing="at least two artifacts with a latency and an accuracy or a size are needed")
    note = (
        "Area is the file's size; a small ring has no file of its own. Strong: beaten by no other in all "
        "three. The dashed line joins the best in latency and the vertical axis."
    )
    if not drops_differ(source.measured):
        note = f"No accuracy differs, or none was measured: size against latency. {note}"
    drawn = Drawn(chart, "The trade-off", note)
    return Section(charts=[drawn], signs=source.measured)


def accuracy_section(source: Source) -> Section:
    dropped = [s for s in source.measured if s.drop is not None]
    metric = dropped[0].row.accuracy.metric if dropped and dropped[0].row.accuracy else ""
    chart = drop_chart(dropped, metric)
    if not chart:
        if dropped:
            return Section(missing="only the baseline's accuracy was measured")
        return Section(missing="accuracy was not measured (`evaluation` gives labelled samples)")
    base = source.baseline
    samples = dropped[0].row.accuracy.samples if dropped[0].row.accuracy else None
    value = base.text.accuracy if base else DASH
    lead = f"{base.label if base else 'The baseline'} reaches {value} {metric} on {samples} samples."
    chosen = source.results.settings.get("metric_note")
    if chosen and isinstance(chosen, str):
        lead += f" Accuracy is {chosen}."
    note = (
        f"Below 0 the artifact is better. The bar is the {DROP_CONFIDENCE:.0%} interval (paired bootstrap)."
    )
    agreement = [
        row_of(s, f"{share:.2%}", s.text.difference)
        for s in dropped
        if s.row.accuracy and (share := s.row.accuracy.agreement) is not None
    ]
    tables = []
    if agreement:
        columns = ("artifact", "same prediction", "output SNR")
        tables.append(Table("How often artifacts answer as the baseline does.", columns, agreement))
    tables += [table for s in dropped if (table := _classes(s))]
    drawn = Drawn(chart, f"Drop of {metric} against {base.label if base else 'the baseline'}", note)
    return Section(lead, [drawn], tables)


def sweep_section(source: Source, key: Curve) -> Section:
    """Throughput against latency over batch sizes, clients, or inferences in flight."""
    word, option = _SWEEPS[key]
    chart = curves_chart(source.measured, key, word)
    if not chart:
        return Section(missing=f"no artifact was measured over them ({option})")
    shown = [s for s in source.measured if curve(s, key)]
    rows = [
        row_of(s, str(point.count), *map(figure, (point.median_ms, point.p99_ms, point.throughput_per_s)))
        for s in shown
        for point in curve(s, key)
    ]
    columns = ("artifact", word, "median, ms", "p99, ms", "samples/s")
    table = Table(f"Throughput and latency by {word}.", columns, rows, folded=True)
    note = (
        f"A point per {word}, growing along each line; small figures tell it on the highest. "
        "Up is more throughput, left is a quicker answer."
    )
    return Section(charts=[Drawn(chart, f"By {word}", note)], tables=[table], signs=shown)


def costs_section(source: Source) -> Section:
    powers = [s.row.energy for s in source.measured if s.row.energy]
    unavailable = sorted({power.unavailable for power in powers if power.unavailable})
    columns = columns_of("costs")
    shown = [one for one in columns if any(getattr(s.text, one.key) != DASH for s in source.measured)]
    if not shown:
        return Section(missing="nothing of it was measured")
    lead = f"Energy is not available: {'; '.join(unavailable)}." if unavailable else ""
    table = Table(
        "From a new process to the first result; largest memory of the worker, Python and runtime included.",
        ["artifact", *(column.title_in("costs") for column in shown)],
        [row_of(s, *(getattr(s.text, column.key) for column in shown)) for s in source.measured],
    )
    return Section(lead, tables=[table])


def history_section(source: Source) -> Section:
    """Speed-ups over the runs that were written to the same file."""
    earlier = [run for run in source.results.history or () if isinstance(run, Mapping)]
    now = {
        "created": source.results.created or "now",
        "artifacts": {
            s.name: {"speedup": s.speedup.value, "low": s.speedup.low, "high": s.speedup.high}
            for s in source.measured
            if s.speedup
        },
    }
    runs: list[Mapping[str, Any]] = [*earlier, now]
    chart = history_chart(runs, source.measured)
    if not chart:
        return Section(missing="the file holds one run; measuring again into the same file keeps its history")
    machines = {str(run["machine"]) for run in earlier if run.get("machine")}
    lead = "Runs of different machines are beside each other: compare with care." if len(machines) > 1 else ""
    drawn = Drawn(chart, f"Speed-up over {len(runs)} runs", "Bars are intervals; the last run is this one.")
    return Section(lead, [drawn], signs=source.measured)


def _result(subject: ReportedArtifact, chosen: ReportedArtifact | None) -> list[Cell]:
    row, text = subject.row, subject.text
    about = f"{text.runtime} · {row.precision} · {row.runs_on}" + (f" · {row.machine}" if row.machine else "")
    if subject.is_baseline:
        about = f"baseline · {about}"
    name = Cell(subject.label, about, subject, tone="chosen" if subject is chosen else "")
    cells = {
        one.key: Cell(getattr(text, one.key) if one.of_file or subject.is_measured else DASH)
        for one in columns_of("report")
    }
    if not subject.is_measured:
        status = "no latency" if row.status == "measured" else row.status
        cells["latency"] = Cell(DASH, status)
        return [name, *cells.values()]
    tone = {"faster": "good", "slower": "bad"}.get(subject.verdict, "")
    compared = "\n".join(filter(None, (text.interval, text.verdict)))
    drop, cells["drop"] = subject.drop, Cell(DASH)
    if drop is not None and not subject.is_baseline:
        is_worse = drop.low is not None and drop.low > 0
        cells["drop"] = Cell(text.drop, text.drop_interval, tone="bad" if is_worse else "")
    cells["latency"] = Cell(text.latency, " · ".join(text.tail.split()))
    is_baseline = subject.is_baseline
    cells["speedup"] = (
        Cell(text.speedup, "baseline") if is_baseline else Cell(text.speedup, compared, tone=tone)
    )
    return [name, *cells.values()]


def _classes(subject: ReportedArtifact) -> Table | None:
    """The classes whose value changed most; None where none did."""
    rows = [
        [
            Cell(str(one.label)), Cell(f"{one.baseline:.2%}"), Cell(f"{one.value:.2%}"),
            Cell(drop_text(100 * (one.value - one.baseline), "points")), Cell(str(one.samples)),
        ]
        for one in (subject.row.accuracy.per_class or () if subject.row.accuracy else ())[:_CLASSES_SHOWN]
        if one.value != one.baseline
    ]  # fmt: skip
    if not rows:
        return None
    columns = ("class", "baseline", subject.label, "change, points", "samples")
    return Table(f"{subject.label}: classes that changed most.", columns, rows, folded=True)
