"""Plot each tensor's histogram with the thresholds of every method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import EngineUnavailable, InvalidOption
from ..progress import quiet
from .histogram import BINS, Histogram
from .ranges import Ranges
from .summary import TensorSummary

SUFFIXES = (".svg", ".png")

_COLUMNS = 2
_BARS = 256  # bins drawn per tensor: more would be finer than a line
_COLOURS = {
    "minmax": "#888888", "percentile": "#1b7837", "entropy": "#b2182b", "mse": "#2166ac", "auto": "#762a83",
}  # fmt: skip


def plot_ranges(ranges: Ranges, tensors: Sequence[TensorSummary], path: Path) -> None:
    """Draw tensors, in the given order, to `path` (inside `files.writing`).

    Raises:
        InvalidOption: If the file is neither .svg nor .png, or there is no tensor.
        EngineUnavailable: If matplotlib is missing.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidOption(f"`plot` {path.name}: {' or '.join(SUFFIXES)} is required", option="plot")
    if not tensors:
        raise InvalidOption("`plot`: no tensor has values to draw", option="plot")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EngineUnavailable(
            f"matplotlib cannot be imported ({error})", hint="pip install 'qcompile[report]'", engine="plot"
        ) from error
    rows = -(-len(tensors) // _COLUMNS)
    # Names and words stay text in an SVG, and no random identifiers make equal pictures differ.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "qcompile", "font.size": 9}):
        figure = Figure(figsize=(12, 2.8 * rows + 0.6), layout="constrained")
        axes = figure.subplots(rows, min(_COLUMNS, len(tensors)), squeeze=False).flatten()
        for axis, one in zip(axes, tensors, strict=False):
            _draw(axis, ranges.histograms[one.tensor], one, str(ranges.method.name))
        for axis in axes[len(tensors) :]:
            axis.set_visible(False)
        with quiet():  # names in scripts that the font lacks: an SVG has them as text all the same
            figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw(axis: Any, histogram: Histogram, one: TensorSummary, chosen: str) -> None:
    counts, edges = bars(histogram)
    axis.stairs(counts, edges, fill=True, color="#9ecae1", linewidth=0)
    axis.set_yscale("log")
    axis.set_ylim(bottom=0.5)
    for method, amax in one.amax.items():
        style: dict[str, Any] = {"color": _COLOURS[method], "linewidth": 2.2 if method == chosen else 1.1}
        axis.axvline(amax, label=f"{method} {amax:.3g}", **style)
        if histogram.min < 0:
            axis.axvline(-amax, **style)
    title = f"{_short(one.tensor)}   {one.snr_db:.1f} dB, {one.clipped:.2%} clipped"
    axis.set_title(title, loc="left", parse_math=False)
    axis.set_ylabel("values")
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)


def bars(histogram: Histogram) -> tuple[Any, Any]:
    """Counts and edges of the part of the histogram that holds values, in at most `_BARS` bars."""
    used = np.flatnonzero(histogram.counts)
    first, last = int(used[0]), int(used[-1]) + 1
    together = max(1, -(-(last - first) // _BARS))
    starts = np.arange(first, last, together)
    counts = np.add.reduceat(histogram.counts, starts)
    edges = (np.append(starts, starts[-1] + together) - BINS) * histogram.width
    return counts, edges


def _short(name: str) -> str:
    printable = "".join(letter if letter.isprintable() else "�" for letter in name)
    return printable if len(printable) <= 40 else f"…{printable[-39:]}"
