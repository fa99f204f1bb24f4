"""A stage as data that travels, and what a row of the table of kinds says of all stages of one kind.

A `Stage` names its files by their digests, wherever they lie: it can be sent to another process or machine.
`graph.KINDS` has a row for each kind: what its stages are given, their key, their work, and what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ...core.progress import Progress
from ...errors import RecipeError
from ...spec.artifacts import ArtifactSection
from ...spec.decode import Refused
from ...spec.words import CLUSTER, TENSORRT_TARGETS
from ..recipe.published import check_names
from ..recipe.recipe import Recipe, wrong_key
from .store import Store

SOURCE = "source"
"""Role of the recipe's own model, which a stage knows by its digest."""


@dataclass(frozen=True)
class Made:
    """A file that a stage wrote."""

    path: Path
    digest: str


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a recipe; `kind` is a row of `graph.KINDS`.

    Attributes:
        artifact: Name of the artifact, of "quantize" and "build"; of "rank" the target.
        shard: "2/8" is the second of eight parts of the data, of "calibrate"; empty for all.
        source_digest: Of the recipe's model, where the stage reads it.
        files: What it reads by role: "model", "ranges", "graph", "results".
        parts: What its parts wrote, by shard or machine, to be put together in place of its work.
        built, why_not: Artifact name to its file, or to why it was not built, of "bench".
        unavailable: Those that were not built as their engine cannot be used.
        machine: Kind of machine that it must run on, such as "sm90" for one with that GPU; empty for any.
        trial: What `tune` asks for, as JSON, of "trial" and "rank".
    """

    kind: str
    artifact: str = ""
    shard: str = ""
    source_digest: str = ""
    files: Mapping[str, Made] = field(default_factory=dict)
    parts: Mapping[str, Made] = field(default_factory=dict)
    built: Mapping[str, Made] = field(default_factory=dict)
    why_not: Mapping[str, str] = field(default_factory=dict)
    unavailable: tuple[str, ...] = ()
    machine: str = ""
    trial: str = ""

    @property
    def name(self) -> str:
        """Name of the stage: "export", "build-int8", "calibrate-2-of-8"."""
        words = [self.kind, self.artifact, self.shard.replace("/", "-of-"), self.machine]
        return "-".join(filter(None, words))

    def inputs(self) -> list[Made]:
        """Return all files that it reads, but for the recipe's own."""
        return [*self.files.values(), *self.parts.values(), *self.built.values()]


@dataclass(frozen=True)
class StageJob:
    """Where a stage is carried out: the file that it writes, and the folder where files are published."""

    path: Path
    output: Path
    progress: Progress


@dataclass(frozen=True)
class Needs:
    """What a machine must have, by names of `cluster.resources`, and what a stage is better with.

    `gpu` is one of any kind; `as_measured` is a processor as that of the machine that measures.
    """

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    gpu: bool = False
    as_measured: bool = False


@dataclass(frozen=True)
class Done:
    """A stage that is done, by an earlier run or now, and its file; `where` names a worker that did it."""

    made: Made
    was_done: bool
    where: str = ""


class Executor(Protocol):
    """Carries out stages."""

    @property
    def parallel(self) -> int:
        """Stages of one run that may be asked for at a time, each from a thread of its own."""

    @property
    def shards(self) -> int:
        """Parts that a calibration is cut into; 1 keeps it whole."""

    @property
    def kinds(self) -> Sequence[str]:
        """GPUs of the cluster by compute capability ("sm86"), each once, sorted; none without a cluster."""

    def do(
        self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
    ) -> Done | None:
        """Carry out a stage unless it is done, and publish its files; None where there is nothing to do."""

    def is_done(self, recipe: Recipe, stage: Stage, store: Store) -> bool:
        """Whether an earlier run did a stage, so that `do` would carry nothing out."""

    def cancel(self) -> None:
        """End what is carried out: `do` raises soon, in whatever thread it is."""


@dataclass(frozen=True)
class Workload:
    """What the rules count with; None where it is not known.

    Bytes of the FP32 weights, multiply-adds of a sample, cores that may be used, samples that are
    calibrated on and evaluated, artifacts that are measured here, and the measurement's time limit.
    """

    weight_bytes: int | None
    multiply_adds: int | None
    cores: int
    calibrated: int
    evaluated: int
    rows: int
    max_time_s: float


@dataclass(frozen=True)
class Rule:
    """What the stages of a kind take: memory is `memory_mb` and `copies` of the weights, a row for `of_rows`.

    `seconds` is of the weights in MB, the seconds of a sample through the model, the sizes, and the artifact:
    there are none without multiply-adds where the stage `runs_model`. What `writes_weights` writes them in
    the precision of its artifact.
    """

    seconds: Callable[[float, float, Workload, ArtifactSection | None], float]
    runs_model: Callable[[ArtifactSection | None], bool] = lambda _: False
    memory_mb: float = 300
    copies: float = 0
    writes_weights: bool = True
    of_rows: bool = False


Key = dict[str, Any]
Parts = Callable[[Recipe, Stage, Executor, Callable[[], bool]], list[Stage]]


@dataclass(frozen=True, kw_only=True)
class StageKind:
    """A row of the table of kinds.

    Attributes:
        inputs: Role of each file that a stage reads, to the kind of the stage that writes it.
        key: All that its outcome depends on: digests, options and versions.
        work: Writes `StageJob.path`, whose name `file` gives.
        rule: How long it takes, and how much memory and disk; None for one that `--dry-run` never shows.
        is_in: Whether a recipe has such a stage for the artifact of a name; a trial of `tune` is in none.
        applies: Whether there is something to do, by this machine's engine; False is a graph that stays.
        replaced: The file that a recipe names in place of the stage.
        parts: Stages that do its work together; itself where it is done at once. The last argument tells
            whether the whole is done.
        per_artifact: Each artifact has one.
        ends_run: The run ends where it fails; else the artifacts that take its file fail.
        optional: The run goes on where its engine or library is not there.
        published: Its files get their names in the output folder.
        measures: It has a machine for itself, and names the published files in what it writes.
        in_driver: It is done in the process that drives the run.
    """

    inputs: Callable[[Recipe, str], Mapping[str, str]]
    file: Callable[[Recipe, Stage], str]
    key: Callable[[Recipe, Stage], Key]
    work: Callable[[Recipe, Stage, StageJob], object]
    needs: Callable[[Recipe, Stage], Needs] = lambda *_: Needs()
    rule: Rule | None = None
    is_in: Callable[[Recipe, str], bool] = lambda *_: True
    applies: Callable[[Recipe, Stage], bool] = lambda *_: True
    replaced: Callable[[Recipe], Made | None] = lambda _: None
    parts: Parts = lambda _, stage, *__: [stage]
    per_artifact: bool = False
    ends_run: bool = True
    optional: bool = False
    published: bool = True
    measures: bool = False
    in_driver: Callable[[Stage], bool] = lambda _: False


ANY = ""
"""Kind of any machine; others are compute capabilities, as "sm90" of machines with such a GPU."""
PROCESSOR = "cpu"
"""Name of the measurement without a GPU where there are others."""


def for_every_kind(recipe: Recipe, kinds: Sequence[str]) -> Recipe:
    """Return the recipe with an artifact NAME-KIND for each kind of GPU, in place of NAME for `CLUSTER`."""
    clustered = [artifact for artifact in recipe.artifact if artifact.gpus == (CLUSTER,)]
    if not clustered:
        return recipe
    if not kinds:
        key = f"artifact[{recipe.artifact.index(clustered[0])}].gpus"
        problem = f"is {CLUSTER!r}; there is no cluster with a GPU for {clustered[0].name!r}"
        hint = "run it with `scheduler`, or name compute capabilities, such as sm86"
        raise wrong_key(recipe.path, key, problem, hint)
    artifacts: list[ArtifactSection] = []
    try:
        for artifact in recipe.artifact:
            names = (
                [f"{artifact.name}-{kind}" for kind in kinds] if artifact in clustered else [artifact.name]
            )
            artifacts += (named_artifact(recipe, name) for name in names)
        expanded = replace(recipe, artifact=tuple(artifacts))
        check_names(expanded)
    except Refused as error:
        raise RecipeError(
            f"{recipe.path}: with artifacts for {', '.join(kinds)}, key '{error.key}' {error.sentence}",
            hint=error.hint,
            file=recipe.path,
            key=error.key,
        ) from error
    return expanded


def named_artifact(recipe: Recipe, name: str) -> ArtifactSection:
    """Return the artifact of a name; "NAME-sm86" is also NAME of the cluster's GPUs, for this kind.

    So a worker reads the recipe as it was written, whatever the cluster has.
    """
    for artifact in recipe.artifact:
        if artifact.name == name:
            return artifact
    for artifact in recipe.artifact:
        kind = name.removeprefix(f"{artifact.name}-")
        if artifact.gpus == (CLUSTER,) and kind != name:
            return replace(artifact, name=name, gpus=(kind,))
    raise KeyError(name)


def built_on(artifact: ArtifactSection) -> str:
    """Return the kind of machine that an artifact must be built on: TensorRT builds for the GPU it finds."""
    return artifact.gpus[0] if artifact.target == "tensorrt" and len(artifact.gpus) == 1 else ANY


def measured_on(
    recipe: Recipe, built_for: Mapping[str, Sequence[str]], kinds: Sequence[str]
) -> dict[str, list[str]]:
    """Return kind of machine to the artifacts that are measured there, beside the baseline.

    An engine goes to each of `kinds`, the cluster's GPUs, that it was built for; where none is there, it
    stays with the others, where its row says why it does not run. The others go where no GPU is needed;
    where `bench.devices` names a GPU, to the machines with the first kind. The kinds are in order, the one
    without a GPU first; without any, all is measured together.
    """
    assert recipe.bench is not None, "the caller looks first"
    without_gpu = kind_of_others(recipe, kinds)
    groups: dict[str, list[str]] = {}
    for name, gpus in built_for.items():
        for kind in [kind for kind in kinds if kind in gpus] or [without_gpu]:
            groups.setdefault(kind, []).append(name)
    if not groups or recipe.bench.models:
        groups.setdefault(without_gpu, [])
    return {kind: groups[kind] for kind in sorted(groups)}


def kind_of_others(recipe: Recipe, kinds: Sequence[str]) -> str:
    """Return the kind of machine that measures what is for no kind of GPU."""
    devices = recipe.bench.devices if recipe.bench else ()
    return kinds[0] if kinds and any(device != "cpu" for device in devices) else ANY


def measured_apart(recipe: Recipe, whole: Stage, kinds: Sequence[str]) -> list[Stage]:
    """Return the stage that measures all, or one for each kind of machine, that of the processor first.

    The first of them has the rows of what was not built.
    """
    from ...core.artifact import read_manifest

    assert recipe.bench is not None, "the caller looks first"
    built_for: dict[str, Sequence[str]] = dict.fromkeys(whole.built, ())
    for name, file in whole.built.items():
        manifest = read_manifest(file.path)
        gpus = manifest.device.get("gpus") if manifest else None
        if isinstance(gpus, list) and named_artifact(recipe, name).target in TENSORRT_TARGETS:
            built_for[name] = tuple(map(str, gpus))
    groups = measured_on(recipe, built_for, kinds)
    if list(groups) == [ANY]:
        return [whole]
    stages: list[Stage] = []
    baseline = recipe.bench.baseline
    baseline_gpus = built_for.get(baseline, ())
    for kind, names in groups.items():
        if not baseline_gpus or kind in baseline_gpus:
            names = [*names, baseline]
        built = {name: file for name, file in whole.built.items() if name in names}
        stage = replace(whole, machine=kind or PROCESSOR, built=built)
        stages.append(replace(stage, why_not={}, unavailable=()) if stages else stage)
    return stages
