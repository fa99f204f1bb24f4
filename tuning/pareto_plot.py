"""Plot a tuning: every trial by latency and drop, and the Pareto front."""

from __future__ import annotations

from pathlib import Path

from ..errors import EngineUnavailable
from ..progress import quiet
from .tune import TuneResult

_COLOURS = {"int8": "#2166ac", "bf16": "#1b7837", "fp32": "#b2182b"}


def plot_front(tuned: TuneResult, path: Path, *, max_drop: float, unit: str) -> None:
    """Draw to `path` (.svg or .png, inside `files.writing`).

    Raises:
        EngineUnavailable: If matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EngineUnavailable(
            f"matplotlib cannot be imported ({error})", hint="pip install 'qcompile[report]'", engine="plot"
        ) from error
    timed = sorted((t for t in tuned.trials.values() if t.latency_ms), key=lambda t: t.latency_ms)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "qcompile", "font.size": 9}):
        figure = Figure(figsize=(11, 5.5), layout="constrained")
        axis, names = figure.subplots(1, 2, width_ratios=[5, 3])
        front = [trial for trial in timed if trial.name in tuned.front]
        axis.plot([t.latency_ms for t in front], [t.drop for t in front], color="#888888", linewidth=1.2)
        for number, trial in enumerate(timed, 1):
            marker, size = ("*", 190) if trial is tuned.best else ("o", 40)
            colour = _COLOURS[trial.precision]
            axis.scatter([trial.latency_ms], [trial.drop], color=colour, marker=marker, s=size, zorder=3)
            # Neighbours lie close: their numbers take turns above and below.
            offset = (0, 9) if number % 2 else (0, -15)
            at = (trial.latency_ms, trial.drop)
            axis.annotate(str(number), at, textcoords="offset points", xytext=offset, ha="center", fontsize=8)
        for precision, colour in _COLOURS.items():
            axis.scatter([], [], color=colour, label=precision)
        axis.axhline(max_drop, color="#762a83", linestyle="--", linewidth=1, label=f"budget {max_drop:g}")
        axis.set_yscale("symlog", linthresh=max(max_drop, 0.1))
        axis.invert_yaxis()  # better is higher
        axis.margins(0.08, 0.15)
        axis.set_xlabel("latency, ms (median)")
        axis.set_ylabel(f"drop, {unit}")
        axis.legend(loc="best")
        names.axis("off")
        lines = [
            f"{number:2}  {trial.latency_ms:6.3g} ms  {trial.drop:+6.2f}  {trial.name}"
            + ("  (best)" if trial is tuned.best else "")
            for number, trial in enumerate(timed, 1)
        ]
        names.text(0, 1, "\n".join(lines), va="top", family="monospace", fontsize=8, parse_math=False)
        with quiet():
            figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
