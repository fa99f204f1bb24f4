"""A stage as data, and the type of the rows in the table of stage kinds.

A `Stage` identifies its files by digest, so it can be sent to another process or machine. `graph.KINDS` has a
row for each kind of stage, with its inputs, key, work and requirements.
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
"""Role of the recipe's source model; a stage refers to it by digest."""


@dataclass(frozen=True)
class StageFile:
    """A file that a stage wrote."""

    path: Path
    digest: str


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a recipe; `kind` is a row of `graph.KINDS`.

    Attributes:
        artifact: Name of the artifact for "quantize" and "build"; the target for "rank".
        shard: Part of the work of "calibrate" or "rank": "2/8" is the second of eight; empty for all.
        source_digest: Digest of the recipe's model, if the stage reads it.
        files: Role ("model", "ranges", "graph" or "results") to input file.
        parts: Shard or kind of machine to the file of that part; the stage then only merges these files.
        built, why_not: For "bench": artifact name to its file, or to the reason why it was not built.
        unavailable: Artifacts that were not built because their runtime is not usable.
        machine: Required kind of machine, such as "sm90" for one with that GPU; empty for any.
        trial: Request of `tune` as JSON, for "trial" and "rank".
    """

    kind: str
    artifact: str = ""
    shard: str = ""
    source_digest: str = ""
    files: Mapping[str, StageFile] = field(default_factory=dict)
    parts: Mapping[str, StageFile] = field(default_factory=dict)
    built: Mapping[str, StageFile] = field(default_factory=dict)
    why_not: Mapping[str, str] = field(default_factory=dict)
    unavailable: tuple[str, ...] = ()
    machine: str = ""
    trial: str = ""

    @property
    def name(self) -> str:
        """Name of the stage: "export", "build-int8", "calibrate-2-of-8"."""
        words = [self.kind, self.artifact, self.shard.replace("/", "-of-"), self.machine]
        return "-".join(filter(None, words))

    def inputs(self) -> list[StageFile]:
        """Return all input files except the recipe's source."""
        return [*self.files.values(), *self.parts.values(), *self.built.values()]


@dataclass(frozen=True)
class StageJob:
    """Output file of a stage, and the folder for published files."""

    path: Path
    output: Path
    progress: Progress


@dataclass(frozen=True)
class Needs:
    """Required and preferred resources of a worker, by their names in `pipeline.cluster.resources`.

    `gpu` means a GPU of any kind; `as_measured` prefers workers with the CPU model of the measurement.
    """

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    gpu: bool = False
    as_measured: bool = False


@dataclass(frozen=True)
class FinishedStage:
    """A finished stage and its file. `where` is the worker that ran it; `was_done`: in an earlier run."""

    file: StageFile
    was_done: bool
    where: str = ""


class Executor(Protocol):
    """Interface of the classes that run stages."""

    @property
    def parallel(self) -> int:
        """Largest number of concurrent stages of one run; each is requested from a separate thread."""

    @property
    def shards(self) -> int:
        """Number of parts of a calibration; 1 does not split it."""

    @property
    def kinds(self) -> Sequence[str]:
        """Compute capabilities of the cluster's GPUs ("sm86"), sorted and unique; empty without a cluster."""

    def do(
        self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
    ) -> FinishedStage | None:
        """Run a stage unless it is finished, and publish its files; None if the stage does not apply."""

    def is_done(self, recipe: Recipe, stage: Stage, store: Store) -> bool:
        """Return whether an earlier run finished a stage, so that `do` would run nothing."""

    def cancel(self) -> None:
        """End the running stages: `do` raises soon in every thread."""


@dataclass(frozen=True)
class Workload:
    """Sizes that the rules compute with; None if unknown.

    Bytes of the FP32 weights, multiply-adds of one sample, usable cores, samples for calibration and for
    evaluation, artifacts measured here, and the time limit of the measurement.
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
    """Estimate of time, memory and disk space for the stages of a kind.

    `seconds` takes the weights in MB, seconds per inference, the workload and the artifact. The time is
    unknown if the stage `runs_model` and the multiply-adds are unknown. Memory is `memory_mb` plus `copies`
    times the weights; with `of_rows`, this for each measured artifact. Disk space is the size of the weights
    in the artifact's precision, if the stage `writes_weights`.
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
        inputs: Role of each input file to the kind of the stage that writes it.
        key: Everything that the result depends on: digests, options and versions.
        work: Function that writes `StageJob.path`; `file` returns its name.
        rule: Estimate of time, memory and disk space; None for a kind that `--dry-run` never shows.
        is_in: Whether a recipe has the stage for the named artifact; False for kinds that only `tune` uses.
        applies: Whether the stage would change the graph with this machine's runtime; else it is skipped.
        replaced: File that the recipe names in place of the stage.
        parts: Stages that share the work, or the stage itself; the last argument: is the whole stage done?
        per_artifact: Each artifact has a stage of this kind.
        ends_run: A failure ends the run; otherwise only the artifacts that need its file fail.
        optional: The run continues if the stage's runtime or library is missing.
        published: Its files get names in the output folder.
        measures: It occupies a machine alone, and its output refers to published files by name.
        in_driver: It runs in the process that drives the run.
        is_complete: Whether a finished file needs no second try; the argument is its path.
    """

    inputs: Callable[[Recipe, str], Mapping[str, str]]
    file: Callable[[Recipe, Stage], str]
    key: Callable[[Recipe, Stage], Key]
    work: Callable[[Recipe, Stage, StageJob], object]
    needs: Callable[[Recipe, Stage], Needs] = lambda *_: Needs()
    rule: Rule | None = None
    is_in: Callable[[Recipe, str], bool] = lambda *_: True
    applies: Callable[[Recipe, Stage], bool] = lambda *_: True
    replaced: Callable[[Recipe], StageFile | None] = lambda _: None
    parts: Parts = lambda _, stage, *__: [stage]
    per_artifact: bool = False
    ends_run: bool = True
    optional: bool = False
    published: bool = True
    measures: bool = False
    in_driver: Callable[[Stage], bool] = lambda _: False
    is_complete: Callable[[Path], bool] = lambda _: True


ANY = ""
"""Any kind of machine. The others are `PROCESSOR`, and compute capabilities: "sm90" has that GPU."""
PROCESSOR = "cpu"
"""Kind of the part of a measurement that needs no GPU, if it is split and other parts need one."""


def expand_cluster_artifacts(recipe: Recipe, kinds: Sequence[str]) -> Recipe:
    """Replace each artifact NAME with `gpus` `CLUSTER` by an artifact NAME-KIND for each kind of GPU."""
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
            artifacts += (find_artifact(recipe, name) for name in names)
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


def find_artifact(recipe: Recipe, name: str) -> ArtifactSection:
    """Return the artifact of this name; without NAME-sm86, the `CLUSTER` artifact NAME for sm86.

    A worker can therefore read the recipe as written, whatever GPUs the cluster has.
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
    """Return the kind of machine to build an artifact on: TensorRT builds for the GPU of its machine."""
    return artifact.gpus[0] if artifact.target == "tensorrt" and len(artifact.gpus) == 1 else ANY


def group_by_machine(
    recipe: Recipe, built_for: Mapping[str, Sequence[str]], kinds: Sequence[str]
) -> dict[str, list[str]]:
    """Map each kind of machine to the artifacts that are measured there, without the baseline.

    An engine goes to each of `kinds` (the cluster's GPUs) that it was built for. The other artifacts go
    together to any machine, or to one with the first kind if `bench.devices` names a GPU. An engine without
    its GPU joins them, and its row gives the reason. The kinds are sorted, `ANY` first.
    """
    assert recipe.bench is not None, "the caller checks it"
    without_gpu = kind_for_unbound(recipe, kinds)
    groups: dict[str, list[str]] = {}
    for name, gpus in built_for.items():
        for kind in [kind for kind in kinds if kind in gpus] or [without_gpu]:
            groups.setdefault(kind, []).append(name)
    if not groups or recipe.bench.models:
        groups.setdefault(without_gpu, [])
    return {kind: groups[kind] for kind in sorted(groups)}


def kind_for_unbound(recipe: Recipe, kinds: Sequence[str]) -> str:
    """Return the kind of machine that measures the artifacts for no particular GPU."""
    devices = recipe.bench.devices if recipe.bench else ()
    return kinds[0] if kinds and any(device != "cpu" for device in devices) else ANY


def split_by_machine(recipe: Recipe, whole: Stage, kinds: Sequence[str]) -> list[Stage]:
    """Return the stage, or a part per kind of machine; the first also has the rows of unbuilt artifacts."""
    from ...core.artifact import read_manifest

    assert recipe.bench is not None, "the caller checks it"
    built_for: dict[str, Sequence[str]] = dict.fromkeys(whole.built, ())
    for name, file in whole.built.items():
        manifest = read_manifest(file.path)
        gpus = manifest.device.get("gpus") if manifest else None
        if isinstance(gpus, list) and find_artifact(recipe, name).target in TENSORRT_TARGETS:
            built_for[name] = tuple(map(str, gpus))
    groups = group_by_machine(recipe, built_for, kinds)
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
