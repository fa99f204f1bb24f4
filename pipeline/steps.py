"""One stage of a recipe as data, and the stage that it means.

A `Stage` holds its work as a function; a `Step` can be sent to another process or machine, which makes the
same `Stage` of it there. The files that it is given are named by their digests, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from ..errors import EngineUnavailable, QCompileError
from ..machine_memory import out_of_memory
from ..model.source import digest_source
from ..progress import Progress
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
from .store import FOLDER, Store
from .trial_stages import rank_stage, trial_stage

T = TypeVar("T")
Kind = Literal["export", "simplify", "calibrate", "quantize", "build", "bench", "report", "trial", "rank"]


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

    None is a graph that stays as it is: in float, of PyTorch, or for an engine that is not here, whose
    build then says so.
    """
    return _STAGES[step.kind](recipe, step, output)


def takes_pytorch(one: ArtifactSection) -> bool:
    """Whether an artifact is built from the source itself, not from ONNX."""
    from ..engines.registry import engine

    return engine(one.target).takes == "pytorch"


def _calibrate(recipe: Recipe, step: Step, output: Path) -> Stage:
    checkpoint = output / FOLDER / f"{step.name}.checkpoint"
    return calibrate_stage(recipe, step.files["model"], checkpoint, shard=step.shard, parts=step.shards)


def _lower(recipe: Recipe, step: Step, _: Path) -> Stage | None:
    from ..engines.registry import capabilities, engine

    one = named_artifact(recipe, step.artifact)
    try:
        needs = capabilities(engine(one.target))
    except EngineUnavailable:
        return None
    return lower_stage(recipe, one, step.files["model"], step.files.get("ranges"), needs)


def _build(recipe: Recipe, step: Step, _: Path) -> Stage:
    one, files = named_artifact(recipe, step.artifact), step.files
    if takes_pytorch(one):
        return build_stage(recipe, one, recipe_source(recipe).absolute, step.source_digest)
    model, ranges, graph = files["model"], files.get("ranges"), files.get("graph")
    return build_stage(recipe, one, str(model.path), model.digest, ranges=ranges, graph=graph)


_STAGES: Mapping[Kind, Callable[[Recipe, Step, Path], Stage | None]] = {
    "export": lambda recipe, step, _: export_stage(recipe, step.source_digest),
    "simplify": lambda recipe, step, _: simplify_stage(recipe, step.files["model"]),
    "calibrate": _calibrate,
    "quantize": _lower,
    "build": _build,
    "bench": lambda recipe, step, output: (
        bench_stage(recipe, step, output) if step.source_digest else join_stage(step.files, output)
    ),
    "report": lambda recipe, step, _: report_stage(step.files, recipe.budget),
    "trial": lambda recipe, step, _: trial_stage(recipe, step.name, step.trial),
    "rank": lambda recipe, step, _: rank_stage(recipe, step.name, step.trial, step.artifact, step.shard),
}
"""Kind of step to the stage that it means."""


@dataclass(frozen=True)
class Done:
    """A stage that is done, by an earlier run or now, and its file, kept in the run's store and published.

    `where` is the worker that did it; empty for this process.
    """

    made: Made
    was_done: bool
    where: str = ""


class Executor(Protocol):
    """Carries out steps."""

    @property
    def parallel(self) -> int:
        """Steps of one run that may be asked for at a time, each from a thread of its own."""

    @property
    def shards(self) -> int:
        """Parts that a calibration is cut into; 1 keeps it whole."""

    @property
    def kinds(self) -> Sequence[str]:
        """GPUs of the cluster by compute capability ("sm86"), each once, sorted; none without a cluster."""

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        """Carry out a step unless it is done, and publish its files; None where it means no stage."""

    def is_done(self, recipe: Recipe, step: Step, store: Store) -> bool:
        """Whether an earlier run did a step, so that `do` would carry nothing out."""

    def cancel(self) -> None:
        """End what is carried out: `do` raises soon, in whatever thread it is."""


class ThisProcess:
    """Carries out one step after the other, here."""

    parallel = 1
    shards = 1
    kinds: Sequence[str] = ()

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        """As `Executor.do`."""
        stage = stage_of(recipe, step, store.output)
        if stage is None:
            return None
        stored = store.run(
            stage.name,
            {**stage.key, "file": stage.file},
            lambda folder: carry_out(stage, folder, store.output, progress),
            again=again,
            publish=not step.shard,
        )
        return Done(Made(stored.folder / stage.file, stored.files[stage.file]), stored.was_done)

    def is_done(self, recipe: Recipe, step: Step, store: Store) -> bool:
        """As `Executor.is_done`, by the tools of this machine."""
        stage = stage_of(recipe, step, store.output)
        return stage is not None and store.find(stage.name, {**stage.key, "file": stage.file}) is not None

    def cancel(self) -> None:
        """Nothing runs in other threads."""


def carry_out(stage: Stage, folder: Path, output: Path, progress: Progress) -> None:
    """Do the work of a stage in a folder."""
    try:
        stage.work(folder / stage.file, progress)
    except Exception as error:
        shortage = out_of_memory(error, stage.name)
        if shortage is not None and shortage is not error:
            raise shortage from error
        if not isinstance(error, QCompileError):
            raise
        # The folder has another name each time, and is gone: say where the file would be.
        error.message = error.message.replace(str(folder), str(output))
        raise


def each(executor: Executor, tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Do several things, as many at a time as an executor takes; an error ends all."""
    if (parallel := min(executor.parallel, len(tasks))) < 2:
        return [task() for task in tasks]
    with ThreadPoolExecutor(parallel, "qcompile") as threads:
        try:
            futures = [threads.submit(task) for task in tasks]
            for future in as_completed(futures):
                future.result()
            return [future.result() for future in futures]
        except BaseException:  # the threads cannot be interrupted, what they wait for can
            executor.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
