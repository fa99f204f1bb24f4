"""`qcompile run`: carry out the stages of a recipe; a finished stage repeats only if its key changed.

One driver, `Visit`, walks the graph of `graph.py` for a run, a dry run, each recipe of a sweep and the trials
of `tune`; only the executor differs.

A failed build becomes a row with the reason, and the other artifacts continue. A failed calibration fails the
artifacts that need ranges. An error of any other stage ends the run.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.progress import Progress, silent
from ..errors import EngineUnavailable, QCompileError, UsageError
from ..model.sources.archives import trust_files
from ..model.sources.source import digest_source
from ..spec.decode import spec_from_call
from ..spec.recipes import RunSpec
from .recipe.published import check_output
from .recipe.recipe import Recipe, read_recipe, recipe_source, wrong_key
from .recipe.trust import check_trust
from .stages.graph import BUILD, KINDS, ThisProcess, kind_of, run_tasks, stages_of
from .stages.stage import SOURCE, Executor, Stage, StageFile, expand_cluster_artifacts
from .stages.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..bench.results.results import Results
    from ..spec.keywords import RunKeywords
    from ..spec.measure import Budget


StageListener = Callable[[str, str, float], None]
"""Called after every stage with its name, "done", "skipped" or "failed", and its seconds."""


@dataclass
class RunReport:
    """Outcome of a run.

    Attributes:
        stages: Stage to "done", "skipped" or "failed", in order.
        artifacts, digests: Name of each built artifact to its file, and to the file's digest.
        failures: Name of each artifact that was not built to its error; a later run retries it.
        instead: Artifact whose build or measurement failed to its `fallback`.
        results: The measurements; None for a recipe without `[bench]`.
        page: The report of the results; `why_no_page` is the reason if it is missing.
        budget: Measured artifact to why it is not recommendable, empty if it is; None without a budget.
        where: Stage to the worker that carried it out; empty if this process carried out all stages.
        impossible: Cell of a matrix to the reason why the options or the machines forbid it.
    """

    output: Path
    stages: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    failures: dict[str, QCompileError] = field(default_factory=dict)
    instead: dict[str, str] = field(default_factory=dict)
    results: Results | None = None
    page: Path | None = None
    why_no_page: str = ""
    budget: dict[str, str] | None = None
    where: dict[str, str] = field(default_factory=dict)
    impossible: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """Artifacts that were not built, failed in the measurement, or have deviating outputs."""
        rows = self.results.rows if self.results else []
        return list(dict.fromkeys([*self.failures, *(row.name for row in rows if row.has_failed)]))

    def fall_back(self, fallbacks: Mapping[str, str]) -> None:
        """Record the first working fallback of each failed artifact in `instead`."""
        failed = self.failed
        for name in failed:
            fallback = fallbacks.get(name, "")
            while fallback in failed:
                fallback = fallbacks.get(fallback, "")
            if fallback in self.artifacts:
                self.instead[name] = fallback

    def judge(self, path: Path, budget: Budget) -> None:
        """Record in `budget` which results in the file `path` meet the budget."""
        from ..bench.report.source import read_source
        from ..bench.report.summary import why_not

        if budget.limits:
            source = read_source(path, budget=budget)
            self.budget = {artifact.name: why_not(artifact, budget) or "" for artifact in source.measured}


def run(
    recipe: str | Path | Recipe,
    spec: RunSpec | None = None,
    /,
    *,
    typed: Collection[str] = (),
    executor: Executor | None = None,
    shared: Path | None = None,
    page: bool = True,
    progress: Progress = silent,
    listener: StageListener | None = None,
    **options: Unpack[RunKeywords],
) -> RunReport:
    """Carry out a recipe.

    Args:
        recipe: A recipe or its file.
        spec: Options of the run.
        typed: Spellings of models and data that the user typed; they are trusted.
        executor: Carries out the stages; this process by default.
        shared: Folder of finished stages that several outputs share; by default inside the output folder.
        page: Draw the report of the results.
        progress: Called at every step.
        listener: Called after every stage.
        options: Fields of `RunSpec` by name; they override those of `spec`.

    Returns:
        The stages, artifacts and measurements; `failures` is empty if every artifact was built.

    Raises:
        RecipeError: If the recipe is invalid, contains a matrix for `qcompile sweep`, or names code outside
            its folder without `trust`.
        InvalidOption: If an output would overwrite an input file.
        QCompileError: If a stage fails on which every artifact depends; finished stages remain.
    """
    executor, spec = executor or ThisProcess(), spec_from_call(RunSpec, spec, options)
    recipe, folder = prepared(recipe, spec, typed=typed, kinds=executor.kinds)
    store = Store(folder, folder=shared)
    with store.locked(), trust_files(recipe.model.trust):
        visit = Visit(recipe, store, spec.again, executor, progress, listener, () if page else ("report",))
        try:
            report = visit.drive()
        except QCompileError as error:  # add the earlier failures, because no table reports them
            failures = {name: str(failure) for name, failure in visit.report.failures.items()}
            error.data = {**error.data, **({"failures": failures} if failures else {})}
            raise
        if report_file := visit.outputs.get(("report", "")):
            report.page = folder / report_file.path.name
        if results_file := visit.outputs.get(("bench", "")):
            from ..bench.results.results import load_results

            report.results = load_results(results_file.path)
            report.judge(results_file.path, recipe.budget)
        report.fall_back(recipe.fallbacks)
        store.forget_old()
    return report


def prepared(
    recipe: str | Path | Recipe, spec: RunSpec, *, typed: Collection[str] = (), kinds: Sequence[str] = ()
) -> tuple[Recipe, Path]:
    """Return the recipe, expanded for the cluster's `kinds` of GPU, and its output folder, both checked."""
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    if recipe.sweep is not None:
        problem = "is a matrix of recipes; a recipe without it is required"
        raise wrong_key(recipe.path, "sweep", problem, f"qcompile sweep {recipe.path}")
    recipe = check_trust(recipe, trust=spec.trust, output=spec.output, typed=typed)
    recipe = expand_cluster_artifacts(recipe, kinds)
    folder = spec.output or recipe.folder / recipe.output
    check_output(recipe, recipe.folder, folder)
    return recipe, folder


@dataclass
class Visit:
    """One walk over all stages: the file of each stage is an input of the next; artifacts run independently.

    Stages of `skip_kinds` are skipped. `outputs` maps kind and artifact to the file of a finished stage.
    """

    recipe: Recipe
    store: Store
    again: tuple[str, ...]
    executor: Executor
    progress: Progress = silent
    listener: StageListener | None = None
    skip_kinds: Collection[str] = ()
    outputs: dict[tuple[str, str], StageFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.report = RunReport(self.store.output)

    @functools.cached_property
    def source_digest(self) -> str:
        """Digest of the recipe's model and of its `depends` files."""
        depends = [self.recipe.folder / name for name in self.recipe.model.depends]
        return digest_source(recipe_source(self.recipe), depends=depends)

    def drive(self) -> RunReport:
        for group in stages_of(self.recipe):
            branches = list[list[Stage]]()
            for branch in group:
                first = branch[0]
                if first.kind in self.skip_kinds or first.artifact in self.report.failures:
                    continue
                if replaced := kind_of(first).replaced(self.recipe):  # the recipe names its file
                    self.outputs[first.kind, first.artifact] = replaced
                else:
                    branches.append(branch)
            errors = run_tasks(
                self.executor, [functools.partial(self._run_branch, branch) for branch in branches]
            )
            for branch, error in zip(branches, errors, strict=True):
                name = branch[0].artifact
                if error is not None:
                    self._record_failure(branch[0], error)
                elif artifact := self.outputs.get((BUILD, name)):
                    self.report.artifacts[name] = self.store.output / artifact.path.name
                    self.report.digests[name] = artifact.digest
        return self.report

    def file_of(self, stage: Stage) -> StageFile:
        """Return the file of a stage; carry the stage out if it is not done."""
        file = self._run_stage(stage)
        assert file is not None, "only `quantize` may have no file"
        return file

    def _run_branch(self, stages: Sequence[Stage]) -> QCompileError | None:
        """Carry out consecutive stages; return an error that does not end the run."""
        for stage in stages:
            try:
                file = self._run_or_merge(self._with_inputs(stage))
            except QCompileError as error:
                kind = kind_of(stage)
                if kind.ends_run and not (kind.optional and isinstance(error, EngineUnavailable)):
                    raise
                return error
            if file is not None:
                self.outputs[stage.kind, stage.artifact] = file
        return None

    def _record_failure(self, stage: Stage, error: QCompileError) -> None:
        """Record the artifacts that a failed stage blocks; raise the error if it blocks all of them."""
        if stage.artifact:
            self.report.failures[stage.artifact] = error
            return
        if kind_of(stage).optional:
            self.report.why_no_page = error.message
            return
        names, inputs_of = [section.name for section in self.recipe.artifact], KINDS[BUILD].inputs
        failed = [name for name in names if stage.kind in inputs_of(self.recipe, name).values()]
        if isinstance(error, UsageError) or failed == names:  # the recipe is invalid, or every artifact fails
            raise error
        self.report.failures |= dict.fromkeys(failed, error)

    def _with_inputs(self, stage: Stage) -> Stage:
        """Return the stage with its input files; a stage over all artifacts also gets the build failures."""
        files: dict[str, StageFile] = {}
        for role, kind in kind_of(stage).inputs(self.recipe, stage.artifact).items():
            if role == SOURCE:
                stage = replace(stage, source_digest=self.source_digest)
            elif KINDS[kind].per_artifact and not stage.artifact:
                failures = self.report.failures
                notes = {name: f"`fallback` {other}" for name, other in self.recipe.fallbacks.items()}
                unavailable = [name for name in failures if isinstance(failures[name], EngineUnavailable)]
                stage = replace(
                    stage,
                    built={name: self.outputs[kind, name] for name in self.report.artifacts},
                    why_not={
                        name: "; ".join(filter(None, (error.message, error.hint, notes.get(name))))
                        for name, error in failures.items()
                    },
                    unavailable=tuple(unavailable),
                )
            elif file := self.outputs.get((kind, stage.artifact if KINDS[kind].per_artifact else "")):
                files[role] = file
        return replace(stage, files=files)

    def _run_or_merge(self, stage: Stage) -> StageFile | None:
        """Return the file of a stage, carried out in one piece or in parts that are then merged."""

        def is_done() -> bool:
            return not self._must_repeat(stage) and self.executor.is_done(self.recipe, stage, self.store)

        parts = kind_of(stage).parts(self.recipe, stage, self.executor, is_done)
        if parts == [stage]:
            return self._run_stage(stage)
        files: dict[str, StageFile] = {}
        errors: dict[str, QCompileError] = {}

        def do(part: Stage) -> None:  # an error of one part does not stop the others
            try:
                files[part.shard or part.machine] = self.file_of(part)
            except QCompileError as error:
                errors[part.shard or part.machine] = error

        run_tasks(self.executor, [functools.partial(do, part) for part in parts])
        names = [part.shard or part.machine for part in parts]
        for name in filter(errors.get, names):
            raise errors[name]
        return self._run_stage(replace(stage, parts={name: files[name] for name in names}))

    def _run_stage(self, stage: Stage) -> StageFile | None:
        """Carry out a stage unless it is done; return its file, or None if there is no work to do."""
        start = time.monotonic()
        try:
            done = self.executor.do(
                self.recipe,
                stage,
                self.store,
                again=self._must_repeat(stage),
                progress=lambda text, *counts: self.progress(f"{stage.name}: {text}", *counts),
            )
        except QCompileError:
            self._record_state(stage, "failed", start)
            raise
        if done is None:
            return None
        self._record_state(stage, "skipped" if done.was_done else "done", start)
        if done.where:
            self.report.where[stage.name] = done.where
        return done.file

    def _must_repeat(self, stage: Stage) -> bool:
        return any(f"{stage.name}-".startswith(f"{name}-") for name in self.again)

    def _record_state(self, stage: Stage, state: str, start: float) -> None:
        self.report.stages[stage.name] = state
        if self.listener:
            self.listener(stage.name, state, time.monotonic() - start)
