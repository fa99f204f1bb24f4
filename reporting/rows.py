"""Charts with one row per artifact: the name at the left of its row, or above it on a phone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..figures import clean
from .canvas import COLOURS, FONT, Canvas, fitting, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GUTTER, _VALUES = 236.0, 168.0  # pixels of a wide page, for names and for values
_ROW_WIDE, _ROW_NARROW = 34.0, 52.0
_FOOT = 42.0


_STEPS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 4, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))


@dataclass(frozen=True)
class ChartRow:
    """A row's words.

    Attributes:
        name: At its left; shortened where it does not fit.
        value: At its right.
        number: What charts call the artifact; empty for none.
    """

    name: str
    value: str
    number: str = ""


@dataclass(frozen=True)
class Rows:
    """Axes whose y is the row: 0 the first, downwards.

    Attributes:
        figure, axes: To draw on.
        at: Where in a row its mark lies, to be added to the row.
        height: Of a mark that fills its row, in rows.
    """

    figure: Figure
    axes: Axes
    at: float
    height: float


def rows(canvas: Canvas, chart_rows: Sequence[ChartRow], label: str, *, head: float = 8.0) -> Rows:
    """Return axes with the words of every row, and `label` below the x axis."""
    narrow = canvas.is_narrow
    row = _ROW_NARROW if narrow else _ROW_WIDE
    left, right = (8.0, 10.0) if narrow else (_GUTTER, _VALUES)
    figure = canvas.figure(head + row * len(chart_rows) + _FOOT)
    axes = canvas.axes(figure, left=left, right=right, top=head, bottom=_FOOT)
    axes.set_ylim(len(chart_rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(clean(label), color=COLOURS["muted"], fontsize=FONT, labelpad=6, parse_math=False)
    inner = canvas.width - left - right
    for index, one in enumerate(chart_rows):
        _words(canvas, axes, index, one, start=-left / inner, end=1 + right / inner, inner=inner)
    return Rows(figure, axes, at=0.22 if narrow else 0.0, height=0.40 if narrow else 0.62)


def log_ticks(axes: Any, low: float, high: float, form: str, *, upright: bool = False) -> None:
    """Show round numbers on a logarithmic axis over `low` to `high`, at most six."""
    axis = axes.yaxis if upright else axes.xaxis
    (axes.set_yscale if upright else axes.set_xscale)("log")
    (axes.set_ylim if upright else axes.set_xlim)(low, high)
    for steps in _STEPS:
        ticks = _round_numbers(low, high, steps)
        if len(ticks) <= 6:
            break
    ticks = ticks[:: math.ceil(len(ticks) / 6)]
    axis.set_minor_locator(_nothing())
    axis.set_ticks(ticks, labels=[form.format(_plain(tick)) for tick in ticks])


def linear_ticks(axes: Any, form: str, *, upright: bool = False, most: int = 5) -> None:
    """Show at most `most` round numbers on a linear axis."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.yaxis if upright else axes.xaxis
    axis.set_major_locator(MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: form.format(_plain(round(value, 10)))))


def _words(
    canvas: Canvas, axes: Any, index: int, one: ChartRow, *, start: float, end: float, inner: float
) -> None:
    across = axes.get_yaxis_transform()
    narrow = canvas.is_narrow
    y = index - (0.24 if narrow else 0.0)
    begin = 22.0 if one.number else 0.0
    room = (canvas.width - 8.0 - begin - 6.6 * len(one.value)) if narrow else (_GUTTER - begin - 14.0)
    if one.number:
        write(axes, start, y, one.number, colour="muted", transform=across, fontsize=FONT - 1)
    name = write(axes, start + begin / inner, y, fitting(one.name, room), transform=across)
    canvas.tip(name, one.name)
    write(axes, end, y, one.value, transform=across, ha="right", fontsize=FONT - 0.5)
    if index:
        axes.plot(
            [start, end],
            [index - 0.5] * 2,
            color=COLOURS["rule"],
            linewidth=0.7,
            transform=across,
            clip_on=False,
        )


def _round_numbers(low: float, high: float, steps: Sequence[float]) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [round(value, 12) for value in every if low <= value <= high]


def _plain(value: float) -> str:
    if value and abs(value) < 1e-3:
        return f"{value:g}"
    text = f"{value:,.3f}".rstrip("0").rstrip(".")
    return text.replace("-", "\N{MINUS SIGN}") or "0"


def _nothing() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
