"""Plot a tuning: every trial by latency and drop, and the Pareto front, as SVG."""

from __future__ import annotations

from pathlib import Path

from ..svg import Scale, axes, labels, line, mark, picture, polyline, text
from .tune import TuneResult

_FAMILIES = {"int8": "int8", "bf16": "half", "fp32": "float"}
_PLOT = (60, 50, 560, 330)  # pixels


def plot_front(tuned: TuneResult, path: Path, *, max_drop: float, unit: str) -> None:
    """Draw to `path` (inside `files.writing`)."""
    timed = sorted((t for t in tuned.trials.values() if t.latency_ms), key=lambda t: t.latency_ms)
    drops = [*(trial.drop for trial in timed), max_drop, 0.0]
    space = max((max(drops) - min(drops)) * 0.12, 0.05)
    x = Scale.over([trial.latency_ms for trial in timed] or [1.0])
    y = Scale(min(drops) - space, max(drops) + space, "symlog" if max(drops) > 10 else "linear")
    places = {trial.name: (x.at(trial.latency_ms), y.at(trial.drop)) for trial in timed}
    drawing = axes(x, y, ("latency, ms (median)", f"drop, {unit} (up is better)"))
    drawing += line((0, y.at(max_drop)), (100, y.at(max_drop)), "mixed", dashes="6 4")
    drawing += text(100, y.at(max_drop), f"budget {max_drop:g}", shift=(0, -5), anchor="end", colour="mixed")
    front = [places[trial.name] for trial in timed if trial.name in tuned.front]
    drawing += polyline(front, "muted", width=1.2) if front else ""
    rows = []
    for number, trial in enumerate(timed, 1):
        is_best = trial is tuned.best
        words = f"{trial.latency_ms:.3g} ms  {trial.drop:+.2f}  {trial.name}{'  (best)' if is_best else ''}"
        size = 1.8 if is_best else 1
        drawing += mark(_FAMILIES[trial.precision], *places[trial.name], size=size, tip=words)
        kind = "label" if is_best else ""
        shift = (0.0, 17.0 * number)
        rows.append(text(0, 0, f"{number}  {words}", shift=shift, anchor="start", colour="ink", kind=kind))
    for index, (precision, family) in enumerate(_FAMILIES.items()):
        at = 100 * (index + 0.5) / len(_FAMILIES) * 0.4
        drawing += text(at, 0, precision, shift=(10, -31), anchor="start", colour=family)
    drawing += labels([(*places[trial.name], str(number)) for number, trial in enumerate(timed, 1)], _PLOT[3])
    panels = [(_PLOT, drawing), ((660, 30, 340, 400), "".join(rows))]
    path.write_text(picture(panels, (1010, max(440, 17 * len(timed) + 60))), encoding="utf-8")
