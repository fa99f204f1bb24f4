"""A stage as data that travels, and what a row of the table of kinds says of all stages of one kind.

A `Stage` names its files by their digests, wherever they lie: it can be sent to another process or machine.
`graph.KINDS` has a row for each kind: what its stages are given, their key, their work, and what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..progress import Progress
from ..spec.artifacts import ArtifactSection
from .recipe import Recipe
from .store import Store

SOURCE = "source"
"""Role of the recipe's own model, which a stage knows by its digest."""


@dataclass(frozen=True)
class Made:
    """A file that a stage wrote: where it is kept, and its digest."""

    path: Path
    digest: str


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a recipe.

    Attributes:
        kind: What is done: a row of `graph.KINDS`.
        artifact: Name of the artifact, of "quantize" and "build"; of "rank" the target.
        shard: "2/8" is the second of eight parts of the data, of "calibrate"; empty for all.
        source_digest: Of the recipe's model, where the stage reads it.
        files: What it is given by role: "model", "ranges", "graph", "results".
        parts: What its parts wrote, by shard or machine, to be put together in place of its work.
        built: Artifact name to its file, of "bench".
        why_not: Artifact name to why it was not built, of "bench".
        unavailable: Those of them whose engine cannot be used.
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
        return "-".join(
            filter(None, [self.kind, self.artifact, self.shard.replace("/", "-of-"), self.machine])
        )

    def inputs(self) -> list[Made]:
        """Return all files that it reads, but for the recipe's own."""
        return [*self.files.values(), *self.parts.values(), *self.built.values()]


@dataclass(frozen=True)
class Job:
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
    """A stage that is done, by an earlier run or now, and its file, kept in the run's store and published.

    `where` is the worker that did it; empty for this process.
    """

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
class Scale:
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
    """What the stages of a kind take.

    Attributes:
        seconds: Of the weights in MB, the seconds of a sample through the model, the sizes, and the artifact.
        runs_model: Whether the model runs, so that there are no seconds without its multiply-adds.
        memory_mb: Whatever the model's size.
        copies: Of the weights in memory.
        writes_weights: It writes them, in the precision of its artifact.
        of_rows: Memory is that of each artifact that is measured.
    """

    seconds: Callable[[float, float, Scale, ArtifactSection | None], float]
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
        inputs: Role of each file that a stage is given, to the kind of the stage that writes it.
        file: Name of the file that it writes.
        key: All that its outcome depends on: digests, options and versions.
        work: Writes `Job.path`.
        needs: What a machine must have.
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
        here: It is done in the process that drives the run.
    """

    inputs: Callable[[Recipe, str], Mapping[str, str]]
    file: Callable[[Recipe, Stage], str]
    key: Callable[[Recipe, Stage], Key]
    work: Callable[[Recipe, Stage, Job], object]
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
    here: Callable[[Stage], bool] = lambda _: False
