"""`qcompile run --dry-run`: list a recipe's stages, their states, and the estimated cost of the pending ones.

The stages are keyed as in `run` and looked up; no stage runs, and no file is written. A stage that follows a
pending stage has no key yet, because its key contains the digests of its inputs.

The estimate is the measured cost of the last run, else the rule of the stage's kind (`graph.KINDS`). The
rules assume 20 G multiply-adds per second and core: a cautious share of FP32 on ONNX Runtime on x86 with
AVX-512 (about 100 G). The accuracy of the rules was not measured.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..core.progress import Progress, silent
from ..errors import EngineUnavailable, QCompileError
from ..spec.artifacts import ArtifactSection
from ..spec.decode import spec_from_call
from ..spec.recipes import RunSpec
from .recipe.recipe import Recipe, recipe_source
from .run import Visit, prepared
from .stages.graph import ThisProcess, key_of, kind_of
from .stages.stage import FinishedStage, Rule, Stage, StageFile, Workload, find_artifact
from .stages.stages import calibration_samples, count_samples
from .stages.store import FOLDER, Record, Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.keywords import RunKeywords

State = Literal["done", "changed", "to do"]


RATE = 20e9
"""Multiply-adds per second and core."""
_MB = 1e6
_SHARE = {"fp16": 0.5, "bf16": 0.5, "int8": 0.3, "fp8": 0.3, "int4": 0.15, "nvfp4": 0.15}
"""Size of an artifact's weights relative to FP32."""


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a stage; None if unknown. `source` is "measured" (last run) or "rule"."""

    seconds: float | None
    peak_bytes: int | None
    disk_bytes: int | None
    source: str


def measured(record: Record) -> Estimate | None:
    """Return the measured cost in a stage's record, or None if the record has no time."""
    if record.seconds is None:
        return None
    size = sum(size for size, _ in record.stats.values())
    return Estimate(record.seconds, record.peak_bytes, size, "measured")


def by_rule(rule: Rule | None, workload: Workload, artifact: ArtifactSection | None = None) -> Estimate:
    """Return the cost of a stage by the rule of its kind; None in place of figures that it cannot compute."""
    weights, work = workload.weight_bytes or 0, workload.multiply_adds
    if rule is None or (workload.weight_bytes is None and rule.copies):
        return Estimate(None, None, None, "rule")
    inference_s = 0.0 if work is None else work / (RATE * workload.cores)
    unknown = work is None and rule.runs_model(artifact)
    seconds = None if unknown else rule.seconds(weights / _MB, inference_s, workload, artifact)
    peak = (rule.memory_mb * _MB + rule.copies * weights) * (workload.rows if rule.of_rows else 1)
    share = _SHARE.get(artifact.precision, 1.0) if artifact else 1.0
    return Estimate(seconds, int(peak), int(weights * share if rule.writes_weights else _MB), "rule")


def read_workload(recipe: Recipe, model: Path | None, *, needed: bool, progress: Progress) -> Workload:
    """Return the sizes that the rules need; the model is read only if `needed`."""
    from ..model.sessions.session import usable_cores
    from .propose.model_facts import look_at_model

    weights, work = None, None
    spec = str(model) if model else recipe_source(recipe).absolute
    inputs = () if model else recipe.model.inputs
    with contextlib.suppress(QCompileError):  # `run` reports a problem of the model
        if needed:
            facts = look_at_model(spec, inputs=inputs, trust=recipe.model.trust, progress=progress)
            weights, work = facts.weight_bytes or None, facts.multiply_adds or None
    rows = 1 + sum(not artifact.target.startswith("tensorrt") for artifact in recipe.artifact)
    return Workload(
        weights, work, usable_cores(), calibration_samples(recipe),
        count_samples(recipe, recipe.data.evaluation), rows, recipe.bench.max_time_s if recipe.bench else 0.0,
    )  # fmt: skip


@dataclass(frozen=True)
class PlannedStage:
    """One stage and its cost; "changed": an earlier run completed the stage under another key.

    `why` names the changed keys, or the first pending stage before this one.
    """

    name: str
    state: State
    why: str
    estimate: Estimate

    def as_json(self) -> dict[str, Any]:
        return {"stage": self.name, "state": self.state, "why": self.why, **vars(self.estimate)}


@dataclass(frozen=True)
class Plan:
    """The stages of a recipe, and its output folder."""

    output: Path
    stages: tuple[PlannedStage, ...]

    @property
    def pending(self) -> list[PlannedStage]:
        """The stages that a run would carry out."""
        return [stage for stage in self.stages if stage.state != "done"]

    def total(self, of: str) -> float | None:
        """Return the sum of `seconds` or `disk_bytes` of the pending stages; None if a value is unknown."""
        values = [getattr(stage.estimate, of) for stage in self.pending]
        return None if None in values else float(sum(values))

    @property
    def peak_bytes(self) -> int | None:
        """The largest memory of a pending stage; None if a value is unknown."""
        values = [stage.estimate.peak_bytes for stage in self.pending]
        return None if None in values else max(filter(None, values), default=0)

    def as_json(self) -> dict[str, Any]:
        return {
            "output": str(self.output),
            "stages": [stage.as_json() for stage in self.stages],
            "seconds": self.total("seconds"),
            "peak_bytes": self.peak_bytes,
            "disk_bytes": self.total("disk_bytes"),
        }


def plan(
    recipe: str | Path | Recipe,
    spec: RunSpec | None = None,
    /,
    *,
    shared: Path | None = None,
    progress: Progress = silent,
    **options: Unpack[RunKeywords],
) -> Plan:
    """Return the stages that `run` would carry out or skip with these options."""
    spec = spec_from_call(RunSpec, spec, options)
    recipe, folder = prepared(recipe, spec)
    store, dry_run = Store(folder, folder=shared), _DryRun()
    for error in Visit(recipe, store, spec.again, dry_run).drive().failures.values():
        raise error
    pending = any(state != "done" for _, state, _ in dry_run.stages)
    workload = read_workload(recipe, dry_run.model, needed=pending, progress=progress)
    return Plan(folder, tuple(dry_run.planned(recipe, store, workload)))


_PENDING = FinishedStage(StageFile(Path(FOLDER, "pending"), ""), was_done=False)
"""Placeholder for the file of a pending stage, without a digest."""


class _DryRun(ThisProcess):
    """Executor that looks up every stage and carries out none."""

    def __init__(self) -> None:
        self.stages: list[tuple[Stage, State, str]] = []
        self.model: Path | None = None

    def do(
        self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
    ) -> FinishedStage | None:
        kind = kind_of(stage)
        try:
            if not kind.applies(recipe, stage):
                return None
        except EngineUnavailable as error:
            if kind.optional:
                return None
            return self._pending(stage, "to do", f"cannot be built here: {error.message}")
        records = store.records(stage.name)
        before: State = "changed" if records else "to do"
        if any(not file.digest for file in stage.inputs()):
            first = next(stage.name for stage, state, _ in self.stages if state != "done")
            return self._pending(stage, before, f"follows {first}")
        key = key_of(recipe, stage)
        assert key is not None, "`applies` was checked above"
        if again:
            return self._pending(stage, "to do", "requested")
        stored = store.find(stage.name, key)
        if stored is None:
            incomplete = "" if not records or records[0].is_complete else "an artifact failed"
            why = difference(records[0].key, key) if records else ""
            return self._pending(stage, before, why or incomplete)
        self.stages.append((stage, "done", ""))
        file = StageFile(stored.folder / key["file"], stored.files[key["file"]])
        self.model = file.path if stage.kind == "export" else self.model
        return FinishedStage(file, was_done=True)

    def planned(self, recipe: Recipe, store: Store, workload: Workload) -> Iterator[PlannedStage]:
        """Yield the stages with their cost: measured in the last run, else by rule."""
        for stage, state, why in self.stages:
            last = next(filter(None, map(measured, store.records(stage.name))), None)
            artifact = find_artifact(recipe, stage.artifact) if stage.artifact else None
            yield PlannedStage(
                stage.name, state, why, last or by_rule(kind_of(stage).rule, workload, artifact)
            )

    def _pending(self, stage: Stage, state: State, why: str) -> FinishedStage:
        self.stages.append((stage, state, why))
        return _PENDING


def difference(before: Any, now: Any, path: str = "") -> str:
    """Return the paths of the keys that differ, such as "data, options.samples"."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = [*now, *(key for key in before if key not in now)]
        names = [difference(before.get(key), now.get(key), f"{path}.{key}".lstrip(".")) for key in keys]
        return ", ".join(filter(None, names))
    texts = [json.dumps(value, sort_keys=True) for value in (before, now)]  # JSON stores tuples as lists
    return "" if texts[0] == texts[1] else path
