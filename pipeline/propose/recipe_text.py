"""A proposal becomes the text of a recipe: every key with its reason beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...figures import bytes_text, figure
from ...plain_text import plain, plain_toml
from .choose import CALIBRATION_SAMPLES, Choice, Line, Machine
from .data_facts import DataFacts
from .model_facts import ModelFacts

SCHEMA = Path(__file__).parents[2] / "docs" / "recipe.schema.json"


@dataclass(frozen=True)
class Proposal:
    """All that a recipe says.

    Attributes:
        source: The model as the recipe's folder has it; `calibration` and `evaluation` likewise.
        model_options: More keys of `[model]`.
        command: What wrote it.
    """

    model: ModelFacts
    data: DataFacts
    machine: Machine
    choice: Choice
    source: str
    calibration: str
    evaluation: str
    model_options: tuple[Line, ...]
    bench: Sequence[Line]
    command: str


def recipe_text(proposal: Proposal) -> str:
    """Return the TOML text."""
    return "\n".join(_written(proposal)) + "\n"


def _written(proposal: Proposal) -> Iterable[str]:
    model, choice = proposal.model, proposal.choice
    if SCHEMA.is_file():  # editors that know taplo's line complete and check the keys
        yield f"#:schema {SCHEMA.as_uri()}"
    yield "# Every choice below is yours to change. Paths are relative to this file. It was written by"
    yield f"#   {plain(proposal.command)}"
    yield f"#   model    {plain(_model_words(model))}"
    yield f"#   machine  {plain(proposal.machine.processor)}, {_counted(proposal.machine.cores, 'core')}"
    for note in (*model.notes, *proposal.data.notes):
        yield f"#   note     {plain(note)}"
    top: list[Line] = [
        ("version", 1, ""),
        ("name", model.name, "of the ONNX files"),
        ("output", "out", "artifacts, results.json and report.html"),
    ]
    yield from _table("", top)
    inputs: list[Line] = [("inputs", list(model.declared), model.why_inputs)] if model.declared else []
    yield from _table("[model]", [("source", proposal.source, ""), *inputs, *proposal.model_options])
    yield from _data(proposal)
    for one in choice.artifacts:
        yield from _table(f"[[artifact]]  # {plain(one.why)}", [("name", one.name, ""), *one.lines])
    yield from _table("[bench]", list(proposal.bench))
    if choice.left_out:
        yield from ("", "# Left out:")
        yield from (f"#   {plain(one)}" for one in choice.left_out)


def _data(proposal: Proposal) -> Iterable[str]:
    data = proposal.data
    lines: list[Line] = []
    if proposal.calibration:
        why = {
            "divided": "a part of the set, disjoint from the other",
            "same": "the same samples as below; two sets tell the accuracy of INT8 more honestly",
        }.get(data.shared, "samples that the ranges of INT8 are observed on")
        lines.append(("calibration", proposal.calibration, why))
    if proposal.evaluation:
        count = "" if data.samples is None else f"{_counted(data.samples, 'sample')}, "
        labels = "with labels" if data.has_labels else "no labels"
        lines.append(("evaluation", proposal.evaluation, f"{count}{labels}"))
    if lines:
        yield from _table("[data]", lines)
    if any(("precision", "int8", "") in one.lines for one in proposal.choice.artifacts) and (
        proposal.calibration
    ):
        why = "more samples seldom change the ranges; 0 takes all"
        yield from _table("[calibrate]", [("samples", CALIBRATION_SAMPLES, why)])


def _table(header: str, lines: Sequence[Line]) -> Iterable[str]:
    yield ""
    if header:
        yield header
    for key, value, why in lines:
        yield f"{key} = {toml(value)}{f'  # {plain(why)}' if why else ''}"


def _model_words(model: ModelFacts) -> str:
    parts = [model.source.spec]
    if model.parameters:
        parts.append(f"{_large(model.parameters)} weights ({bytes_text(model.weight_bytes)})")
    if model.multiply_adds:
        parts.append(f"{_large(model.multiply_adds)} multiply-adds a sample")
    if model.kinds:
        parts.append(", ".join(sorted(model.kinds)))
    return "; ".join(" ".join(part.split()) for part in parts)


def _large(count: float) -> str:
    """ "11.7 M", "1.82 G"."""
    for unit in ("", " k", " M"):
        if count < 999.5:
            return f"{figure(count) if unit else int(count)}{unit}"
        count /= 1000
    return f"{figure(count)} G"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def toml(value: object) -> str:
    """Return a value as TOML spells it: JSON's escapes are among TOML's."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return plain_toml(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml, value))}]"
    return str(value)
