"""Summarize the ranges of each tensor, and draw its histogram with the thresholds of every method as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from ...calibration.histogram import BINS, Histogram
from ...calibration.ranges import Ranges
from ...calibration.thresholds import Method, amax_by_method, threshold_error
from ...core.figures import figure
from ...errors import InvalidOption
from ...spec.words import METHODS
from . import svg
from .svg import Scale, line, text


@dataclass(frozen=True)
class TensorSummary:
    """One observed tensor: exact extremes, and the amax of each method.

    `clipped` is the share of values beyond the chosen amax, 0 to 1, accurate to one bin; `snr_db` is the
    estimated signal-to-noise ratio of quantization with that amax.
    """

    tensor: str
    min: float
    max: float
    amax: dict[str, float]
    clipped: float
    snr_db: float

    def as_json(self) -> dict[str, object]:
        """Return the `--json` form; an infinite ratio is null."""
        snr_db = self.snr_db if math.isfinite(self.snr_db) else None
        return {**self.__dict__, "snr_db": snr_db}


def summarize(ranges: Ranges, *, method: Method | None = None, symmetric: bool = True) -> list[TensorSummary]:
    """Return a summary of every observed tensor, the worst signal-to-noise ratio first.

    `method` defaults to that of the ranges; quantization is to symmetric int8 or asymmetric uint8.
    """
    method, summaries = method or ranges.method, []
    for name, values in ranges.histograms.items():
        if not values.is_empty:
            amax = amax_by_method(values, method.percentile, symmetric=symmetric)
            snr_db, clipped = threshold_error(values, amax[method.name], symmetric=symmetric)
            summaries.append(TensorSummary(name, values.min, values.max, amax, clipped, snr_db))
    return sorted(summaries, key=lambda summary: (summary.snr_db, summary.tensor))


SUFFIX = ".svg"
LINES: Mapping[str, tuple[str, str]] = dict(
    zip(METHODS, zip(cycle(svg.LINES), cycle(svg.DASHES), strict=False), strict=False)
)
"""Colour and dashes of each method's line: colour alone does not distinguish them."""

_BARS = 256  # bins drawn per tensor: more would be finer than a line
_PANEL, _PLOT = (560, 230), (46, 56, 360, 124)  # pixels: size of a tensor's panel; place and size of its plot


def plot_ranges(ranges: Ranges, tensors: Sequence[TensorSummary], path: Path) -> None:
    """Draw tensors, in the given order, to `path` (inside `files.writing`)."""
    if path.suffix != SUFFIX:
        raise InvalidOption(f"`plot` {path.name}: {SUFFIX} is required", option="plot")
    path.write_text(ranges_picture(ranges, tensors), encoding="utf-8")


def ranges_picture(ranges: Ranges, tensors: Sequence[TensorSummary]) -> str:
    """Return an SVG picture of tensors, in the given order."""
    if not tensors:
        raise InvalidOption("`plot`: no tensor has values to draw", option="plot")
    columns = min(2, len(tensors))
    panels = []
    for index, summary in enumerate(tensors):
        x, y = (index % columns) * _PANEL[0], (index // columns) * _PANEL[1]
        title = f"{_short(summary.tensor)}   {summary.snr_db:.1f} dB, {summary.clipped:.2%} clipped"
        parts = [text(0, 0, title, shift=(-36, -34), anchor="start", colour="ink", size=13)]
        for row, (method, amax) in enumerate(summary.amax.items()):
            is_chosen = method == ranges.method.name
            words, height = f"{method} {amax:.3g}", 100 * (row + 0.5) / len(summary.amax)
            parts.append(text(100, height, words, shift=(34, 4), anchor="start", colour=LINES[method][0],
                              kind="label" if is_chosen else ""))  # fmt: skip
            parts.append(_threshold((102, height), (108, height), method, is_chosen=is_chosen))
        panels.append(
            ((x + _PLOT[0], y + _PLOT[1], *_PLOT[2:]), histogram_plane(ranges, summary) + "".join(parts))
        )
    size = (columns * _PANEL[0], -(-len(tensors) // columns) * _PANEL[1])
    return svg.picture(panels, size)


def histogram_plane(ranges: Ranges, summary: TensorSummary) -> str:
    """Return a tensor's histogram, counts on a logarithmic scale, with the thresholds of every method."""
    histogram = ranges.histograms[summary.tensor]
    counts, edges = bars(histogram)
    sides = {method: (amax, -amax) if histogram.min < 0 else (amax,) for method, amax in summary.amax.items()}
    ends = [float(edges[0]), float(edges[-1]), *(side for pair in sides.values() for side in pair)]
    space = (max(ends) - min(ends)) * 0.04
    x = Scale(min(ends) - space, max(ends) + space)
    y = Scale(0.5, 2.0 * max(counts), "log", grows_up=True)
    outline = []
    for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True):
        height = y.at(max(count, 0.5))
        outline += [(x.at(start), height), (x.at(end), height)]
    drawing = svg.axes(x, y, ("value of the tensor", "values, logarithmic scale"))
    drawing += svg.area([(outline[0][0], 100), *outline, (outline[-1][0], 100)], "float", opacity=0.45)
    for method, amax in summary.amax.items():
        is_chosen = method == ranges.method.name
        for side in sides[method]:
            tip = f"{method}: {figure(amax)}{', chosen' if is_chosen else ''}"
            drawing += _threshold((x.at(side), 0), (x.at(side), 100), method, is_chosen=is_chosen, tip=tip)
    return drawing


def bars(histogram: Histogram) -> tuple[Any, Any]:
    """Return counts and edges of the non-empty part of the histogram, in at most `_BARS` bars."""
    used = np.flatnonzero(histogram.counts)
    first, last = int(used[0]), int(used[-1]) + 1
    bins_per_bar = max(1, -(-(last - first) // _BARS))
    starts = np.arange(first, last, bins_per_bar)
    counts = np.add.reduceat(histogram.counts, starts)
    edges = (np.append(starts, starts[-1] + bins_per_bar) - BINS) * histogram.width
    return counts, edges


def _short(name: str) -> str:
    printable = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    return printable if len(printable) <= 40 else f"…{printable[-39:]}"


def _threshold(
    start: tuple[float, float], end: tuple[float, float], method: str, *, is_chosen: bool, tip: str = ""
) -> str:
    colour, dashes = LINES[method]
    return line(start, end, colour, width=2.4 if is_chosen else 1.4, dashes=dashes, tip=tip)
