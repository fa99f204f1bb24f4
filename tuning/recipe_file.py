"""Write the chosen trial as a recipe, from which `qcompile run` makes the same artifact again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..data.batches import seen_from
from ..model.source import parse_source
from ..plain_text import plain_toml
from ..spec.words import Isa
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
    """Return the TOML of a recipe that lies in `folder`."""
    lines = [
        f"# {best.name}: {best.latency_ms:.3g} ms, {best.drop:+.3g} lost. Made by qcompile tune.",
        "version = 1",
        f"name = {_text(model.stem)}",
        "",
        "[model]",
        f"source = {_text(_relative(str(model), folder))}",
        "simplify = false # the names of layers below are those of this file",
        "",
        "[data]",
        f"calibration = {_text(seen_from(calibration, folder))}",
        f"evaluation = {_text(seen_from(evaluation, folder))}",
        "",
        "[calibrate]",
        f"method = {_text(method or 'auto')}",
        "",
        *artifact_lines(best, best.name, exclude, isa),
    ]
    return "\n".join(lines) + "\n"


def artifact_lines(best: Trial, name: str, exclude: Sequence[str] = (), isa: Isa = "auto") -> list[str]:
    """Return the `[[artifact]]` of a trial, for a recipe of the same graph."""
    lines = [
        "[[artifact]]",
        f"name = {_text(name)}",
        f"target = {_text(best.target)}",
        f"precision = {_text(best.precision)}",
    ]
    if isa != "auto":
        lines.append(f"isa = {_text(isa)}")
    if best.float_precision != "fp32":
        lines.append(f"float_precision = {_text(best.float_precision)}")
    if best.precision == "int8":
        lines += ["correct_bias = false # as it was measured", "search = false", "allow_loss = true"]
    left = [*exclude, *sorted(best.in_float)] if best.precision == "int8" else []
    if left:
        lines += ["exclude = [", *(f"    {_text(layer)}," for layer in left), "]"]
    return lines


def _text(value: str) -> str:
    """A TOML string: JSON's escapes are among TOML's."""
    return plain_toml(value)


def _relative(spelling: str, folder: Path) -> str:
    """A path, or the path in `file.py:function`, as seen from the recipe."""
    source = parse_source(spelling) if not Path(spelling).exists() else None
    if source is not None and source.is_named:
        return source.absolute
    if source is None or source.path is None:
        return os.path.relpath(spelling, folder) if Path(spelling).exists() else spelling
    return f"{os.path.relpath(source.path, folder)}:{source.function}"
