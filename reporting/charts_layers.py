"""Charts of what is inside: layers by precision, layer errors, calibration histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..calibration.plot import bars
from ..calibration.summary import TensorSummary
from ..figures import DASH, figure, number
from .canvas import COLOURS, FONT, Canvas, Chart, draw, write
from .planes import plane
from .rows import ChartRow, linear_ticks, rows
from .source import FAMILIES, Layers, Subject, family_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..calibration.ranges import Ranges

WORST_TENSORS = 24
WORST_HISTOGRAMS = 8

Dashes = str | tuple[int, tuple[float, ...]]
METHODS: dict[str, Dashes] = {
    "minmax": "-",
    "percentile": (0, (5, 2)),
    "entropy": (0, (1.5, 1.5)),
    "mse": (0, (7, 2, 1.5, 2)),
    "auto": "-",
}
"""How the line of a method is drawn: not by its colour alone."""

Counts = dict[str, dict[str, int]]


def layers_by_precision(subject: Subject) -> Counts:
    """Return precision to kind of layer to count; empty where the file says nothing."""
    by_precision: Counts = {}
    for precision, kinds in (subject.row.layers_by_precision or {}).items():
        pairs = kinds.items() if isinstance(kinds, Mapping) else [("layers", kinds)]
        counts = {str(kind): int(count) for kind, value in pairs if (count := number(value)) and count > 0}
        if counts:
            by_precision[precision] = counts
    order = list(FAMILIES)
    return dict(
        sorted(
            by_precision.items(), key=lambda item: (-order.index(family_of(item[0])) % len(order), item[0])
        )
    )


def precision_chart(subjects: Sequence[Subject]) -> Chart | None:
    """Draw the share of layers in each precision; None where no artifact's manifest has a proof."""
    drawn = [(subject, layers) for subject in subjects if (layers := layers_by_precision(subject))]
    if not drawn:
        return None

    def paint(canvas: Canvas) -> Figure:
        words = [ChartRow(s.name, _most(layers), str(s.number)) for s, layers in drawn]
        made = rows(canvas, words, "share of the layers, %")
        made.axes.set_xlim(0, 100)
        linear_ticks(made.axes, "{}", most=5)
        for index, (subject, layers) in enumerate(drawn):
            _stack(canvas, made, index + made.at, subject, layers)
        return made.figure

    told = "; ".join(f"{s.name} {_most(layers)}" for s, layers in drawn[:8])
    return draw("precision", f"Layers by precision: {told}", paint)


def errors_chart(name: str, layers: Layers) -> Chart | None:
    """Draw the signal-to-noise ratio of the worst tensors; None where there are none."""
    worst = [(item, number(item.get("snr_db"))) for item in layers.tensors[:WORST_TENSORS]]
    if not worst:
        return None
    bad = layers.first_bad.get("tensor")

    def paint(canvas: Canvas) -> Figure:
        words = [
            ChartRow(str(item["tensor"]), _error(item, snr, is_first=item["tensor"] == bad))
            for item, snr in worst
        ]
        made = rows(canvas, words, "signal-to-noise ratio, dB (longer is better)")
        values = [snr for _, snr in worst if snr is not None] or [1.0]
        made.axes.set_xlim(min(0.0, *values) * 1.05, max(*values, 1.0) * 1.05)
        linear_ticks(made.axes, "{}", most=5)
        for index, (item, snr) in enumerate(worst):
            first = item["tensor"] == bad
            bar = made.axes.barh(
                index + made.at, made.axes.get_xlim()[1] if snr is None else snr, made.height * 0.7,
                color=COLOURS["bad" if first else "float"], alpha=0.2 if snr is None else 0.85,
            )[0]  # fmt: skip
            error = figure(number(item.get("max_abs_error")))
            largest = figure(number(item.get("max_abs")))
            canvas.tip(bar, f"{item['tensor']} ({item.get('operator')}): largest error {error} of {largest}")
        return made.figure

    told = f"the first that diverges is {bad}" if bad else "none diverges"
    return draw(name, f"Signal-to-noise ratio of {len(worst)} tensors, the worst first; {told}", paint)


def histogram_charts(ranges: Ranges, tensors: Sequence[TensorSummary]) -> list[tuple[TensorSummary, Chart]]:
    """Draw the histogram of each tensor with the thresholds of every method."""
    return [
        (one, _histogram(f"histogram-{index}", ranges, one))
        for index, one in enumerate(tensors[:WORST_HISTOGRAMS])
    ]


def _histogram(name: str, ranges: Ranges, one: TensorSummary) -> Chart:
    histogram = ranges.histograms[one.tensor]
    counts, edges = bars(histogram)

    def paint(canvas: Canvas) -> Figure:
        made, axes = plane(canvas, 210, "value of the tensor", "values, logarithmic scale", left=46)
        axes.stairs(counts, edges, fill=True, color=COLOURS["float"], alpha=0.45, linewidth=0)
        highest = max(counts) * 2.0
        axes.set_yscale("log")
        axes.set_ylim(0.5, highest)
        axes.yaxis.minorticks_off()
        ticks = [10**power for power in range(0, 13, 1 if highest < 1e4 else 2) if 10**power < highest]
        axes.set_yticks(ticks, labels=[_count(tick) for tick in ticks])
        linear_ticks(axes, "{}", most=5)
        for method, amax in one.amax.items():
            chosen = method == ranges.method.name
            for side in (amax, -amax) if histogram.min < 0 else (amax,):
                line = axes.axvline(
                    side, color=COLOURS[method], linestyle=METHODS[method], linewidth=2.4 if chosen else 1.4
                )
                canvas.tip(line, f"{method}: {figure(amax)}{', chosen' if chosen else ''}")
        return made

    return draw(name, f"Histogram of {one.tensor}: {figure(one.min)} to {figure(one.max)}", paint, wide=False)


def _count(number_: int) -> str:
    """Return "100", "10k", "1M"."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number_ >= size:
            return f"{number_ // size}{letter}"
    return str(number_)


def _stack(canvas: Canvas, made: Any, y: float, subject: Subject, layers: Counts) -> None:
    total, start = sum(sum(kinds.values()) for kinds in layers.values()), 0.0
    pixels = made.axes.get_window_extent().width * 72 / made.figure.dpi / 100
    for precision, kinds in layers.items():
        count = sum(kinds.values())
        share = 100.0 * count / total
        colour = COLOURS[family_of(precision)]
        bar = made.axes.barh(y, share, made.height * 0.9, left=start, color=colour)[0]
        bar.set_edgecolor(COLOURS["surface"])
        bar.set_linewidth(1.2)
        listed = ", ".join(f"{number_} {kind}" for kind, number_ in kinds.items())
        canvas.tip(bar, f"{subject.name}, {precision}: {listed}")
        text = f"{precision} {count}"
        if share * pixels > 7.2 * len(text) + 8:
            write(
                made.axes,
                start + share / 2,
                y,
                text,
                colour="surface",
                ha="center",
                fontsize=FONT - 1,
                weight="bold",
            )
        start += share


def _error(item: Mapping[str, Any], snr_db: float | None, *, is_first: bool) -> str:
    shown = "equal" if snr_db is None else f"{figure(snr_db)} dB"
    return f"{'first bad · ' if is_first else ''}{shown} · {item.get('operator') or DASH}"


def _most(layers: Counts) -> str:
    total = sum(sum(kinds.values()) for kinds in layers.values())
    name, kinds = max(layers.items(), key=lambda item: sum(item[1].values()))
    return f"{sum(kinds.values())} of {total} {name}"
