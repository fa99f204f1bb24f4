"""Charts of speed and accuracy, one row per artifact: distributions, speed-ups, drops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..bench.results.render import speedup_text
from ..bench.results.row import Interval
from ..bench.statistics.bootstrap import CONFIDENCE as DROP_CONFIDENCE
from ..bench.statistics.speedup import Speedup
from ..figures import drop_interval, drop_text, figure
from .canvas import COLOURS, FONT, Canvas, Chart, draw
from .rows import ChartRow, linear_ticks, log_ticks, rows
from .source import Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = {"float": "o", "half": "s", "int8": "D", "low": "^", "mixed": "P"}
_LOGARITHMIC_FROM = 4.0  # largest over smallest
_BINS = 90


def latency_chart(subjects: Sequence[Subject]) -> Chart | None:
    """Draw where every call's latency lies; None where no artifact has quantiles."""
    drawn = [(subject, quantiles) for subject in subjects if (quantiles := latency_quantiles(subject))]
    if not drawn:
        return None
    low = min(values[1] for _, values in drawn)
    high = max(values[99] for _, values in drawn)
    logarithmic = high / low > _LOGARITHMIC_FROM

    def paint(canvas: Canvas) -> Figure:
        words = [
            ChartRow(subject.name, f"{figure(values[50])} · p99 {figure(values[99])} ms", str(subject.number))
            for subject, values in drawn
        ]
        scale = ", logarithmic scale" if logarithmic else ""
        made = rows(canvas, words, f"latency of a call, ms{scale}")
        margin = (high / low) ** 0.04 if logarithmic else 1.0
        if logarithmic:
            log_ticks(made.axes, low / margin, high * margin, "{}")
        else:
            space = max((high - low) * 0.06, high * 0.01)
            made.axes.set_xlim(low - space, high + space)
            linear_ticks(made.axes, "{}", most=4 if canvas.is_narrow else 7)
        for index, (subject, values) in enumerate(drawn):
            _violin(canvas, made.axes, index + made.at, made.height, subject, values, logarithmic)
        return made.figure

    names = ", ".join(f"{subject.name} {figure(values[50])} ms" for subject, values in drawn[:8])
    return draw("latency", f"Distribution of latencies; medians: {names}", paint)


def speedup_chart(subjects: Sequence[Subject], baseline: str, intervals: str) -> Chart | None:
    """Draw the speed-ups with their intervals ("99% interval") and a line at 1; None where there is none."""
    drawn = [(s, s.speedup) for s in subjects if s.speedup is not None]
    if not drawn:
        return None
    words = [ChartRow(s.name, " ".join(speedup_text(one)), str(s.number)) for s, one in drawn]

    def paint(canvas: Canvas) -> Figure:
        made = rows(canvas, words, f"times as fast as {_short(baseline)}", head=26)
        low, high = _bounds([one for _, one in drawn], 1.0, least=1e-3)
        if high / low > 2:
            log_ticks(made.axes, low * 0.93, high * 1.07, "{}×")
        else:
            made.axes.set_xlim(low - 0.02, high + 0.02)
            linear_ticks(made.axes, "{}×", most=4 if canvas.is_narrow else 6)
        _reference(made.axes, 1.0, ("slower", "faster"))
        for index, (subject, one) in enumerate(drawn):
            tip = f"{subject.name}: {words[index].value} ({subject.verdict})"
            _whisker(canvas, made.axes, index + made.at, subject, one, tip)
        return made.figure

    told = "; ".join(f"{row.name} {row.value}" for row in words[:8])
    return draw("speedup", f"Speed-up against {baseline}, {intervals}: {told}", paint)


def drop_chart(subjects: Sequence[Subject], metric: str) -> Chart | None:
    """Draw the drops of accuracy with their intervals and a line at 0; None where there is none."""
    drawn = [(s, s.drop) for s in subjects if s.drop is not None and not s.is_baseline]
    if not drawn:
        return None
    unit = drawn[0][0].drop_unit
    words = [
        ChartRow(
            s.name,
            f"{drop_text(one.value, unit)} {drop_interval(one.low, one.high, unit)}".strip(),
            str(s.number),
        )
        for s, one in drawn
    ]

    def paint(canvas: Canvas) -> Figure:
        made = rows(canvas, words, f"drop of {metric}, {unit}", head=26)
        low, high = _bounds([one for _, one in drawn], 0.0)
        space = max((high - low) * 0.06, 1e-9 if high > low else 0.05)
        made.axes.set_xlim(low - space, high + space)
        linear_ticks(made.axes, "{}", most=4 if canvas.is_narrow else 6)
        _reference(made.axes, 0.0, ("better", "worse"))
        for index, (subject, one) in enumerate(drawn):
            _whisker(
                canvas,
                made.axes,
                index + made.at,
                subject,
                one,
                f"{subject.name}: {words[index].value} {unit}",
            )
        return made.figure

    told = "; ".join(f"{row.name} {row.value}" for row in words[:8])
    return draw("drop", f"Drop of {metric}, {DROP_CONFIDENCE:.0%} intervals, {unit}: {told}", paint)


def latency_quantiles(subject: Subject) -> list[float]:
    """Return 101 latencies in order; empty where the file has no such thing."""
    return list(subject.row.latency.quantiles_ms) if subject.row.latency else []


def density(values: Sequence[float], *, logarithmic: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return places between the 1st and 99th percentile, and how densely calls lie there, 1 at most.

    Args:
        values: 101 quantiles, in order.
        logarithmic: Whether density is per factor, not per millisecond: as the axis shows it.
    """
    positions = np.log(values) if logarithmic else np.asarray(values, np.float64)
    low, high = positions[1], positions[99]
    if not high > low:
        return np.array([values[50]]), np.array([1.0])
    edges = np.linspace(low, high, _BINS + 1)
    # Equal quantiles are a step of the distribution: its upper end counts.
    below = np.searchsorted(positions, edges, side="right") - 1
    upper = np.clip(below + 1, 0, 100)
    span = positions[upper] - positions[below]
    part = np.divide(edges - positions[below], span, out=np.zeros_like(edges), where=span > 0)
    mass = np.diff(below + np.clip(part, 0, 1))
    reach = np.arange(-8, 9)
    kernel = np.exp(-0.5 * (reach / 3.0) ** 2)
    smooth = np.convolve(np.pad(mass, 8), kernel / kernel.sum(), mode="valid")
    middles = (edges[1:] + edges[:-1]) / 2
    return np.exp(middles) if logarithmic else middles, smooth / max(smooth.max(), 1e-12)


def _violin(
    canvas: Canvas,
    axes: Any,
    y: float,
    height: float,
    subject: Subject,
    values: list[float],
    logarithmic: bool,
) -> None:
    colour = COLOURS[subject.family]
    places, width = density(values, logarithmic=logarithmic)
    half = height / 2
    body = axes.fill_between(
        places, y - width * half, y + width * half, color=colour, alpha=0.28, linewidth=0
    )
    canvas.tip(
        body,
        f"{subject.name}: " + ", ".join(
            f"{label} {figure(values[at])}" for label, at in
            (("min", 0), ("p25", 25), ("median", 50), ("p75", 75), ("p90", 90), ("p99", 99), ("max", 100))
        ) + " ms",
    )  # fmt: skip
    axes.plot([values[1], values[99]], [y, y], color=colour, linewidth=1.4, solid_capstyle="round")
    axes.plot([values[25], values[75]], [y, y], color=colour, linewidth=5, solid_capstyle="round")
    axes.plot([values[50]], [y], "o", color=COLOURS["surface"], markersize=6.5, mec=colour, mew=2)


def _whisker(
    canvas: Canvas, axes: Any, y: float, subject: Subject, one: Interval | Speedup, tip: str
) -> None:
    colour = COLOURS[subject.family]
    if one.low is not None and one.high is not None:
        axes.plot([one.low, one.high], [y, y], color=colour, linewidth=3, solid_capstyle="round", alpha=0.55)
        for end in (one.low, one.high):
            axes.plot([end], [y], "|", color=colour, markersize=9, mew=1.6)
    (dot,) = axes.plot([one.value], [y], MARKERS[subject.family], color=colour, markersize=8, mew=0)
    canvas.tip(dot, tip)


def _reference(axes: Any, at: float, sides: tuple[str, str]) -> None:
    axes.axvline(at, color=COLOURS["ink"], linewidth=1.2, zorder=1.5)
    low, high = axes.get_xlim()
    share = axes.transAxes.inverted().transform(axes.transData.transform((at, 0)))[0]
    for text, right, there in ((f"← {sides[0]}", True, low < at), (f"{sides[1]} →", False, high > at)):
        if not there or (share < 0.2 if right else share > 0.8):
            continue
        axes.annotate(
            text, (at, 1.0), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
            xytext=(-6 if right else 6, 5), ha="right" if right else "left", va="bottom",
            color=COLOURS["muted"], fontsize=FONT - 1,
        )  # fmt: skip


def _bounds(
    intervals: Sequence[Interval | Speedup], reference: float, *, least: float = -math.inf
) -> tuple[float, float]:
    ends = [end for one in intervals for end in (one.value, one.low, one.high) if end is not None]
    return max(min(*ends, reference), least), max(*ends, reference)


def _short(name: str) -> str:
    return name if len(name) <= 28 else "the baseline"
