"""Latency over the rate of arriving requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..bench.results.under_load import ArrivalPoint
from ..figures import figure
from .canvas import COLOURS, Canvas, Chart, draw
from .charts_speed import MARKERS
from .planes import place_labels, plane, scale
from .source import ReportedArtifact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))


def load_chart(subjects: Sequence[ReportedArtifact]) -> Chart | None:
    """Draw p99 with its interval over the rate, a point per rate that an artifact keeps up with.

    Returns:
        None where no artifact has such a point.
    """
    curves = [(subject, points) for subject in subjects if (points := steady_points(subject))]
    if not curves:
        return None
    bounds = sorted({s.row.largest_rate.p99_below_ms for s in subjects if s.row.largest_rate})

    def paint(canvas: Canvas) -> Figure:
        height, left = (330, 56) if canvas.is_narrow else (400, 70)
        made, axes = plane(
            canvas, height, "requests that arrive per second", "99th percentile of latency, ms", left=left
        )
        points = [point for _, some in curves for point in some]
        rates = [point.rate_per_s for point in points]
        ends = [end for point in points for end in _ends(point)]
        scale(axes, rates, upright=False, most=4 if canvas.is_narrow else 6)
        scale(axes, [*ends, *bounds], upright=True, most=6)
        for bound in bounds:
            axes.axhline(bound, color=COLOURS["ink"], linewidth=1, linestyle=(0, (4, 3)))
        for index, (subject, some) in enumerate(curves):
            _curve(canvas, axes, subject, some, _STYLES[index // 2 % len(_STYLES)])
        last = [
            (some[-1].rate_per_s, some[-1].p99_ms or 0.0, str(subject.number)) for subject, some in curves
        ]
        place_labels(axes, last)
        return made

    told = "; ".join(
        f"{s.name} {figure(some[-1].p99_ms)} ms at {figure(some[-1].rate_per_s)} requests/s"
        for s, some in curves[:8]
    )
    return draw("arrivals", f"99th percentile of latency over arriving requests: {told}", paint)


def steady_points(subject: ReportedArtifact) -> list[ArrivalPoint]:
    """Return the points of the rates that an artifact keeps up with."""
    return [point for point in subject.row.arrivals if point.p99_ms is not None]


def _ends(point: ArrivalPoint) -> list[float]:
    return [end for end in (point.p99_low_ms, point.p99_ms, point.p99_high_ms) if end is not None]


def _curve(
    canvas: Canvas, axes: Any, subject: ReportedArtifact, points: Sequence[ArrivalPoint], style: Any
) -> None:
    colour = COLOURS[subject.family]
    axes.plot(
        [one.rate_per_s for one in points], [one.p99_ms for one in points],
        color=colour, linewidth=1.8, linestyle=style,
    )  # fmt: skip
    for one in points:
        x, ends = one.rate_per_s, _ends(one)
        axes.plot([x, x], [min(ends), max(ends)], color=colour, linewidth=2.5, alpha=0.5)
        (dot,) = axes.plot([x], [one.p99_ms], MARKERS[subject.family], color=colour, markersize=6, mew=0)
        canvas.tip(dot, f"{subject.name}, {figure(x)} requests/s: p99 {figure(one.p99_ms)} ms")
