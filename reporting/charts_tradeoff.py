"""Trade-off chart: accuracy, latency and size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..figures import MINUS, bytes_text, drop_interval, drop_text, figure
from .canvas import COLOURS, Canvas, Chart, draw
from .charts_speed import MARKERS
from .planes import place_labels, plane, scale
from .rows import linear_ticks
from .source import ReportedArtifact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LARGEST, _SMALLEST = 1100.0, 45.0  # areas of bubbles, in square points
_LINEAR_TO = 10.0  # points; where one artifact lost more, the others would be one heap
_DROP_TICKS = (-50, -20, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50, 100)


def pareto_chart(subjects: Sequence[ReportedArtifact], *, name: str = "pareto") -> Chart | None:
    """Draw drop against latency with areas by size, or size against latency where drops do not differ.

    Args:
        subjects: Artifacts of one measurement.
        name: Unique in the page.
    """
    with_drop = [s for s in subjects if s.drop is not None]
    with_size = [s for s in subjects if s.size_bytes is not None]
    by_drop = drops_differ(subjects)
    shown = with_drop if by_drop else with_size
    if len(shown) < 2:
        return None
    best = pareto_front(shown)
    unit = shown[0].drop_unit

    def height(subject: ReportedArtifact) -> float:
        if by_drop:
            return subject.drop.value if subject.drop else 0.0
        return (subject.size_bytes or 0.0) / 1e6

    def paint(canvas: Canvas) -> Figure:
        label = f"accuracy drop, {unit} (up is better)" if by_drop else "size, MB (up is smaller)"
        made, axes = _axes(canvas, shown, height, label, by_drop)
        edge = sorted(
            (s for s in best if not any(_under(o, s, height) for o in best)),
            key=lambda s: s.latency_ms or 0.0,
        )
        axes.plot(
            [s.latency_ms for s in edge], [height(s) for s in edge],
            color=COLOURS["muted"], linewidth=1.2, linestyle=(0, (4, 3)), zorder=1.5,
        )  # fmt: skip
        for subject in sorted(shown, key=lambda s: -(s.size_bytes or 0.0)):
            _bubble(canvas, axes, subject, shown, height(subject), bold=subject in best, whiskers=by_drop)
        place_labels(
            axes,
            [(s.latency_ms or 0.0, height(s), str(s.number)) for s in shown],
            radii=[math.sqrt(_area(canvas, s, shown) / math.pi) for s in shown],
        )
        return made

    names = ", ".join(s.name for s in shown if s in best)
    return draw(name, f"Trade-off of accuracy, latency and size; beaten by none: {names}", paint)


def drops_differ(subjects: Sequence[ReportedArtifact]) -> bool:
    """Whether the chart is of drops: equal ones would be a line, and sizes say more."""
    return len({s.drop.value for s in subjects if s.drop is not None}) > 1


def pareto_front(subjects: Sequence[ReportedArtifact]) -> list[ReportedArtifact]:
    """Return those that no other beats: as good in latency, drop and size, and better in one."""

    def costs(subject: ReportedArtifact) -> tuple[float, float, float]:
        drop = subject.drop.value if subject.drop else math.inf
        return subject.latency_ms or math.inf, drop, subject.size_bytes or math.inf

    def beaten(subject: ReportedArtifact) -> bool:
        mine = costs(subject)
        return any(
            theirs != mine and all(a <= b for a, b in zip(theirs, mine, strict=True))
            for theirs in map(costs, subjects)
        )

    return [subject for subject in subjects if not beaten(subject)]


def _axes(
    canvas: Canvas, shown: Sequence[ReportedArtifact], height: Any, label: str, by_drop: bool
) -> tuple[Figure, Any]:
    tall, left = (350, 46) if canvas.is_narrow else (420, 56)
    made, axes = plane(canvas, tall, "median latency of a call, ms", label, left=left)
    scale(axes, [s.latency_ms or 0.0 for s in shown], upright=False, most=4 if canvas.is_narrow else 6)
    ends = [height(s) for s in shown]
    if by_drop:
        ends += [end for s in shown if s.drop for end in (s.drop.low, s.drop.high) if end is not None]
    low, high = min(ends), max(ends)
    space = max((high - low) * 0.14, abs(high) * 0.02, 0.05)
    if by_drop and max(abs(low), abs(high)) > _LINEAR_TO:
        bottom, top = low - max(space, 0.5), high * 1.5
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(bottom, top)
        ticks = [tick for tick in _DROP_TICKS if bottom <= tick <= top]
        axes.set_yticks(ticks, labels=[f"{tick}".replace("-", MINUS) for tick in ticks])
        axes.yaxis.minorticks_off()
    else:
        axes.set_ylim(low - space, high + space)
        linear_ticks(axes, "{}", upright=True, most=6)
    if by_drop:
        axes.axhline(0.0, color=COLOURS["ink"], linewidth=1, zorder=1.4)
    axes.invert_yaxis()
    return made, axes


def _bubble(
    canvas: Canvas,
    axes: Any,
    subject: ReportedArtifact,
    shown: Sequence[ReportedArtifact],
    y: float,
    *,
    bold: bool,
    whiskers: bool,
) -> None:
    colour, x = COLOURS[subject.family], subject.latency_ms or 0.0
    drop = subject.drop
    if whiskers and drop and drop.low is not None and drop.high is not None:
        axes.plot([x, x], [drop.low, drop.high], color=colour, linewidth=1.4, alpha=0.6, zorder=2)
    area = _area(canvas, subject, shown)
    fill = colour if subject.size_bytes else COLOURS["surface"]
    dot = axes.scatter(
        [x], [y], s=area, color=fill, alpha=0.5 if bold else 0.18, edgecolors=colour,
        linewidths=1.8 if bold else 1.0, zorder=3,
    )  # fmt: skip
    axes.plot([x], [y], MARKERS[subject.family], color=colour, markersize=4, mew=0, zorder=4)
    said = [subject.name, f"{figure(x)} ms", bytes_text(subject.size_bytes)]
    if drop:
        unit = subject.drop_unit
        ends = drop_interval(drop.low, drop.high, unit)
        said.append(" ".join(["drop", drop_text(drop.value, unit), *([ends] if ends else []), unit]))
    canvas.tip(dot, ", ".join(said))


def _area(canvas: Canvas, subject: ReportedArtifact, shown: Sequence[ReportedArtifact]) -> float:
    largest = max(s.size_bytes or 0.0 for s in shown)
    share = subject.size_bytes / largest if subject.size_bytes else 0.0
    return max(_LARGEST * share * (0.6 if canvas.is_narrow else 1.0), _SMALLEST)


def _under(other: ReportedArtifact, subject: ReportedArtifact, height: Any) -> bool:
    """Whether another is as fast and as good, and better in one: the line leaves this one out."""
    a, b = (other.latency_ms or 0.0, height(other)), (subject.latency_ms or 0.0, height(subject))
    return a != b and a[0] <= b[0] and a[1] <= b[1]
