"""Charts with two scales: their axes, and labels beside points that cover nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .canvas import COLOURS, FONT, Canvas, write
from .rows import linear_ticks, log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOGARITHMIC_FROM = 4.0


def plane(canvas: Canvas, height: float, x: str, y: str, *, left: float) -> tuple[Figure, Axes]:
    """Return axes of two scales, `x` written below and `y` above, where it needs no turned head."""
    right = 28.0
    made = canvas.figure(height)
    axes = canvas.axes(made, left=left, right=right, top=34, bottom=50)
    axes.set_xlabel(x, color=COLOURS["muted"], fontsize=FONT, labelpad=6)
    start = -left / (canvas.width - left - right)
    top = 1 + 18 / (height - 84)
    write(axes, start, top, y, colour="muted", transform=axes.transAxes)
    return made, axes


def scale(axes: Any, values: Sequence[float], *, upright: bool, most: int, form: str = "{}") -> None:
    """Choose the scale that values need, and round numbers for it: logarithmic where they differ much."""
    low, high = min(values), max(values)
    if low > 0 and high / low > _LOGARITHMIC_FROM:
        margin = (high / low) ** 0.09
        log_ticks(axes, low / margin, high * margin, form, upright=upright)
        return
    space = max((high - low) * 0.12, high * 0.05)
    (axes.set_ylim if upright else axes.set_xlim)(max(low - space, 0.0), high + space)
    linear_ticks(axes, form, upright=upright, most=most)


def place_labels(
    axes: Axes,
    labels: Sequence[tuple[float, float, str]],
    *,
    others: Sequence[tuple[float, float, str]] = (),
    radii: Sequence[float] = (),
) -> None:
    """Write labels beside points, each where it covers no point and no other label.

    Args:
        axes: Whose scales are set already.
        labels: x, y and text.
        others: The same, smaller; left out where there is no room.
        radii: Of the labelled points, in points of a font; 4 by default.
    """
    points = [axes.transData.transform((x, y)) for x, y, _ in (*labels, *others)]
    sizes = [*(radii or [4.0] * len(labels)), *[4.0] * len(others)]
    unit = axes.figure.dpi / 72  # pixels of the figure
    taken = [
        (px - r * unit, py - r * unit, px + r * unit, py + r * unit)
        for (px, py), r in zip(points, sizes, strict=True)
    ]
    small = len(labels)
    window = axes.get_window_extent()
    for index, ((_, _, text), (px, py)) in enumerate(zip((*labels, *others), points, strict=True)):
        size = FONT - 1 if index < small else FONT - 2.5
        wide, high = 0.62 * size * len(text) * unit, size * unit
        boxes = []
        for dx, dy in _AROUND:
            away = 1 + sizes[index] / 22
            x, y = px + dx * away * unit, py + dy * away * unit
            box = (x - wide / 2, y - high / 2, x + wide / 2, y + high / 2)
            outside = box[0] < window.x0 - 16 * unit or box[2] > window.x1 + 22 * unit
            boxes.append((sum(_overlap(box, other) for other in taken) + 1e4 * outside, x, y, box))
        cost, x, y, box = min(boxes, key=lambda item: item[0])
        if index >= small and cost > 0:
            continue
        taken.append(box)
        place = axes.transData.inverted().transform((x, y))
        write(
            axes, place[0], place[1], text, ha="center", fontsize=size, zorder=6, clip_on=False,
            colour="ink" if index < small else "muted", weight="bold" if index < small else "normal",
        )  # fmt: skip


_AROUND = tuple(
    (radius * math.cos(angle * math.pi / 8), radius * math.sin(angle * math.pi / 8))
    for radius in (12, 20, 30, 42)
    for angle in (2, 6, 10, 14, 4, 12, 0, 8, 1, 3, 5, 7, 9, 11, 13, 15)
)


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)
