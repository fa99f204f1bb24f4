"""Charts of the report: rows with one track per artifact, and plots with two axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...calibration.ranges import Ranges
from ...core.figures import (
    DASH,
    bytes_text,
    counted,
    drop_interval,
    drop_text,
    figure,
    number,
    shortened,
    times,
)
from ..results.render import speedup_text
from ..results.row import Curve, CurvePoint, Interval, Unit
from ..results.statistics import DROP_CONFIDENCE, Speedup
from . import svg
from .range_plots import TensorSummary, histogram_plane
from .source import ReportedArtifact, family_of
from .svg import Point, Scale, escaped, line, mark

if TYPE_CHECKING:
    from ..diff.layers.outcome import LayerDiff

WORST_TENSORS = 24
WORST_HISTOGRAMS = 8

_BINS = 90
_LARGEST_RADIUS, _SMALLEST_RADIUS = 19.0, 4.0  # pixels, of bubbles
_LINEAR_TO = 10.0  # points; beyond, a linear axis would squeeze the small drops together

Row = tuple[str, str, str, str]
"""Number, name, value, and the drawing on its track."""
Counts = dict[str, dict[str, int]]


def latency_chart(subjects: Sequence[ReportedArtifact]) -> str:
    """Draw the latency distribution of each artifact; empty without quantiles."""
    rows, scale, title = latency_tracks(subjects)
    return "" if scale is None else _rows(rows, scale, title, "Distribution of latencies, the median first")


def latency_tracks(subjects: Sequence[ReportedArtifact]) -> tuple[list[Row], Scale | None, str]:
    """Return the rows of the latency distributions, their scale, and its title; no scale without rows."""
    with_quantiles = [(s, s.row.latency_quantiles_ms) for s in subjects if s.row.latency_quantiles_ms]
    if not with_quantiles:
        return [], None, ""
    scale = Scale.over([end for _, values in with_quantiles for end in (values[1], values[99])])
    rows = [
        (str(s.number), s.name, f"{figure(v[50])} · p99 {figure(v[99])} ms", _violin(scale, s, v))
        for s, v in with_quantiles
    ]
    return rows, scale, f"latency of a call, ms{', logarithmic scale' if scale.kind == 'log' else ''}"


def speedup_chart(subjects: Sequence[ReportedArtifact], baseline: str, intervals: str) -> str:
    """Draw the speed-ups, with intervals named by `intervals` and a line at 1; empty without speed-ups."""
    values = [(s, s.speedup, " ".join(speedup_text(s.speedup))) for s in subjects if s.speedup is not None]
    low, high = _bounds([speedup for _, speedup, _ in values], 1.0)
    low = max(low, 1e-3)
    scale = Scale(low * 0.93, high * 1.07, "log") if high > 2 * low else Scale(low - 0.02, high + 0.02)
    title = f"times as fast as {baseline if len(baseline) <= 28 else 'the baseline'}"
    label = f"Speed-up against {baseline}, {intervals}"
    return _intervals(values, scale, title, label, (1.0, "slower", "faster"), "{}×")


def drop_chart(subjects: Sequence[ReportedArtifact], metric: str) -> str:
    """Draw the drops of accuracy with their intervals and a line at 0; empty without drops."""
    dropped = [(s, s.drop) for s in subjects if s.drop is not None and not s.is_baseline]
    unit = dropped[0][0].drop_unit if dropped else "points"
    values = [(s, drop, _drop_with_interval(drop, unit)) for s, drop in dropped]
    low, high = _bounds([drop for _, drop in dropped], 0.0)
    space = max((high - low) * 0.06, 1e-9 if high > low else 0.05)
    label = f"Drop of {metric}, {DROP_CONFIDENCE:.0%} intervals, {unit}"
    scale = Scale(low - space, high + space)
    return _intervals(values, scale, f"drop of {metric}, {unit}", label, (0.0, "better", "worse"))


def pareto_chart(subjects: Sequence[ReportedArtifact]) -> str:
    """Draw drop against latency with areas by size, or size against latency if the drops do not differ."""
    by_drop = drops_differ(subjects)
    shown = [s for s in subjects if (s.drop if by_drop else s.size_bytes) is not None]
    if len(shown) < 2:
        return ""
    unit, best = shown[0].drop_unit, pareto_front(shown)
    largest = max(s.size_bytes or 0.0 for s in shown) or 1.0
    heights = {s.number: s.drop.value if by_drop and s.drop else (s.size_bytes or 0.0) / 1e6 for s in shown}
    ends = [*heights.values()]
    if by_drop:
        ends += [end for s in shown if s.drop for end in (s.drop.low, s.drop.high) if end is not None]
    low, high = min(ends), max(ends)
    space = max((high - low) * 0.14, abs(high) * 0.02, 0.05)
    x, y = Scale.over([s.latency_ms or 0.0 for s in shown]), Scale(low - space, high + space)
    if by_drop and max(abs(low), abs(high)) > _LINEAR_TO:
        y = Scale(low - max(space, 0.5), high * 1.5, "symlog")
    places = {s.number: (x.at(s.latency_ms or 0.0), y.at(heights[s.number])) for s in shown}
    marks = [line((0, y.at(0)), (100, y.at(0)), "ink")] if by_drop else []
    steps: list[Point] = []  # left to right, each higher on the plot than all before
    for place in sorted(places[s.number] for s in best):
        if not steps or place[1] < steps[-1][1]:
            steps.append(place)
    marks.append(svg.polyline(steps, "muted", width=1.2, dashes="4 3"))
    areas = [(s.size_bytes or 0.0) / largest for s in shown]
    radii = [max(_LARGEST_RADIUS * math.sqrt(share), _SMALLEST_RADIUS) for share in areas]
    for s, radius in sorted(zip(shown, radii, strict=True), key=lambda pair: -pair[1]):
        at, words = places[s.number], [s.name, f"{figure(s.latency_ms)} ms", bytes_text(s.size_bytes)]
        if s.drop:
            words.append(f"drop {_drop_with_interval(s.drop, unit)} {unit}")
            if by_drop:
                marks.append(_whisker(at[0], y, s.drop.low, s.drop.high, s.family, width=1.4, opacity=0.6))
        is_best, fill = s in best, s.family if s.size_bytes else "surface"
        marks.append(svg.tipped(
            svg.circle(at, radius, fill=fill, fill_opacity=0.5 if is_best else 0.18, stroke=s.family,
                       stroke_width=1.8 if is_best else 1) + mark(s.family, *at, size=0.5),
            ", ".join(words),
        ))  # fmt: skip
    marks.append(svg.labels([(*places[s.number], str(s.number)) for s in shown], 336, radii=radii))
    label = f"accuracy drop, {unit} (up is better)" if by_drop else "size, MB (up is smaller)"
    names = ", ".join(s.name for s in shown if s in best)
    grid = svg.axes(x, y, ("median latency of a call, ms", label))
    label = f"Trade-off of accuracy, latency and size; Pareto front: {names}"
    return _plane(grid + "".join(marks), 336, label)


def drops_differ(subjects: Sequence[ReportedArtifact]) -> bool:
    """Return whether the drops differ: equal drops would form a line, so the chart shows sizes instead."""
    return len({s.drop.value for s in subjects if s.drop is not None}) > 1


def pareto_front(subjects: Sequence[ReportedArtifact]) -> list[ReportedArtifact]:
    """Return the artifacts that no other beats: at least as good in latency, drop and size, better in one."""
    costs = {
        s.number: (s.latency_ms or math.inf, s.drop.value if s.drop else math.inf, s.size_bytes or math.inf)
        for s in subjects
    }

    def is_beaten(candidate: tuple[float, ...]) -> bool:
        pairs = (zip(rival, candidate, strict=True) for rival in costs.values() if rival != candidate)
        return any(all(a <= b for a, b in pair) for pair in pairs)

    return [subject for subject in subjects if not is_beaten(costs[subject.number])]


def curves_chart(subjects: Sequence[ReportedArtifact], key: Curve, word: str) -> str:
    """Draw throughput against latency, a point per batch size, number of clients, or number in flight."""
    curves = [(subject, points) for subject in subjects if (points := curve(subject, key))]
    if not curves:
        return ""
    x = Scale.over([point.median_ms for _, points in curves for point in points])
    y = Scale.over([point.throughput_per_s for _, points in curves for point in points], grows_up=True)

    def label(point: CurvePoint, words: str) -> svg.Label:
        return x.at(point.median_ms), y.at(point.throughput_per_s), words

    lines = []
    for s, points in curves:
        speeds = [f"{figure(p.median_ms)} ms, {figure(p.throughput_per_s)} samples/s" for p in points]
        tips = [f"{s.name}, {word} {p.count}: {speed}" for p, speed in zip(points, speeds, strict=True)]
        lines.append((s, [*map(label, points, tips)]))
    highest = max((points for _, points in curves), key=lambda points: points[-1].throughput_per_s)
    highest_speeds = "; ".join(
        f"{s.name} up to {figure(max(point.throughput_per_s for point in points))} samples/s"
        for s, points in curves[:8]
    )
    grid = svg.axes(x, y, ("median latency of a call, ms", "samples per second"))
    minor = [label(point, str(point.count)) for point in highest[:-1]]
    return _lines(lines, 316, f"Throughput against latency by {word}: {highest_speeds}", grid, minor)


_CALLS = 100  # points of a line


def calls_chart(subjects: Sequence[ReportedArtifact]) -> str:
    """Draw latency over the run, as medians of neighbouring calls; empty without stored calls."""
    series = [(s, s.row.calls_ms) for s in subjects]
    return _over_time(series, "ms", "share of its calls, %", "latency of a call, ms", "Latency")


def gpu_memory_chart(subjects: Sequence[ReportedArtifact]) -> str:
    """Draw the GPU memory of each process, round after round; empty without these figures."""
    series = [(s, [used_bytes / 1e6 for used_bytes in s.row.gpu_memory_rounds_bytes]) for s in subjects]
    return _over_time(series, "MB", "share of its rounds, %", "memory on the GPU, MB", "GPU memory")


def _over_time(
    series: Sequence[tuple[ReportedArtifact, Sequence[float]]], unit: str, along: str, up: str, quantity: str
) -> str:
    """Draw a line for each series that is not empty, as medians of neighbouring values."""
    lines = [(s, np.array_split(raw, min(_CALLS, len(raw)))) for s, raw in series if raw]
    if not lines:
        return ""
    medians = [(s, [float(np.median(part)) for part in parts]) for s, parts in lines]
    x, y = Scale(0, 100), Scale.over([value for _, values in medians for value in values], grows_up=True)
    drawn = [
        (
            s,
            [
                (x.at(100 * (i + 0.5) / len(values)), y.at(value), f"{s.name}: {figure(value)} {unit}")
                for i, value in enumerate(values)
            ],
        )
        for s, values in medians
    ]
    grid = svg.axes(x, y, (along, up))
    return _lines(drawn, 256, f"{quantity} of {counted(len(drawn), 'artifact')} from first to last", grid)


def curve(subject: ReportedArtifact, key: Curve) -> list[CurvePoint]:
    points: tuple[CurvePoint, ...] = getattr(subject.row, key)
    return sorted(points, key=lambda point: point.count)


def history_chart(runs: Sequence[Mapping[str, Any]], subjects: Sequence[ReportedArtifact]) -> str:
    """Draw the speed-up of every artifact over runs, oldest first; empty for fewer than two runs."""
    histories: list[tuple[ReportedArtifact, list[tuple[int, float, float | None, float | None]]]] = []
    for s in subjects:
        entries = [(index, (run.get("artifacts") or {}).get(s.name) or {}) for index, run in enumerate(runs)]
        points = [
            (index, value, number(entry.get("low")), number(entry.get("high")))
            for index, entry in entries
            if (value := number(entry.get("speedup"))) is not None and value > 0
        ]
        if len(points) > 1:
            histories.append((s, points))
    if not histories:
        return ""
    ends = [end for _, points in histories for point in points for end in point[1:] if end]
    x, y = Scale(-0.3, len(runs) - 0.7), Scale.over([*ends, 1.0], grows_up=True)
    dates = [str(run.get("created", ""))[:10] for run in runs]
    grid = svg.axes(x, y, ("run", "speed-up"), form="{}×", names=dates)
    grid += line((0, y.at(1.0)), (100, y.at(1.0)), "ink")
    lines = []
    for s, points in histories:
        marks = []
        for run, value, low, high in points:
            grid += _whisker(x.at(run), y, low, high, s.family, width=2.5, opacity=0.5)
            tip = f"{s.name}, {runs[run].get('created', '')}: {times(value)}"
            marks.append((x.at(run), y.at(value), tip))
        lines.append((s, marks))
    return _lines(
        lines, 256, f"Speed-up of {counted(len(histories), 'artifact')} over {len(runs)} runs", grid
    )


def layers_by_precision(subject: ReportedArtifact) -> Counts:
    """Return the number of layers by precision, then by kind of layer; empty if the row has no counts."""
    by_precision: Counts = {}
    for precision, kinds in (subject.row.layers_by_precision or {}).items():
        pairs = kinds.items() if isinstance(kinds, Mapping) else [("layers", kinds)]
        counts = {str(kind): int(count) for kind, value in pairs if (count := number(value)) and count > 0}
        if counts:
            by_precision[precision] = counts
    order = ("float", "mixed", "low", "int8", "half")
    return dict(sorted(by_precision.items(), key=lambda item: (order.index(family_of(item[0])), item[0])))


def precision_chart(subjects: Sequence[ReportedArtifact]) -> str:
    rows: list[Row] = []
    for s, layers in ((subject, layers_by_precision(subject)) for subject in subjects):
        counts = {precision: sum(kinds.values()) for precision, kinds in layers.items()}
        total, start, track = sum(counts.values()), 0.0, ""
        for precision, count in counts.items():
            share = 100.0 * count / total
            kinds = ", ".join(f"{n} {kind}" for kind, n in layers[precision].items())
            track += svg.bar(start, share, family_of(precision), tip=f"{s.name}, {precision}: {kinds}")
            words = f"{precision} {count}"
            if share * 3.0 > 7.2 * len(words) + 8:  # pixels of a phone
                track += svg.text(start + share / 2, 50, words, colour="surface", kind="label")
            start += share
        if counts:
            most = max(counts, key=lambda precision: counts[precision])
            rows.append((str(s.number), s.name, f"{counts[most]} of {total} {most}", track))
    return _rows(rows, Scale(0, 100), "share of the layers, %", "Layers by precision")


def errors_chart(diff: LayerDiff) -> str:
    """Draw the signal-to-noise ratio of the worst tensors; empty without tensors."""
    bad = diff.first_bad.tensor if diff.first_bad else None
    rows = []
    for layer in diff.layers[:WORST_TENSORS]:
        error, largest = figure(number(layer.max_abs_error)), figure(number(layer.max_abs))
        tip = f"{layer.tensor} ({layer.operator}): largest error {error} of {largest}"
        words = f" · {layer.operator or DASH}"
        is_bad = layer.tensor == bad
        rows.append((layer.module or layer.tensor, number(layer.snr_db), words, tip, is_bad))
    first = f"first diverging tensor: {bad}" if bad else "no tensor diverges"
    return _ratios(rows, first)


def rounding_chart(ranges: Ranges, summaries: Sequence[TensorSummary]) -> str:
    """Draw the signal-to-noise ratio that rounding to INT8 leaves each tensor, the worst first."""
    rows = [
        (
            ranges.modules.get(s.tensor, s.tensor),
            number(s.snr_db),
            f" · {s.clipped:.2%} clipped",
            s.tensor,
            False,
        )
        for s in summaries[:WORST_TENSORS]
    ]
    return _ratios(rows, "rounding alone")


def _ratios(layers: Sequence[tuple[str, float | None, str, str, bool]], words: str) -> str:
    """Draw a bar for the name, ratio, note, tooltip and mark "first diverging" of each layer."""
    ratios = [snr for _, snr, *_ in layers if snr is not None] or [1.0]
    scale = Scale(min(0.0, *ratios) * 1.05, max(*ratios, 1.0) * 1.05)
    rows: list[Row] = []
    for name, snr, note, tip, is_bad in layers:
        start, end = sorted((scale.at(0.0), scale.at(scale.high if snr is None else snr)))
        colour, opacity = "bad" if is_bad else "float", 0.85 if snr is not None else 0.2
        value = (
            f"{'first diverging · ' if is_bad else ''}{'equal' if snr is None else f'{figure(snr)} dB'}{note}"
        )
        rows.append(("", name, value, svg.bar(start, end - start, colour, opacity=opacity, tip=tip)))
    label = f"Signal-to-noise ratio of {counted(len(rows), 'tensor')}, the worst first; {words}"
    return _rows(rows, scale, "signal-to-noise ratio, dB (longer is better)", label)


def histogram_chart(ranges: Ranges, summary: TensorSummary) -> str:
    label = f"Histogram of {summary.tensor}: {figure(summary.min)} to {figure(summary.max)}"
    return _plane(histogram_plane(ranges, summary), 150, label)


def density(values: Sequence[float], *, logarithmic: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return places between the 1st and 99th of 101 quantiles, and the density of calls there, at most 1:
    per millisecond, or per factor on a logarithmic axis."""
    positions = np.log(values) if logarithmic else np.asarray(values, np.float64)
    low, high = positions[1], positions[99]
    if not high > low:
        return np.array([values[50]]), np.array([1.0])
    edges = np.linspace(low, high, _BINS + 1)
    # Equal quantiles form a step of the distribution: `interp` takes its upper end.
    mass = np.diff(np.interp(edges, positions, np.arange(len(positions))))
    kernel = np.exp(-0.5 * (np.arange(-8, 9) / 3.0) ** 2)
    smooth = np.convolve(np.pad(mass, 8), kernel / kernel.sum(), mode="valid")
    middles = (edges[1:] + edges[:-1]) / 2
    return np.exp(middles) if logarithmic else middles, smooth / max(smooth.max(), 1e-12)


def _violin(scale: Scale, subject: ReportedArtifact, values: Sequence[float]) -> str:
    places, width = density(values, logarithmic=scale.kind == "log")
    upper = [(scale.at(place), 50 - 31 * share) for place, share in zip(places, width, strict=True)]
    outline = upper + [(x, 100 - y) for x, y in reversed(upper)]
    named = (("min", 0), ("p25", 25), ("median", 50), ("p75", 75), ("p90", 90), ("p99", 99), ("max", 100))
    tip = f"{subject.name}: {', '.join(f'{name} {figure(values[at])}' for name, at in named)} ms"
    x = [scale.at(value) for value in values]
    return (
        svg.area(outline, subject.family, opacity=0.28, tip=tip)
        + line((x[1], 50), (x[99], 50), subject.family, width=1.4)
        + line((x[25], 50), (x[75], 50), subject.family, width=5)
        + svg.circle((x[50], 50), 3.6, fill="surface", stroke=subject.family, stroke_width=2)
    )


def _intervals(
    values: Sequence[tuple[ReportedArtifact, Interval | Speedup, str]], scale: Scale, title: str, label: str,
    reference: tuple[float, str, str], form: str = "{}",
) -> str:  # fmt: skip
    rows: list[Row] = []
    for s, interval, words in values:
        track = ""
        if interval.low is not None and interval.high is not None:
            low, high = scale.at(interval.low), scale.at(interval.high)
            track = line((low, 50), (high, 50), s.family, width=3, opacity=0.55)
            track += "".join(line((end, 37), (end, 63), s.family, width=1.6) for end in (low, high))
        verdict = f" ({s.verdict})" if isinstance(interval, Speedup) else f" {s.drop_unit}"
        track += mark(s.family, scale.at(interval.value), 50, tip=f"{s.name}: {words}{verdict}")
        rows.append((str(s.number), s.name, words, track))
    return _rows(rows, scale, title, label, form=form, reference=reference)


def _rows(
    rows: Sequence[Row], scale: Scale, title: str, label: str, *, form: str = "{}",
    reference: tuple[float, str, str] | None = None,
) -> str:  # fmt: skip
    """Draw rows of a number, a name, a track and a value above one axis; empty without rows."""
    if not rows:
        return ""
    ticks = [(scale.at(tick), form.format(svg.plain(tick))) for tick in scale.ticks(5)]
    grid, head = "".join(line((at, 0), (at, 100)) for at, _ in ticks), ""
    if reference is not None:
        at = scale.at(reference[0])
        grid += line((at, 0), (at, 100), "ink", width=1.2)
        sides = svg.text(at, 100, f"← {reference[1]}", shift=(-6, -5), anchor="end") if at >= 20 else ""
        sides += svg.text(at, 100, f"{reference[2]} →", shift=(6, -5), anchor="start") if at <= 80 else ""
        head = f'<div class="row head"><svg class="track">{sides}</svg></div>'
    body = "".join(
        f'<div class="row"><span class="no">{number_of_row}</span>'
        f'<span class="name" title="{escaped(name)}">{escaped(shortened(name, 34))}</span>'
        f'<svg class="track">{grid}{track}</svg><span class="value">{escaped(value)}</span></div>'
        for number_of_row, name, value, track in rows
    )
    words = "".join(svg.text(at, 0, tick, shift=(0, 16)) for at, tick in ticks)
    words += svg.text(50, 0, title, shift=(0, 36), size=12)
    axis = f'<div class="row axis"><svg class="track">{words}</svg></div>'
    label = escaped(f"{label}: {'; '.join(f'{name} {value}' for _, name, value, _ in rows[:8])}")
    return f'<div class="rows" role="img" aria-label="{label}">{head}{body}{axis}</div>'


def _lines(
    lines: Sequence[tuple[ReportedArtifact, Sequence[svg.Label]]], height: int, label: str, grid: str,
    minor: Sequence[svg.Label] = (),
) -> str:  # fmt: skip
    drawing, ends = grid, []
    for index, (s, points) in enumerate(lines):
        dashes = svg.DASHES[index // 2 % len(svg.DASHES)]
        drawing += svg.polyline([(x, y) for x, y, _ in points], s.family, width=1.8, dashes=dashes)
        drawing += "".join(mark(s.family, x, y, size=0.8, tip=tip) for x, y, tip in points)
        ends.append((*points[-1][:2], str(s.number)))
    return _plane(drawing + svg.labels(ends, height, minor=minor), height, label)


def _plane(drawing: str, height: int, label: str) -> str:
    plot = f'<svg width="100%" height="{height}">{drawing}</svg>'
    return f'<div class="plane" role="img" aria-label="{escaped(label)}">{plot}</div>'


def _whisker(x: float, y: Scale, low: float | None, high: float | None, family: str, **style: Any) -> str:
    return "" if low is None or high is None else line((x, y.at(low)), (x, y.at(high)), family, **style)


def _drop_with_interval(drop: Interval, unit: Unit) -> str:
    return f"{drop_text(drop.value, unit)} {drop_interval(drop.low, drop.high, unit)}".strip()


def _bounds(intervals: Sequence[Interval | Speedup], reference: float) -> Point:
    ends = [end for i in intervals for end in (i.value, i.low, i.high) if end is not None]
    return min([*ends, reference]), max([*ends, reference])
