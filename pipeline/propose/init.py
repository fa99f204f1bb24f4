"""`qcompile init`: write a ready-to-run recipe with a comment that explains each choice."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...bench.results.drop import Need
from ...core.figures import bytes_text, figure
from ...core.files import write_text
from ...core.installation import install_hint
from ...core.plain_text import plain, toml_table
from ...core.processor import processor
from ...core.progress import Progress, silent
from ...errors import EngineUnavailable, InvalidOption
from ...model.sessions.session import usable_cores
from ...model.sources.source import RANDOM, parse_source
from ...spec.decode import spec_from_call
from ...spec.recipes import InitSpec
from ..recipe.recipe import Recipe, parse_recipe, parse_toml
from .choose import (
    CALIBRATION_SAMPLES,
    ArtifactChoice,
    DataFacts,
    Line,
    bench_lines,
    budget_need,
    look_at_data,
    look_at_machine,
    relocate_data,
)
from .model_facts import ModelFacts, look_at_model, relocate_source, shortest_path_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import InitKeywords

SCHEMA = Path(__file__).parents[2] / "docs" / "recipe.schema.json"


def _recipe_lines(
    source: str, spec: InitSpec, model: ModelFacts, data: DataFacts, choice: ArtifactChoice, command: str
) -> Iterator[str]:
    """Yield the lines of the recipe."""
    folder = spec.output.parent
    if SCHEMA.is_file():  # editors with taplo support use this line to complete and check keys
        yield f"#:schema {SCHEMA.as_uri()}"
    yield "# Every choice below is yours to change. Paths are relative to this file. It was written by"
    yield f"#   {plain(command)}"
    facts = [model.source.spec]
    if model.parameters:
        facts.append(f"{_count_text(model.parameters)} weights ({bytes_text(model.weight_bytes)})")
    if model.multiply_adds:
        facts.append(f"{_count_text(model.multiply_adds)} multiply-adds a sample")
    facts += [", ".join(sorted(model.kinds))] if model.kinds else []
    yield f"#   model    {plain('; '.join(' '.join(part.split()) for part in facts))}"
    yield f"#   machine  {plain(str(processor()['processor']))}, {_with_unit(usable_cores(), 'core')}"
    for note in (*model.notes, *data.notes):
        yield f"#   note     {plain(note)}"
    head: list[Line] = [
        ("version", 1, ""),
        ("name", model.name, "of the ONNX files"),
        ("output", _output_folder(spec.output), "artifacts, results.json and report.html"),
    ]
    yield from toml_table("", head)
    lines: list[Line] = [("source", relocate_source(parse_source(source), folder), "")]
    if model.declared:
        lines.append(("inputs", list(model.declared), model.why_inputs))
    if spec.weights == RANDOM:
        lines.append(("weights", RANDOM, "of its seed"))
    elif spec.weights:
        lines.append(
            ("weights", shortest_path_text(folder, Path(spec.weights)), "in place of the model's own")
        )
    if spec.download:
        lines.append(("download", True, "the package may download what its cache lacks"))
    if spec.trust:
        lines.append(("trust", True, "the model's file may run code when it is loaded"))
    if not model.is_onnx:
        lines.append(("simplify", True, "folds and fuses; the outputs stay equal"))
    yield from toml_table("[model]", lines)
    yield from _data_lines(data, folder, choice)
    for artifact in choice.artifacts:
        header = f"[[artifact]]  # {plain(artifact.why)}"
        yield from toml_table(header, [("name", artifact.name, ""), *artifact.lines])
    yield from toml_table("[bench]", bench_lines(model, data, choice.artifacts, spec))
    if choice.left_out:
        yield from ("", "# Left out:")
        yield from (f"#   {plain(str(item))}" for item in choice.left_out)


def _output_folder(path: Path) -> str:
    """Return an output folder that no other recipe beside `path` uses, to prevent overwritten artifacts."""
    for file in path.parent.glob("*.toml"):
        with contextlib.suppress(OSError, ValueError):
            values = parse_toml(file.read_bytes())
            is_other = "artifact" in values and file.name != path.name
            if is_other and values.get("output", "out") == "out":
                return f"out-{path.stem}"
    return "out"


def _data_lines(data: DataFacts, folder: Path, choice: ArtifactChoice) -> Iterator[str]:
    lines: list[Line] = []
    if data.calibration:
        why = {
            "divided": "a part of the set, disjoint from the other",
            "same": "the same samples as below; separate sets measure the accuracy of INT8 without bias",
        }.get(data.shared, "samples that the ranges of INT8 are observed on")
        lines.append(("calibration", relocate_data(data.calibration, folder), why))
    if data.evaluation:
        count = "" if data.samples is None else f"{_with_unit(data.samples, 'sample')}, "
        labels = "with labels" if data.has_labels else "no labels"
        lines.append(("evaluation", relocate_data(data.evaluation, folder), f"{count}{labels}"))
    if lines:
        yield from toml_table("[data]", lines)
    if data.calibration and any(("precision", "int8", "") in artifact.lines for artifact in choice.artifacts):
        why = "more samples seldom change the ranges; 0 takes all"
        yield from toml_table("[calibrate]", [("samples", CALIBRATION_SAMPLES, why)])


def _count_text(count: float) -> str:
    """Return a rounded count: "11.7 M", "1.82 G"."""
    for unit in ("", " k", " M"):
        if count < 999.5:
            return f"{figure(count) if unit else int(count)}{unit}"
        count /= 1000
    return f"{figure(count)} G"


def _with_unit(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


@dataclass(frozen=True)
class InitResult:
    """The written recipe, its choice of artifacts, and the facts about model and data."""

    path: Path
    recipe: Recipe
    text: str
    choice: ArtifactChoice
    model: ModelFacts
    data: DataFacts
    need: Need | None

    @property
    def notes(self) -> list[str]:
        """Notes about the model and the data, and whether there are too few samples for the budget."""
        too_few = [self.need.text] if self.need and self.need.is_met is False else []
        return [*self.model.notes, *self.data.notes, *too_few]

    def as_json(self) -> dict[str, Any]:
        model, data = self.model, self.data
        artifacts, left_out = self.choice.artifacts, self.choice.left_out
        return {
            "recipe": str(self.path),
            "artifacts": [{"name": item.name, "target": item.target, "why": item.why} for item in artifacts],
            "left_out": [vars(item) for item in left_out],
            "inputs": [tensor.as_json() for tensor in model.inputs],
            "kinds": sorted(model.kinds),
            "parameters": model.parameters,
            "multiply_adds": model.multiply_adds,
            "data": data.kind,
            "samples": data.samples,
            "has_labels": data.has_labels,
            "metric": data.metric,
            "notes": self.notes,
        }


def init(
    model: str,
    output: str | Path = "recipe.toml",
    spec: InitSpec | None = None,
    /,
    *,
    command: Sequence[str] = (),
    progress: Progress = silent,
    **options: Unpack[InitKeywords],
) -> InitResult:
    """Write a recipe for a model.

    Args:
        model: A MODEL argument.
        output: The file to write.
        spec: Options of the proposal.
        command: The command line that writes the recipe, for the comment at its start.
        progress: Called with each step.
        options: Fields of `InitSpec` by name, in place of those of `spec`.

    Returns:
        The recipe, its text, and the reasons behind its choices.

    Raises:
        InvalidOption: If the file exists, or the model's inputs are unknown; the hint shows which to give.
        ModelError, DataError, MissingFile: If the model or the data cannot be read.
        EngineUnavailable: If nothing can be built here.
    """
    spec = spec_from_call(InitSpec, spec, {"output": output, **options})
    path = spec.output
    if path.exists() and not spec.force:
        raise InvalidOption(
            f"`output` {path}: exists already",
            hint="give another name, or `force` to overwrite it",
            option="output",
        )
    command = command or ("qcompile", "init", model)
    facts = look_at_model(
        model, inputs=spec.inputs, weights=spec.weights, download=spec.download,
        samples=(spec.data, spec.calibration, spec.evaluation), trust=spec.trust, progress=progress,
    )  # fmt: skip
    data = look_at_data(spec, facts.inputs, facts.outputs, progress=progress)
    if facts.precision == "int8":  # the graph holds its scales, so no calibration is needed
        data = replace(data, calibration="")
    progress("look at the installation")
    choice = ArtifactChoice(facts, data, look_at_machine(), targets=spec.requested_targets, gpus=spec.gpus)
    if not choice.artifacts:
        raise EngineUnavailable(
            "nothing can be built here: no runtime is installed", hint=install_hint("cpu"), engine=""
        )
    text = "\n".join(_recipe_lines(model, spec, facts, data, choice, shlex.join(command))) + "\n"
    recipe = parse_recipe(text.encode(), path)  # validate before writing
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    need = budget_need(data, choice.artifacts, spec)
    return InitResult(path, recipe, text, choice, facts, data, need)
