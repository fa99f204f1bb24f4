"""Line charts: throughput against latency, and speed-ups over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..bench.results.row import Curve, CurvePoint
from ..figures import figure, number, times
from .canvas import COLOURS, Canvas, Chart, draw
from .charts_speed import MARKERS
from .planes import place_labels, plane, scale
from .source import ReportedArtifact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))


def curves_chart(subjects: Sequence[ReportedArtifact], key: Curve, word: str) -> Chart | None:
    """Draw throughput against latency, a point per batch size, number of clients, or number in flight.

    Args:
        subjects: All.
        key: Which curve of a row.
        word: What its points are counted in.
    """
    curves = [(subject, points) for subject in subjects if (points := curve(subject, key))]
    if not curves:
        return None

    def paint(canvas: Canvas) -> Figure:
        height, left = (330, 56) if canvas.is_narrow else (400, 70)
        made, axes = plane(canvas, height, "median latency of a call, ms", "samples per second", left=left)
        everything = [point for _, points in curves for point in points]
        scale(
            axes, [point.median_ms for point in everything], upright=False, most=4 if canvas.is_narrow else 6
        )
        scale(axes, [point.throughput_per_s for point in everything], upright=True, most=6)
        for index, (subject, points) in enumerate(curves):
            _curve(canvas, axes, subject, points, word, style=_STYLES[index // 2 % len(_STYLES)])
        ends = [
            (points[-1].median_ms, points[-1].throughput_per_s, str(subject.number))
            for subject, points in curves
        ]
        best = max((points for _, points in curves), key=lambda points: points[-1].throughput_per_s)
        counts = [(one.median_ms, one.throughput_per_s, str(one.count)) for one in best[:-1]]
        place_labels(axes, ends, others=counts)
        return made

    told = "; ".join(
        f"{s.name} up to {figure(max(one.throughput_per_s for one in points))} samples/s"
        for s, points in curves[:8]
    )
    return draw(key, f"Throughput against latency by {word}: {told}", paint)


def curve(subject: ReportedArtifact, key: Curve) -> list[CurvePoint]:
    """Return the points of a curve in order of the count."""
    points: tuple[CurvePoint, ...] = getattr(subject.row, key)
    return sorted(points, key=lambda point: point.count)


def history_chart(runs: Sequence[Mapping[str, Any]], subjects: Sequence[ReportedArtifact]) -> Chart | None:
    """Draw the speed-up of every artifact over runs, oldest first; None for fewer than two runs."""
    lines = [(s, points) for s in subjects if len(points := _over_time(runs, s.name)) > 1]
    if not lines:
        return None

    def paint(canvas: Canvas) -> Figure:
        made, axes = plane(canvas, 300 if canvas.is_narrow else 340, "run", "speed-up", left=48)
        ends = [end for _, points in lines for point in points for end in point[1:] if end]
        scale(axes, [*ends, 1.0], upright=True, most=6, form="{}×")
        axes.set_xlim(-0.3, len(runs) - 0.7)
        step = max(1, math.ceil(len(runs) / (3 if canvas.is_narrow else 8)))
        ticks = list(range(len(runs) - 1, -1, -step))
        axes.set_xticks(ticks, labels=[str(runs[at].get("created", ""))[:10] for at in ticks])
        axes.axhline(1.0, color=COLOURS["ink"], linewidth=1)
        for index, (subject, points) in enumerate(lines):
            colour, style = COLOURS[subject.family], _STYLES[index // 2 % len(_STYLES)]
            axes.plot(
                [p[0] for p in points], [p[1] for p in points], color=colour, linewidth=1.6, linestyle=style
            )
            for at, value, low, high in points:
                if low and high:
                    axes.plot([at, at], [low, high], color=colour, linewidth=2.5, alpha=0.5)
                (dot,) = axes.plot([at], [value], MARKERS[subject.family], color=colour, markersize=6, mew=0)
                canvas.tip(dot, f"{subject.name}, {runs[int(at)].get('created', '')}: {times(value)}")
        place_labels(axes, [(points[-1][0], points[-1][1], str(s.number)) for s, points in lines])
        return made

    return draw("history", f"Speed-up of {len(lines)} artifacts over {len(runs)} runs", paint)


def _curve(
    canvas: Canvas,
    axes: Any,
    subject: ReportedArtifact,
    points: Sequence[CurvePoint],
    word: str,
    style: Any,
) -> None:
    colour = COLOURS[subject.family]
    axes.plot(
        [one.median_ms for one in points], [one.throughput_per_s for one in points],
        color=colour, linewidth=1.8, linestyle=style,
    )  # fmt: skip
    for one in points:
        x, y = one.median_ms, one.throughput_per_s
        (dot,) = axes.plot([x], [y], MARKERS[subject.family], color=colour, markersize=6, mew=0)
        canvas.tip(dot, f"{subject.name}, {word} {one.count}: {figure(x)} ms, {figure(y)} samples/s")


def _over_time(
    runs: Sequence[Mapping[str, Any]], name: str
) -> list[tuple[float, float, float | None, float | None]]:
    marks = []
    for at, run in enumerate(runs):
        one = (run.get("artifacts") or {}).get(name) or {}
        value = number(one.get("speedup"))
        if value is not None and value > 0:
            marks.append((float(at), value, number(one.get("low")), number(one.get("high"))))
    return marks
