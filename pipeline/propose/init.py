"""`qcompile init`: write a commented recipe that runs at once."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import EngineUnavailable, InvalidOption
from ...files import write_text
from ...model.source import RANDOM, parse_source
from ...progress import Progress, silent
from ...spec.decode import called
from ...spec.first_use import InitSpec
from ...spec.words import TARGETS
from ...tensors import Feeds
from ..recipe import Recipe, make_recipe
from .choose import Choice, Line, bench_lines, choose_artifacts, look_at_machine
from .data_facts import DataFacts, first_sample, look_at_data, relocated
from .model_facts import ModelFacts, look_at_model, seen_from, spelled_from
from .recipe_text import Proposal, recipe_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import InitKeywords
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class InitResult:
    """What was written, the choice of its artifacts, and what the model and the data tell."""

    path: Path
    recipe: Recipe
    text: str
    choice: Choice
    model: ModelFacts
    data: DataFacts

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        return {
            "recipe": str(self.path),
            "artifacts": [
                {"name": one.name, "target": one.target, "why": one.why} for one in self.choice.artifacts
            ],
            "left_out": [{"what": one.what, "why": one.why, "how": one.how} for one in self.choice.left_out],
            "inputs": [one.as_json() for one in self.model.inputs],
            "kinds": sorted(self.model.kinds),
            "parameters": self.model.parameters,
            "multiply_adds": self.model.multiply_adds,
            "data": self.data.kind,
            "samples": self.data.samples,
            "has_labels": self.data.has_labels,
            "metric": self.data.metric,
            "notes": [*self.model.notes, *self.data.notes],
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
        model: A MODEL spelling.
        output: The file to write.
        spec: What it is proposed from.
        command: Words that write it again, for its first line.
        progress: Told of every step.
        options: Fields of `InitSpec` by name, in place of those of `spec`.

    Returns:
        The recipe, its text, and the reasons behind its choices.

    Raises:
        InvalidOption: If the file exists, or the model's inputs are not known; it says which to give.
        ModelError, DataError, MissingFile: If the model or the data cannot be read.
        EngineUnavailable: If nothing can be built here.
    """
    spec = called(InitSpec, spec, {"output": output, **options})
    path = spec.output
    if path.exists() and not spec.force:
        raise InvalidOption(
            f"`output` {path}: exists already",
            hint="give another name, or `force` to overwrite it",
            option="output",
        )
    command = command or ("qcompile", "init", model)
    proposal = propose(model, spec, command=command, progress=progress)
    text = recipe_text(proposal)
    recipe = make_recipe(tomllib.loads(text), path)  # it must be read back before anybody gets it
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return InitResult(path, recipe, text, proposal.choice, proposal.model, proposal.data)


def propose(source: str, asked: InitSpec, *, command: Sequence[str], progress: Progress) -> Proposal:
    """Look at model, data and machine, and decide on a recipe."""
    spellings = [spec for spec in (asked.data, asked.calibration, asked.evaluation) if spec]

    def samples(names: Sequence[str]) -> Feeds | None:
        return next((feeds for spec in spellings if (feeds := first_sample(spec, names))), None)

    model = look_at_model(
        source, inputs=asked.inputs, weights=asked.weights, download=asked.download,
        samples=samples, trust=asked.trust, progress=progress,
    )  # fmt: skip
    data = look_at_data(asked, model.inputs, model.outputs, progress=progress)
    progress("look at the installation")
    machine = look_at_machine(TARGETS)
    choice = choose_artifacts(model, data, machine, targets=asked.asked, gpus=asked.gpus)
    if not choice.artifacts:
        raise EngineUnavailable(
            "nothing can be built here: no runtime is installed",
            hint="pip install 'qcompile[cpu]'",
            engine="",
        )
    folder = asked.output.parent
    options: list[Line] = []
    if asked.weights:
        why = "of its seed" if asked.weights == RANDOM else "in place of the model's own"
        place = asked.weights if asked.weights == RANDOM else seen_from(folder, Path(asked.weights))
        options.append(("weights", place, why))
    if asked.download:
        options.append(("download", True, "the package may download what its cache lacks"))
    if asked.trust:
        options.append(("trust", True, "the model's file may run code when it is loaded"))
    if not model.is_onnx:
        options.append(("simplify", True, "folds and fuses; the outputs stay equal"))
    return Proposal(
        model,
        data,
        machine,
        choice,
        spelled_from(parse_source(source), folder),
        relocated(data.calibration, folder),
        relocated(data.evaluation, folder),
        tuple(options),
        bench_lines(
            model, data, choice.artifacts,
            metric=asked.metric, max_drop=asked.max_drop, max_time_s=asked.max_time_s,
        ),
        shlex.join(command),
    )  # fmt: skip
