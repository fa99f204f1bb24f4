"""Draw charts as SVG text: scales with round ticks, lines, marks, plots with two axes.

Coordinates are percent of the plot, so one drawing fits a page and a phone; text size and spacing are in
pixels. Colours are variables of the page; `picture` writes a standalone file with their values.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...core.figures import MINUS, clean

Point = tuple[float, float]
Box = tuple[float, float, float, float]
Label = tuple[float, float, str]
"""A place, and the text beside it."""

FAMILY_MARKS = {
    "float": "M0-4.4A4.4 4.4 0 1 1 0 4.4A4.4 4.4 0 1 1 0-4.4z",
    "half": "M-4-4H4V4H-4z",
    "int8": "M0-5.6 5.6 0 0 5.6-5.6 0z",
    "low": "M0-5.2 5.4 4.4H-5.4z",
    "mixed": "M-2-5.4H2V-2H5.4V2H2V5.4H-2V2H-5.4V-2H-2z",
}
"""Shape of each group of precisions: colour alone does not distinguish them."""

DASHES = ("", "9 4", "3 3", "12 4 3 4")
LINES = ("line1", "line2", "line3", "line4", "line5")
"""Colours of lines without a precision."""
COLOURS = {
    "ink": "#16191d", "muted": "#59616b", "rule": "#dfe3e8", "surface": "#ffffff", "bad": "#b3261e",
    "float": "#5c6b7c", "half": "#0072b2", "int8": "#c84c00", "low": "#007a5a", "mixed": "#96408a",
    "line1": "#6b7280", "line2": "#007a5a", "line3": "#c84c00", "line4": "#0072b2", "line5": "#96408a",
}  # fmt: skip
"""Variables of the report's style, with their values in light mode."""

_LOGARITHMIC_FROM = 4.0  # largest over smallest
_LOG_STEPS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 4, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
_SYMLOG_TICKS = (-50, -20, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50, 100)
_WIDTHS = (260.0, 480.0, 760.0)  # pixels of a plot, from a phone to a page
_LABEL_OFFSETS = tuple(
    (radius * math.cos(angle * math.pi / 8), -radius * math.sin(angle * math.pi / 8))
    for radius in (12, 20, 30, 42)
    for angle in (2, 6, 10, 14, 4, 12, 0, 8, 1, 3, 5, 7, 9, 11, 13, 15)
)


@dataclass(frozen=True)
class Scale:
    """Maps values to percent from the left or, with `grows_up`, to percent from the top, large values on top.

    "symlog" is linear from -1 to 1 and logarithmic beyond.
    """

    low: float
    high: float
    kind: Literal["linear", "log", "symlog"] = "linear"
    grows_up: bool = False

    @classmethod
    def over(cls, values: Sequence[float], *, grows_up: bool = False) -> Scale:
        """Return a scale with a margin around the values: logarithmic if largest / smallest exceeds 4."""
        low, high = min(values), max(values)
        if low > 0 and high / low > _LOGARITHMIC_FROM:
            margin = (high / low) ** 0.09
            return cls(low / margin, high * margin, "log", grows_up)
        space = max((high - low) * 0.12, high * 0.05) or 0.5
        return cls(max(low - space, 0.0), high + space, "linear", grows_up)

    def at(self, value: float) -> float:
        start, end = self._level(self.low), self._level(self.high)
        share = (self._level(value) - start) / ((end - start) or 1.0)
        return 100.0 * (1.0 - share if self.grows_up else share)

    def ticks(self, most: int = 6) -> list[float]:
        if self.kind == "log":
            numbers = next((n for steps in _LOG_STEPS if len(n := self._decades(steps)) <= most), [])
            numbers = numbers or self._decades((1,))
            return numbers[:: math.ceil(len(numbers) / most) or 1]
        if self.kind == "symlog":
            return [float(tick) for tick in _SYMLOG_TICKS if self.low <= tick <= self.high]
        # The smallest of 1, 2, 2.5, 5 times a power of ten that gives no more than `most` steps.
        least = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(max(least, 1e-300)))
        step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= least * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{index * step:.12g}") for index in range(first, last + 1)]

    def _level(self, value: float) -> float:
        if self.kind == "log":
            return math.log10(max(value, 1e-300))
        if self.kind == "symlog" and abs(value) > 1:
            return math.copysign(1 + math.log10(abs(value)), value)
        return value

    def _decades(self, steps: Sequence[float]) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        numbers = [round(step * 10.0**power, 12) for power in powers for step in steps]
        return [value for value in numbers if self.low <= value <= self.high]


def plain(value: float) -> str:
    """Return the number of a tick: "1,000", "10k", "0.25", "−2"."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e12):
        return f"{value:g}".replace("-", MINUS)
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, 1e4):
            return plain(value / size) + letter
    return f"{value:,.3f}".rstrip("0").rstrip(".").replace("-", MINUS) or "0"


def escaped(text: str) -> str:
    return html.escape(clean(text))


def tipped(drawing: str, tip: str) -> str:
    """Return a drawing with `tip` as its tooltip."""
    return f'<g class="tip"><title>{escaped(tip)}</title>{drawing}</g>' if tip else drawing


def line(
    start: Point, end: Point, colour: str = "rule", *, width: float = 1, dashes: str = "", tip: str = "",
    opacity: float | str = "",
) -> str:  # fmt: skip
    style = _style(stroke=colour, stroke_width=width, stroke_dasharray=dashes, opacity=opacity)
    places = f'x1="{start[0]:.2f}%" y1="{start[1]:.2f}%" x2="{end[0]:.2f}%" y2="{end[1]:.2f}%"'
    return tipped(f"<line {places} {style}/>", tip)


def polyline(points: Iterable[Point], colour: str, *, width: float, dashes: str = "") -> str:
    return _stretched(points, fill="none", stroke=colour, stroke_width=width, stroke_dasharray=dashes)


def area(points: Iterable[Point], colour: str, *, opacity: float, tip: str = "") -> str:
    return tipped(_stretched(points, fill=colour, opacity=opacity), tip)


def bar(x: float, width: float, colour: str, *, opacity: float = 1, tip: str = "") -> str:
    place = f'x="{x:.2f}%" y="22%" width="{width:.2f}%" height="56%"'
    return tipped(f"<rect {place} {_style(fill=colour, opacity=opacity)}/>", tip)


def circle(at: Point, radius: float, **style: object) -> str:
    return f'<circle cx="{at[0]:.2f}%" cy="{at[1]:.2f}%" r="{radius:.1f}" {_style(**style)}/>'


def mark(family: str, x: float, y: float, *, size: float = 1, tip: str = "") -> str:
    shape = f'<path d="{FAMILY_MARKS[family]}" {_style(fill=family)} transform="scale({size:g})"/>'
    return tipped(f'<svg x="{x:.2f}%" y="{y:.2f}%" overflow="visible">{shape}</svg>', tip)


def text(
    x: float, y: float, words: str, *, shift: Point = (0, 4), anchor: str = "middle", colour: str = "muted",
    size: float = 11, kind: str = "",
) -> str:  # fmt: skip
    """Return text at a place, shifted by pixels; `kind` is a CSS class of the page."""
    style = _style(fill=colour, font_size=f"{size:g}px", font_weight=700 if kind == "label" else "")
    place = f'x="{x:.2f}%" y="{y:.2f}%" dx="{shift[0]:.1f}" dy="{shift[1]:.1f}" text-anchor="{anchor}"'
    return f"<text {place} {style}{f' class={kind!r}' if kind else ''}>{escaped(words)}</text>"


def axes(x: Scale, y: Scale, words: tuple[str, str], *, form: str = "{}", names: Sequence[str] = ()) -> str:
    """Return the grid, ticks and titles of a plot; `names` replace the numbers 0, 1, ... of the x axis."""
    across = [(x.at(tick), plain(tick)) for tick in x.ticks(5)]
    if names:
        step = math.ceil(len(names) / 4)
        across = [(x.at(index), names[index]) for index in range(len(names) - 1, -1, -step)]
    parts = [line((at, 0), (at, 100)) + text(at, 100, name, shift=(0, 18)) for at, name in across]
    for tick in y.ticks():
        at = y.at(tick)
        parts.append(line((0, at), (100, at)))
        parts.append(text(0, at, form.format(plain(tick)), shift=(-7, 4), anchor="end"))
    parts.append(text(50, 100, words[0], shift=(0, 38), size=12))
    parts.append(text(0, 0, words[1], shift=(-36, -16), anchor="start", size=12))
    return "".join(parts)


def labels(
    points: Sequence[Label], height: float, *, radii: Sequence[float] = (), minor: Sequence[Label] = ()
) -> str:
    """Write each label beside its point, free of points and other labels at as many plot widths as possible.

    Height and radii (4 by default) are in pixels. Minor labels without room are omitted, on phones first.
    """
    radius_of_points = radii or [4.0] * len(points)
    sized = [(*point, radius, 11.0) for point, radius in zip(points, radius_of_points, strict=True)]
    sized += [(*point, 4.0, 9.5) for point in minor]
    occupied: dict[float, list[Box]] = {
        width: [(x * width / 100, y * height / 100, radius, radius) for x, y, _, radius, _ in sized]
        for width in _WIDTHS
    }
    parts = []
    for index, (x, y, words, radius, size) in enumerate(sized):
        choices = []
        for dx, dy in ((dx * (1 + radius / 22), dy * (1 + radius / 22)) for dx, dy in _LABEL_OFFSETS):
            half = 0.31 * size * len(words), size / 2
            placed = {width: (x * width / 100 + dx, y * height / 100 + dy, *half) for width in _WIDTHS}
            free = [_is_free(box, occupied[width], width) for width, box in placed.items()]
            choices.append((sum(free), free[-1], (dx, dy + 4), placed))
        is_minor = index >= len(points)
        count, on_pages, shift, placed = max(choices, key=lambda choice: (choice[1] and is_minor, choice[0]))
        if is_minor and not on_pages:
            continue
        for width, box in placed.items():
            occupied[width].append(box)
        kind = "label" if not is_minor else "roomy" if count < len(_WIDTHS) else ""
        parts.append(
            text(x, y, words, shift=shift, colour="muted" if is_minor else "ink", size=size, kind=kind)
        )
    return "".join(parts)


def picture(panels: Sequence[tuple[Box, str]], size: Point, *, colours: Mapping[str, str] = COLOURS) -> str:
    """Return an SVG file of drawings, each in a rectangle (x, y, width, height) in pixels."""
    parts = [
        f'<svg x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" overflow="visible">{drawing}</svg>'
        for (x, y, width, height), drawing in panels
    ]
    box = f'width="{size[0]:g}" height="{size[1]:g}" viewBox="0 0 {size[0]:g} {size[1]:g}"'
    whole = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif">'
        f'<rect width="100%" height="100%" {_style(fill="surface")}/>{"".join(parts)}</svg>\n'
    )
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], whole)


def _style(**values: object) -> str:
    """Return the `style` of the non-empty values; a colour becomes a variable of the page."""
    named = {name.replace("_", "-"): value for name, value in values.items() if value != ""}
    css = (f"{name}:{f'var(--{value})' if value in COLOURS else value}" for name, value in named.items())
    return f'style="{";".join(css)}"'


def _stretched(points: Iterable[Point], **style: object) -> str:
    """Return a path in percent of the plot; its line width does not scale."""
    path = "M" + " ".join(f"{x:.2f} {y:.2f}" for x, y in points)
    return (
        '<svg width="100%" height="100%" viewBox="0 0 100 100" preserveAspectRatio="none" overflow="visible">'
        f'<path d="{path}" vector-effect="non-scaling-stroke" {_style(**style)}/></svg>'
    )


def _is_free(box: Box, occupied: Iterable[Box], width: float) -> bool:
    """Return whether a box, its middle and half its width and height, lies in a plot and covers no other."""
    x, y, half_width, half_height = box
    return half_width - 16 <= x <= width + 22 - half_width and all(
        abs(x - other[0]) >= half_width + other[2] or abs(y - other[1]) >= half_height + other[3]
        for other in occupied
    )
