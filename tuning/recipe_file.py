"""A tuning written down: the recipe of the chosen trial, and the plot of all trials."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..data.batches import seen_from
from ..plain_text import plain_toml
from ..spec.words import Isa
from ..svg import Scale, axes, labels, line, mark, picture, polyline, text
from .trials import Trial


def recipe_text(
    best: Trial,
    model: Path,
    calibration: str,
    evaluation: str,
    method: str | None,
    exclude: Sequence[str],
    folder: Path,
    isa: Isa = "auto",
) -> str:
    """Return the TOML of a recipe in `folder`, from which `qcompile run` makes the chosen trial again."""
    lines = [
        f"# {best.name}: {best.latency_ms:.3g} ms, {best.drop:+.3g} lost. Made by qcompile tune.",
        "version = 1",
        f"name = {plain_toml(model.stem)}",
        "",
        "[model]",
        f"source = {plain_toml(os.path.relpath(model, folder))}",
        "simplify = false # the names of layers below are those of this file",
        "",
        "[data]",
        f"calibration = {plain_toml(seen_from(calibration, folder))}",
        f"evaluation = {plain_toml(seen_from(evaluation, folder))}",
        "",
        "[calibrate]",
        f"method = {plain_toml(method or 'auto')}",
        "",
        *artifact_lines(best, best.name, exclude, isa),
    ]
    return "\n".join(lines) + "\n"


def artifact_lines(best: Trial, name: str, exclude: Sequence[str] = (), isa: Isa = "auto") -> list[str]:
    """Return the `[[artifact]]` of a trial, for a recipe of the same graph."""
    lines = [
        "[[artifact]]",
        f"name = {plain_toml(name)}",
        f"target = {plain_toml(best.target)}",
        f"precision = {plain_toml(best.precision)}",
    ]
    if isa != "auto":
        lines.append(f"isa = {plain_toml(isa)}")
    if best.float_precision != "fp32":
        lines.append(f"float_precision = {plain_toml(best.float_precision)}")
    if best.precision == "int8":
        lines += ["correct_bias = false # as it was measured", "search = false", "allow_loss = true"]
    left = [*exclude, *sorted(best.in_float)] if best.precision == "int8" else []
    if left:
        lines += ["exclude = [", *(f"    {plain_toml(layer)}," for layer in left), "]"]
    return lines


_FAMILIES = {"int8": "int8", "bf16": "half", "fp32": "float"}
_PLOT = (60, 50, 560, 330)  # pixels


def plot_front(
    trials: Mapping[str, Trial], best: Trial, front: Sequence[str], path: Path, *, max_drop: float, unit: str
) -> None:
    """Draw every trial by latency and drop, and the Pareto front, to `path` (inside `files.writing`)."""
    timed = sorted((t for t in trials.values() if t.latency_ms), key=lambda t: t.latency_ms)
    drops = [*(trial.drop for trial in timed), max_drop, 0.0]
    space = max((max(drops) - min(drops)) * 0.12, 0.05)
    x = Scale.over([trial.latency_ms for trial in timed] or [1.0])
    y = Scale(min(drops) - space, max(drops) + space, "symlog" if max(drops) > 10 else "linear")
    places = {trial.name: (x.at(trial.latency_ms), y.at(trial.drop)) for trial in timed}
    drawing = axes(x, y, ("latency, ms (median)", f"drop, {unit} (up is better)"))
    drawing += line((0, y.at(max_drop)), (100, y.at(max_drop)), "mixed", dashes="6 4")
    drawing += text(100, y.at(max_drop), f"budget {max_drop:g}", shift=(0, -5), anchor="end", colour="mixed")
    points = [places[trial.name] for trial in timed if trial.name in front]
    drawing += polyline(points, "muted", width=1.2) if points else ""
    rows = []
    for number, trial in enumerate(timed, 1):
        is_best = trial is best
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
