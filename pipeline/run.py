"""`qcompile run`: a recipe becomes stages; each is done once, and again only when something changed.

export ─ simplify ─┬─ calibrate ─┐
                   └─────────────┴─ quantize, build (per artifact) ─ bench ─ report

An artifact that cannot be built is a row that says why; the others go on. Where the calibration fails, so do
the artifacts that need ranges. An error of another stage ends the run.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..errors import EngineUnavailable, QCompileError, UsageError
from ..model.archives import trusting
from ..model.source import TENSORFLOW_KINDS
from ..progress import Progress, silent
from ..spec.decode import called
from ..spec.recipes import RunSpec
from .estimate import calibration_samples
from .kinds import built_on, for_every_kind, measured_apart
from .published import check_output
from .recipe import ArtifactSection, Recipe, read_recipe, refuse_matrix
from .stages import Made, given_ranges, recipe_source
from .steps import Executor, Step, ThisProcess, each, source_digest, takes_pytorch
from .store import Store
from .trust import trusted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..bench.results.results import Results
    from ..spec.keywords import RunKeywords
    from ..spec.measure import Budget


class StageListener(Protocol):
    """Told of every stage when it is over."""

    def __call__(self, stage: str, state: str, seconds: float, /) -> None:
        """`state` is "done", "skipped" or "failed"."""


@dataclass
class RunReport:
    """What a run did.

    Attributes:
        output: Folder of the artifacts.
        stages: Stage to "done", "skipped" or "failed", in order.
        artifacts: Artifact name to its file, of those that were built.
        digests: Artifact name to the digest of that file.
        failures: Artifact name to why it was not; a later run tries it again.
        results: What was measured; None for a recipe without `[bench]`.
        page: The report of it.
        why_no_page: Why there is none.
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
    results: Results | None = None
    page: Path | None = None
    why_no_page: str = ""
    budget: dict[str, str] | None = None
    where: dict[str, str] = field(default_factory=dict)
    impossible: dict[str, str] = field(default_factory=dict)

    def judge(self, path: Path, budget: Budget) -> None:
        """Note what of the results in `path` keeps a budget."""
        from ..reporting.source import read_source
        from ..reporting.summary import why_not

        if budget.limits:
            source = read_source(path, budget=budget)
            self.budget = {one.name: why_not(one, budget) or "" for one in source.measured}


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
    executor, spec = executor or ThisProcess(), called(RunSpec, spec, options)
    recipe, folder = prepared(recipe, spec, typed=typed, kinds=executor.kinds)
    store = Store(folder, folder=shared)
    with store.locked(), trusting(recipe.model.trust):
        visit = Visit(recipe, store, spec.again, executor, progress, listener, page=page)
        report = visit.drive()
        if visit.results:
            from ..bench.results.results import load_results

            report.results = load_results(visit.results.path)
            report.judge(visit.results.path, recipe.budget)
        store.forget_old()
    return report


def prepared(
    recipe: str | Path | Recipe,
    spec: RunSpec,
    *,
    typed: Collection[str] = (),
    kinds: Sequence[str] = (),
) -> tuple[Recipe, Path]:
    """Return a recipe that may be carried out on these kinds of GPU, and its output folder."""
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    refuse_matrix(recipe)
    recipe = trusted(recipe, trust=spec.trust, output=spec.output, typed=typed)
    recipe = for_every_kind(recipe, kinds)
    folder = spec.output or recipe.folder / recipe.output
    check_output(recipe, recipe.folder, folder)
    return recipe, folder


@dataclass
class Visit:
    """One visit of all stages: each step's file is handed to the next; artifacts do not wait for each other.

    The executor carries the steps out, or only looks whether they are done. `results` are what was
    measured.
    """

    recipe: Recipe
    store: Store
    again: tuple[str, ...]
    executor: Executor
    progress: Progress = silent
    listener: StageListener | None = None
    page: bool = True
    converted: dict[str, Made] = field(default_factory=dict)
    results: Made | None = None

    def __post_init__(self) -> None:
        self.report, self.source_digest = RunReport(self.store.output), source_digest(self.recipe)

    def drive(self) -> RunReport:
        """Visit the stages in order."""
        recipe = self.recipe
        model = self._do(Step(kind="export", source_digest=self.source_digest))
        if recipe_source(recipe).kind in TENSORFLOW_KINDS:  # the machine that measures need not have it
            self.converted = {"model": model}
        if recipe.model.simplify:
            model = self._do(Step(kind="simplify", files={"model": model}))
        ranges = self._ranges(model)
        wanted = [one for one in recipe.artifact if one.name not in self.report.failures]
        made = self._each([functools.partial(self._artifact, one, model, ranges) for one in wanted])
        built: dict[str, Made] = {}
        for one, outcome in zip(wanted, made, strict=True):
            if isinstance(outcome, QCompileError):
                self.report.failures[one.name] = outcome
            else:
                built[one.name] = outcome
                self.report.artifacts[one.name] = self.store.output / outcome.path.name
                self.report.digests[one.name] = outcome.digest
        if recipe.bench:
            self._bench(built, ranges)
        return self.report

    def _ranges(self, model: Made) -> Made | None:
        """Ranges where an artifact needs them; without them, those artifacts fail."""
        needing = [one.name for one in self.recipe.artifact if one.needs_ranges]
        if not (needing and self.recipe.has_ranges):  # a file of the latter kind holds its scales as Q/DQ
            return None
        if given := given_ranges(self.recipe):
            return given
        try:
            return self._calibrated(model)
        except UsageError:
            raise  # the recipe is wrong
        except QCompileError as error:
            if len(needing) == len(self.recipe.artifact):
                raise
            self.report.failures |= dict.fromkeys(needing, error)
            return None

    def _calibrated(self, model: Made) -> Made:
        """Ranges of all samples, observed at once or in parts that are merged."""
        whole = Step(kind="calibrate", files={"model": model})
        number = min(
            self.executor.shards, calibration_samples(self.recipe) if self.executor.shards > 1 else 1
        )
        if number < 2 or (
            not self._is_asked(whole) and self.executor.is_done(self.recipe, whole, self.store)
        ):
            return self._do(whole)
        steps = [replace(whole, shard=f"{part}/{number}") for part in range(1, number + 1)]
        parts = self._each([functools.partial(self._do, step) for step in steps])
        return self._do(replace(whole, shards=tuple(_files(parts))))

    def _artifact(self, one: ArtifactSection, model: Made, ranges: Made | None) -> Made:
        if takes_pytorch(one):
            return self._do(Step(kind="build", artifact=one.name, source_digest=self.source_digest))
        files = {"model": model}
        if ranges is not None and one.needs_ranges:
            files["ranges"] = ranges
        graph = self._look(Step(kind="quantize", artifact=one.name, files=files))
        if graph is not None:
            files["graph"] = graph
        return self._do(Step(kind="build", artifact=one.name, files=files, machine=built_on(one)))

    def _bench(self, built: Mapping[str, Made], ranges: Made | None) -> None:
        failures = self.report.failures.items()
        reasons = {name: "; ".join(filter(None, (error.message, error.hint))) for name, error in failures}
        unavailable = [name for name, error in failures if isinstance(error, EngineUnavailable)]
        step = Step(
            kind="bench",
            source_digest=self.source_digest,
            files=self.converted,
            built=built,
            why_not=reasons,
            unavailable=tuple(unavailable),
        )
        self.results = measured = self._measured(step)
        if not self.page:
            return
        files = {"results": measured, "ranges": ranges} if ranges else {"results": measured}
        try:
            page = self._do(Step(kind="report", files=files)).path
            self.report.page = self.store.output / page.name
        except EngineUnavailable as error:  # the charts' library is an extra; everything else is done
            self.report.why_no_page = error.message

    def _measured(self, whole: Step) -> Made:
        """Results of all that was built, measured at once or on each kind of machine that it needs."""
        steps = measured_apart(self.recipe, whole, self.executor.kinds)
        if steps == [whole]:
            return self._do(whole)
        parts = self._each([functools.partial(self._do, step) for step in steps])
        files = {step.machine: part for step, part in zip(steps, _files(parts), strict=True)}
        return self._do(Step(kind="bench", files=files), ThisProcess())

    def _each(self, tasks: Sequence[Callable[[], Made]]) -> list[Made | QCompileError]:
        """Do several things, as many at a time as the executor takes; one that fails yields its error."""

        def outcome(task: Callable[[], Made]) -> Made | QCompileError:
            try:
                return task()
            except QCompileError as error:
                return error

        return each(self.executor, [functools.partial(outcome, task) for task in tasks])

    def _do(self, step: Step, executor: Executor | None = None) -> Made:
        """Carry out a step, unless it is done already."""
        made = self._look(step, executor)
        assert made is not None, "only a graph may stay as it is"
        return made

    def _look(self, step: Step, executor: Executor | None = None) -> Made | None:
        """Carry out a step, unless it is done already or means no stage; `executor` in place of the run's."""
        start = time.monotonic()

        def told(text: str, done: int = 0, total: int | None = None, /) -> None:
            self.progress(f"{step.name}: {text}", done, total)

        try:
            done = (executor or self.executor).do(
                self.recipe, step, self.store, again=self._is_asked(step), progress=told
            )
        except QCompileError:
            self._note(step, "failed", start)
            raise
        if done is None:
            return None
        self._note(step, "skipped" if done.was_done else "done", start)
        if done.where:
            self.report.where[step.name] = done.where
        return done.made

    def _is_asked(self, step: Step) -> bool:
        return any(step.name == wanted or step.name.startswith(f"{wanted}-") for wanted in self.again)

    def _note(self, step: Step, state: str, start: float) -> None:
        self.report.stages[step.name] = state
        if self.listener:
            self.listener(step.name, state, time.monotonic() - start)


def _files(parts: Sequence[Made | QCompileError]) -> list[Made]:
    """The files of several steps; the first error is raised."""
    for part in parts:
        if isinstance(part, QCompileError):
            raise part
    return [part for part in parts if isinstance(part, Made)]
