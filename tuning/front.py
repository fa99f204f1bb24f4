"""The picture of a tuning: every trial by latency and drop, and the front that no other beats."""

from __future__ import annotations

from pathlib import Path

from ..errors import EngineUnavailable
from ..progress import quiet
from .tune import Tuned


def plot_front(tuned: Tuned, path: Path, *, max_drop: float, unit: str) -> None:
    """Draw to `path` (.svg or .png, inside `artifact.writing`).

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
        figure = Figure(figsize=(9, 5.5), layout="constrained")
        axis = figure.subplots()
        front = [trial for trial in timed if trial.name in tuned.front]
        axis.plot([t.latency_ms for t in front], [t.drop for t in front], color="#888888", linewidth=1.2)
        for trial in timed:
            colour = {"int8": "#2166ac", "bf16": "#1b7837"}.get(trial.precision, "#b2182b")
            marker = "*" if trial is tuned.best else "o"
            size = 160 if trial is tuned.best else 36
            axis.scatter([trial.latency_ms], [trial.drop], color=colour, marker=marker, s=size, zorder=3)
            axis.annotate(
                trial.name, (trial.latency_ms, trial.drop), textcoords="offset points", xytext=(7, 5)
            )
        axis.axhline(max_drop, color="#762a83", linestyle="--", linewidth=1, label=f"budget {max_drop:g}")
        axis.invert_yaxis()  # better is higher
        axis.set_xlabel("latency, ms (median)")
        axis.set_ylabel(f"drop, {unit}")
        axis.legend(loc="best")
        with quiet():
            figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
