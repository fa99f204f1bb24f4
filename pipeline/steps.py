"""One stage of a recipe as data, and the stage that it means.

A `Stage` holds its work as a function; a `Step` can be sent to another process or machine, which makes the
same `Stage` of it there. The files that it is given are named by their digests, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import EngineUnavailable
from ..model.source import digest_source
from .bench_stages import bench_stage, join_stage, report_stage
from .kinds import named_artifact
from .recipe import ArtifactSection, Recipe
from .stages import (
    Made,
    Stage,
    build_stage,
    calibrate_stage,
    export_stage,
    lower_stage,
    recipe_source,
    simplify_stage,
)
from .store import FOLDER
from .trial_stages import rank_stage, trial_stage

Kind = Literal[
    "export",
    "simplify",
    "calibrate",
    "quantize",
    "build",
    "bench",
    "report",
    "trial",
    "rank",
]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One stage of a recipe.

    Attributes:
        kind: What is done.
        artifact: Name of the artifact, of "quantize" and "build".
        shard: "2/8" is the second of eight parts of the data, of "calibrate"; empty for all.
        source_digest: Of the recipe's model, of "export", "build" and "bench".
        files: What it is given: "model", "ranges", "graph", "results"; of "bench", the "model" that is
            measured in place of TensorFlow's, or what each kind of machine measured, to be put together.
        shards: The ranges of every part, of "calibrate": they are merged in place of observing again.
        built: Artifact name to its file, of "bench".
        why_not: Artifact name to why it was not built, of "bench".
        unavailable: Those of them whose engine cannot be used.
        machine: Kind of machine that it must run on, such as "sm90" for one with that GPU; empty for any.
        trial: What `tune` asks for, as JSON, of "trial" and "rank".
    """

    kind: Kind
    artifact: str = ""
    shard: str = ""
    source_digest: str = ""
    files: Mapping[str, Made] = field(default_factory=dict)
    shards: tuple[Made, ...] = ()
    built: Mapping[str, Made] = field(default_factory=dict)
    why_not: Mapping[str, str] = field(default_factory=dict)
    unavailable: tuple[str, ...] = ()
    machine: str = ""
    trial: str = ""

    @property
    def name(self) -> str:
        """Name of the stage: "export", "build-int8", "calibrate-2-of-8"."""
        part = self.shard.replace("/", "-of-") if self.shard else ""
        machine = self.machine if self.kind == "bench" else ""
        return "-".join(filter(None, [self.kind, self.artifact, part, machine]))

    def given(self) -> list[Made]:
        """Return all files that it reads, but for the recipe's own."""
        return [*self.files.values(), *self.shards, *self.built.values()]


def source_digest(recipe: Recipe) -> str:
    """Return the digest of a recipe's model and of what it depends on."""
    depends = [recipe.folder / name for name in recipe.model.depends]
    return digest_source(recipe_source(recipe), depends=depends)


def stage_of(recipe: Recipe, step: Step, output: Path) -> Stage | None:
    """Return the stage that a step means here, keyed by what this machine has.

    Args:
        recipe: The recipe that it belongs to.
        step: The step; its files lie on this machine.
        output: Folder that the artifacts are published to.

    Returns:
        None for a graph that stays as it is: in float, of PyTorch, or for an engine that is not here, whose
        build then says so.
    """
    model, ranges = step.files.get("model"), step.files.get("ranges")
    if step.kind == "export":
        return export_stage(recipe, recipe_source(recipe), step.source_digest)
    if step.kind == "simplify":
        return simplify_stage(recipe, _given(model))
    if step.kind == "calibrate":
        checkpoint = output / FOLDER / f"{step.name}.checkpoint"
        return calibrate_stage(recipe, _given(model), checkpoint, shard=step.shard, parts=step.shards)
    if step.kind == "quantize":
        return _lowering(recipe, artifact(recipe, step.artifact), _given(model), ranges)
    if step.kind == "build":
        return _build(recipe, step)
    if step.kind == "trial":
        return trial_stage(recipe, step.name, step.trial)
    if step.kind == "rank":
        return rank_stage(recipe, step.name, step.trial, step.artifact, step.shard)
    if step.kind == "report":
        return report_stage(_given(step.files.get("results")), ranges, recipe.budget)
    if step.files and model is None:
        return join_stage(step.files, output)
    return bench_stage(
        recipe, recipe_source(recipe), step.source_digest, step.built, output, step.why_not, step.unavailable,
        step.machine,
    )  # fmt: skip


def artifact(recipe: Recipe, name: str) -> ArtifactSection:
    """Return the artifact of this name."""
    return named_artifact(recipe, name)


def takes_pytorch(one: ArtifactSection) -> bool:
    """Whether an artifact is built from the source itself, not from ONNX."""
    from ..engines.registry import engine

    return engine(one.target).takes == "pytorch"


def _lowering(recipe: Recipe, one: ArtifactSection, model: Made, ranges: Made | None) -> Stage | None:
    from ..engines.capabilities import capabilities
    from ..engines.registry import engine

    try:
        needs = capabilities(engine(one.target))
    except EngineUnavailable:
        return None
    return lower_stage(recipe, one, model, ranges, needs)


def _build(recipe: Recipe, step: Step) -> Stage:
    one = artifact(recipe, step.artifact)
    if takes_pytorch(one):
        return build_stage(recipe, one, recipe_source(recipe).absolute, step.source_digest)
    model = _given(step.files.get("model"))
    ranges, graph = step.files.get("ranges"), step.files.get("graph")
    return build_stage(recipe, one, str(model.path), model.digest, ranges=ranges, graph=graph)


def _given(made: Made | None) -> Made:
    assert made is not None, "the caller gives it"
    return made
