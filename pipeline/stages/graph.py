"""The table of stage kinds, the stages of a recipe in order, and an executor that runs them in this process.

export ─ simplify ─┬─ calibrate ─┐
                   └─────────────┴─ quantize, build (per artifact) ─ bench ─ report

To add a kind, add a row to `KINDS` and the functions that the row names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ...core.files import public_names
from ...core.memory import out_of_memory
from ...core.progress import Progress
from ...engines.registry import engine
from ...errors import EngineUnavailable
from ...spec.artifacts import ArtifactSection
from ..recipe.published import GRAPH, REPORT, SIMPLIFIED
from ..recipe.recipe import Recipe
from . import bench_stages, stages, trial_stages
from .stage import (
    SOURCE,
    Executor,
    FinishedStage,
    Key,
    Needs,
    Rule,
    Stage,
    StageFile,
    StageJob,
    StageKind,
    find_artifact,
    split_by_machine,
)
from .store import Store

T = TypeVar("T")

_CORRECTED_SAMPLES = 32


def is_calibrated(artifact: ArtifactSection | None) -> bool:
    """Return whether an artifact is static INT8 or FP8; its quantization then runs the model."""
    return artifact is not None and artifact.precision in ("int8", "fp8") and artifact.mode == "static"


_TRIAL = StageKind(
    inputs=lambda *_: {},
    file=lambda _, stage: trial_stages.trial_request(stage).file,
    key=trial_stages.trial_key,
    work=trial_stages.trial_work,
    needs=trial_stages.trial_needs,
    is_in=lambda *_: False,
    published=False,
)
BUILD = "build"
"""The kind of stage that writes the artifacts."""
KINDS: Mapping[str, StageKind] = {
    "export": StageKind(
        inputs=lambda *_: {SOURCE: ""},
        file=lambda recipe, _: f"{recipe.name}.onnx",
        key=stages.export_key,
        work=stages.export_work,
        needs=stages.export_needs,
        rule=Rule(lambda weights_mb, *_: 4 + weights_mb / 100, memory_mb=600, copies=3),
    ),
    "simplify": StageKind(
        inputs=lambda *_: {"model": "export"},
        file=lambda recipe, _: f"{recipe.name}{SIMPLIFIED}",
        key=stages.simplify_key,
        work=stages.simplify_work,
        needs=lambda *_: Needs(preferred=("onnxruntime",)),
        rule=Rule(lambda weights_mb, *_: 1 + weights_mb / 50, copies=3),
        is_in=lambda recipe, _: recipe.model.simplify,
    ),
    "calibrate": StageKind(
        inputs=lambda recipe, _: stages.model_of(recipe),
        file=stages.ranges_file,
        key=stages.calibrate_key,
        work=stages.calibrate_work,
        needs=lambda *_: Needs(("onnxruntime",), ("onnxruntime",)),
        rule=Rule(
            lambda _, inference_s, workload, __: 2 + 3 * workload.calibrated * inference_s,
            runs_model=lambda _: True,
            copies=2,
            writes_weights=False,
        ),
        is_in=lambda recipe, _: (
            recipe.has_ranges and any(artifact.needs_ranges for artifact in recipe.artifact)
        ),
        replaced=stages.recipe_ranges,
        parts=stages.calibrate_parts,
        ends_run=False,
    ),
    "quantize": StageKind(
        inputs=stages.quantize_inputs,
        file=lambda _, stage: f"{stage.artifact}{GRAPH}",
        key=stages.quantize_key,
        work=stages.quantize_work,
        needs=lambda recipe, stage: Needs((find_artifact(recipe, stage.artifact).target,), ("onnxruntime",)),
        rule=Rule(
            lambda weights_mb, inference_s, _, artifact: (
                2 + weights_mb / 50 + is_calibrated(artifact) * 10 * _CORRECTED_SAMPLES * inference_s
            ),
            runs_model=is_calibrated,
            memory_mb=400,
            copies=4,
        ),
        is_in=lambda recipe, artifact: not stages.takes_pytorch(find_artifact(recipe, artifact)),
        applies=stages.quantize_applies,
        per_artifact=True,
        ends_run=False,
        optional=True,  # its build reports a missing runtime
    ),
    BUILD: StageKind(
        inputs=stages.build_inputs,
        file=lambda recipe, stage: (
            f"{stage.artifact}{engine(find_artifact(recipe, stage.artifact).target).suffix}"
        ),
        key=stages.build_key,
        work=stages.build_work,
        needs=stages.build_needs,
        rule=Rule(
            lambda weights_mb, _, __, artifact: (
                30 + weights_mb / 5
                if artifact is not None and artifact.target == "tensorrt"
                else 1 + weights_mb / 100
            ),
            memory_mb=400,
            copies=4,
        ),
        applies=stages.build_applies,
        per_artifact=True,
        ends_run=False,
    ),
    "bench": StageKind(
        inputs=bench_stages.bench_inputs,
        file=bench_stages.results_file,
        key=bench_stages.bench_key,
        work=bench_stages.bench_work,
        needs=bench_stages.bench_needs,
        rule=Rule(
            lambda _, inference_s, workload, __: (
                workload.max_time_s + workload.rows * (4 + workload.evaluated * inference_s)
            ),
            runs_model=lambda _: True,
            memory_mb=120,
            copies=2,
            writes_weights=False,
            of_rows=True,
        ),
        is_in=lambda recipe, _: recipe.bench is not None,
        parts=lambda recipe, stage, executor, _: split_by_machine(recipe, stage, executor.kinds),
        measures=True,
        in_driver=lambda stage: bool(stage.parts),
        is_complete=bench_stages.is_complete,
    ),
    "report": StageKind(
        inputs=lambda *_: {"results": "bench", "ranges": "calibrate"},
        file=lambda *_: REPORT,
        key=bench_stages.report_key,
        work=bench_stages.report_work,
        rule=Rule(lambda *_: 3.0, writes_weights=False),
        is_in=lambda recipe, _: recipe.bench is not None,
        optional=True,  # the charts' library is an extra
        in_driver=lambda _: True,
    ),
    "trial": _TRIAL,
    "rank": replace(_TRIAL, file=lambda _, stage: f"{stage.name}.json", work=trial_stages.rank_work),
}
"""Name of each kind to its row; a kind stands after the kinds that write its inputs."""


def kind_of(stage: Stage) -> StageKind:
    """Return the row of a stage's kind."""
    return KINDS[stage.kind]


def stages_of(recipe: Recipe) -> Iterator[list[list[Stage]]]:
    """Yield groups of independent branches: one stage, or a branch per artifact. Groups run in order."""
    for per_artifact, kinds in itertools.groupby(KINDS, key=lambda kind: KINDS[kind].per_artifact):
        if per_artifact:
            branch = list(kinds)
            yield [_stages(recipe, branch, section.name) for section in recipe.artifact]
        else:
            yield from ([[stage]] for stage in _stages(recipe, kinds))


def _stages(recipe: Recipe, kinds: Iterator[str] | list[str], artifact: str = "") -> list[Stage]:
    return [Stage(kind=kind, artifact=artifact) for kind in kinds if KINDS[kind].is_in(recipe, artifact)]


def key_of(recipe: Recipe, stage: Stage) -> Key | None:
    """Return the key of a stage on this machine, with the name of its file.

    Return None if the graph is not changed: it is in float, or its runtime is missing (its build reports it).
    """
    kind = kind_of(stage)
    try:
        applies = kind.applies(recipe, stage)
    except EngineUnavailable:
        applies = not kind.optional
    return {**kind.key(recipe, stage), "file": kind.file(recipe, stage)} if applies else None


def is_published(stage: Stage) -> bool:
    """Return whether the files of a stage get names in the output folder; those of a shard do not."""
    return kind_of(stage).published and not stage.shard


def carry_out(recipe: Recipe, stage: Stage, folder: Path, output: Path, progress: Progress) -> None:
    """Do the work of a stage in `folder`."""
    kind = kind_of(stage)
    try:
        # `folder` is temporary: errors name the file by its place in the output folder.
        with public_names(folder, lambda name: str(output / name)):
            kind.work(recipe, stage, StageJob(folder / kind.file(recipe, stage), output, progress))
    except Exception as error:
        shortage = out_of_memory(error, stage.name)
        if shortage is not None and shortage is not error:
            raise shortage from error
        raise


class ThisProcess:
    """Executor that runs one stage at a time in this process."""

    parallel = 1
    shards = 1
    kinds: Sequence[str] = ()

    def do(
        self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
    ) -> FinishedStage | None:
        key = key_of(recipe, stage)
        if key is None:
            return None
        stored = store.run(
            stage.name,
            key,
            lambda folder: carry_out(recipe, stage, folder, store.output, progress),
            again=again,
            publish=is_published(stage),
            is_complete=lambda folder: kind_of(stage).is_complete(folder / key["file"]),
        )
        return FinishedStage(
            StageFile(stored.folder / key["file"], stored.files[key["file"]]), stored.was_done
        )

    def is_done(self, recipe: Recipe, stage: Stage, store: Store) -> bool:
        key = key_of(recipe, stage)
        return key is not None and store.find(stage.name, key) is not None

    def cancel(self) -> None:
        """Do nothing: no stage runs in another thread."""


def run_tasks(executor: Executor, tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run tasks, at most `executor.parallel` at a time, and return the results; an error cancels the rest."""
    if (parallel := min(executor.parallel, len(tasks))) < 2:
        return [task() for task in tasks]
    with ThreadPoolExecutor(parallel, "qcompile") as threads:
        try:
            futures = [threads.submit(task) for task in tasks]
            for future in as_completed(futures):
                future.result()
            return [future.result() for future in futures]
        except BaseException:  # threads cannot be interrupted; the stages they wait for can be cancelled
            executor.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
