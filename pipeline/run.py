"""`qcompile run`: a recipe becomes stages; each is done once, and again only when something changed.

One driver, `Visit`, goes through the graph of `graph.py`: for a run, a dry run, each recipe of a sweep and
the trials of `tune`. What differs is the executor.

An artifact that cannot be built is a row that says why; the others go on. Where the calibration fails, so do
the artifacts that need ranges. An error of another stage ends the run.
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
from ..model.sources.archives import trusting
from ..model.sources.source import digest_source
from ..spec.decode import spec_from_call
from ..spec.recipes import RunSpec
from .recipe.published import check_output
from .recipe.recipe import Recipe, read_recipe, recipe_source, wrong_key
from .recipe.trust import trusted
from .stages.graph import BUILD, KINDS, ThisProcess, each, kind_of, stages_of
from .stages.stage import SOURCE, Executor, Made, Stage, for_every_kind
from .stages.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..bench.results.results import Results
    from ..spec.keywords import RunKeywords
    from ..spec.measure import Budget


StageListener = Callable[[str, str, float], None]
"""Told of every stage when it is over: its name, "done", "skipped" or "failed", and its seconds."""


@dataclass
class RunReport:
    """What a run did.

    Attributes:
        stages: Stage to "done", "skipped" or "failed", in order.
        artifacts, digests: Artifact name to its file, and to the digest of it, of those that were built.
        failures: Artifact name to why it was not; a later run tries it again.
        instead: Artifact that was not built, or that failed when it was measured, to its `fallback`.
        results: What was measured; None for a recipe without `[bench]`.
        page: The report of it; `why_no_page` says why there is none.
        budget: Measured artifact to why it may not be recommended, empty where it keeps the budget; None
            without one.
        where: Stage to the worker that did it; empty where all was done in this process.
        impossible: Cell of a matrix to why the options, or the machines, forbid it.
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
        """Artifacts that were not built, that failed in the measurement, or that have other outputs."""
        rows = self.results.rows if self.results else []
        return list(dict.fromkeys([*self.failures, *(row.name for row in rows if row.has_failed)]))

    def fall_back(self, fallbacks: Mapping[str, str]) -> None:
        """Note what serves in place of each artifact that failed."""
        failed = self.failed
        for name in failed:
            other = fallbacks.get(name, "")
            while other in failed:
                other = fallbacks.get(other, "")
            if other in self.artifacts:
                self.instead[name] = other

    def judge(self, path: Path, budget: Budget) -> None:
        """Note what of the results in `path` keeps a budget."""
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
        spec: How.
        typed: Spellings of models and data that the user typed himself, which need no more trust.
        executor: Carries out the stages; this process by default.
        shared: Folder of finished stages that several outputs share; by default one in the output folder.
        page: Draw the report of what is measured.
        progress: Told of every step.
        listener: Told of every stage when it is over.
        options: Fields of `RunSpec` by name, in place of those of `spec`.

    Returns:
        What was done, what was skipped, and what failed: `failures` is empty where every artifact is built.

    Raises:
        RecipeError: If the recipe is wrong, holds a matrix for `qcompile sweep`, or names code outside of its
            folder without `trust`.
        InvalidOption: If a file that it reads would be overwritten.
        QCompileError: Of a stage that failed and that every artifact needs; what was done before stays done.
    """
    executor, spec = executor or ThisProcess(), spec_from_call(RunSpec, spec, options)
    recipe, folder = prepared(recipe, spec, typed=typed, kinds=executor.kinds)
    store = Store(folder, folder=shared)
    with store.locked(), trusting(recipe.model.trust):
        visit = Visit(recipe, store, spec.again, executor, progress, listener, () if page else ("report",))
        try:
            report = visit.drive()
        except QCompileError as error:  # what failed before, too, which no table says then
            failures = {name: str(failure) for name, failure in visit.report.failures.items()}
            error.data = {**error.data, **({"failures": failures} if failures else {})}
            raise
        if drawn := visit.made.get(("report", "")):
            report.page = folder / drawn.path.name
        if measured := visit.made.get(("bench", "")):
            from ..bench.results.results import load_results

            report.results = load_results(measured.path)
            report.judge(measured.path, recipe.budget)
        report.fall_back(recipe.fallbacks)
        store.forget_old()
    return report


def prepared(
    recipe: str | Path | Recipe, spec: RunSpec, *, typed: Collection[str] = (), kinds: Sequence[str] = ()
) -> tuple[Recipe, Path]:
    """Return a recipe that may be carried out on these kinds of GPU, and its output folder."""
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    if recipe.sweep is not None:
        problem = "makes many recipes of one; one without it is required here"
        raise wrong_key(recipe.path, "sweep", problem, f"qcompile sweep {recipe.path}")
    recipe = trusted(recipe, trust=spec.trust, output=spec.output, typed=typed)
    recipe = for_every_kind(recipe, kinds)
    folder = spec.output or recipe.folder / recipe.output
    check_output(recipe, recipe.folder, folder)
    return recipe, folder


@dataclass
class Visit:
    """One visit of all stages: each stage's file is handed to the next; artifacts do not wait for each other.

    The executor carries the stages out, or only looks whether they are done. Kinds of stages in `without` are
    left out. `made` is kind and artifact to the file of each stage that is done.
    """

    recipe: Recipe
    store: Store
    again: tuple[str, ...]
    executor: Executor
    progress: Progress = silent
    listener: StageListener | None = None
    without: Collection[str] = ()
    made: dict[tuple[str, str], Made] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.report = RunReport(self.store.output)

    @functools.cached_property
    def source_digest(self) -> str:
        """Digest of the recipe's model and of what it depends on."""
        depends = [self.recipe.folder / name for name in self.recipe.model.depends]
        return digest_source(recipe_source(self.recipe), depends=depends)

    def drive(self) -> RunReport:
        for group in stages_of(self.recipe):
            branches = list[list[Stage]]()
            for branch in group:
                first = branch[0]
                if first.kind in self.without or first.artifact in self.report.failures:
                    continue
                if replaced := kind_of(first).replaced(self.recipe):  # the recipe names its file
                    self.made[first.kind, first.artifact] = replaced
                else:
                    branches.append(branch)
            errors = each(self.executor, [functools.partial(self._branch, branch) for branch in branches])
            for branch, error in zip(branches, errors, strict=True):
                name = branch[0].artifact
                if error is not None:
                    self._fail(branch[0], error)
                elif artifact := self.made.get((BUILD, name)):
                    self.report.artifacts[name] = self.store.output / artifact.path.name
                    self.report.digests[name] = artifact.digest
        return self.report

    def file_of(self, stage: Stage) -> Made:
        """Carry out a stage, unless it is done already, and return its file."""
        file = self._look(stage)
        assert file is not None, "only a graph may stay as it is"
        return file

    def _branch(self, stages: Sequence[Stage]) -> QCompileError | None:
        """Carry out stages that follow each other; an error that does not end the run is returned."""
        for stage in stages:
            try:
                file = self._whole_or_parts(self._with_files(stage))
            except QCompileError as error:
                kind = kind_of(stage)
                if kind.ends_run and not (kind.optional and isinstance(error, EngineUnavailable)):
                    raise
                return error
            if file is not None:
                self.made[stage.kind, stage.artifact] = file
        return None

    def _fail(self, stage: Stage, error: QCompileError) -> None:
        """Note what a stage that failed leaves undone; where every artifact takes its file, the run ends."""
        if stage.artifact:
            self.report.failures[stage.artifact] = error
            return
        if kind_of(stage).optional:
            self.report.why_no_page = error.message
            return
        names, takes = [section.name for section in self.recipe.artifact], KINDS[BUILD].inputs
        failed = [name for name in names if stage.kind in takes(self.recipe, name).values()]
        if isinstance(error, UsageError) or failed == names:  # the recipe is wrong, or nothing can be built
            raise error
        self.report.failures |= dict.fromkeys(failed, error)

    def _with_files(self, stage: Stage) -> Stage:
        """The stage with the files that it takes; where it takes all artifacts, with why some are missing."""
        files: dict[str, Made] = {}
        for role, kind in kind_of(stage).inputs(self.recipe, stage.artifact).items():
            if role == SOURCE:
                stage = replace(stage, source_digest=self.source_digest)
            elif KINDS[kind].per_artifact and not stage.artifact:
                failures = self.report.failures
                said = {name: f"`fallback` {other}" for name, other in self.recipe.fallbacks.items()}
                absent = [name for name in failures if isinstance(failures[name], EngineUnavailable)]
                stage = replace(
                    stage,
                    built={name: self.made[kind, name] for name in self.report.artifacts},
                    why_not={
                        name: "; ".join(filter(None, (error.message, error.hint, said.get(name))))
                        for name, error in failures.items()
                    },
                    unavailable=tuple(absent),
                )
            elif file := self.made.get((kind, stage.artifact if KINDS[kind].per_artifact else "")):
                files[role] = file
        return replace(stage, files=files)

    def _whole_or_parts(self, stage: Stage) -> Made | None:
        """The file of a stage, done at once or in parts that are put together."""

        def is_done() -> bool:
            return not self._is_asked(stage) and self.executor.is_done(self.recipe, stage, self.store)

        parts = kind_of(stage).parts(self.recipe, stage, self.executor, is_done)
        if parts == [stage]:
            return self._look(stage)
        files: dict[str, Made] = {}
        errors: dict[str, QCompileError] = {}

        def do(part: Stage) -> None:  # where one fails, the others are done none the less
            try:
                files[part.shard or part.machine] = self.file_of(part)
            except QCompileError as error:
                errors[part.shard or part.machine] = error

        each(self.executor, [functools.partial(do, part) for part in parts])
        names = [part.shard or part.machine for part in parts]
        for name in filter(errors.get, names):
            raise errors[name]
        return self._look(replace(stage, parts={name: files[name] for name in names}))

    def _look(self, stage: Stage) -> Made | None:
        """Carry out a stage, unless it is done already or there is nothing to do."""
        start = time.monotonic()
        try:
            done = self.executor.do(
                self.recipe,
                stage,
                self.store,
                again=self._is_asked(stage),
                progress=lambda text, *counts: self.progress(f"{stage.name}: {text}", *counts),
            )
        except QCompileError:
            self._note(stage, "failed", start)
            raise
        if done is None:
            return None
        self._note(stage, "skipped" if done.was_done else "done", start)
        if done.where:
            self.report.where[stage.name] = done.where
        return done.made

    def _is_asked(self, stage: Stage) -> bool:
        return any(f"{stage.name}-".startswith(f"{name}-") for name in self.again)

    def _note(self, stage: Stage, state: str, start: float) -> None:
        self.report.stages[stage.name] = state
        if self.listener:
            self.listener(stage.name, state, time.monotonic() - start)
