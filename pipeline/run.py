"""`qcompile run`: a recipe becomes stages; each is done once, and again only when something changed.

export ─ simplify ─┬─ calibrate ─┐
                   └─────────────┴─ quantize, build (per artifact) ─ bench ─ report

An artifact that cannot be built is a row that says why; the others go on. Where the calibration fails, so do
the artifacts that need ranges. An error of another stage ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..errors import EngineUnavailable, QCompileError, UsageError
from ..machine_memory import out_of_memory
from ..model.pt2_archive import trusting
from ..model.source import digest_source
from ..progress import Progress, silent
from .bench_stages import bench_stage, report_stage
from .published import check_output
from .recipe import ArtifactSection, Recipe, read_recipe
from .stages import (
    Made,
    Stage,
    balance_stage,
    build_stage,
    calibrate_stage,
    export_stage,
    given_ranges,
    lower_stage,
    recipe_source,
    simplify_stage,
)
from .store import Store
from .trust import trusted

if TYPE_CHECKING:
    from ..bench.results.results import Results


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
        failures: Artifact name to why it was not; a later run tries it again.
        results: What was measured; None for a recipe without `[bench]`.
        page: The report of it.
        why_no_page: Why there is none.
        budget: Measured artifact to why it may not be recommended, empty where it keeps the budget; None
            without one.
    """

    output: Path
    stages: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)
    failures: dict[str, QCompileError] = field(default_factory=dict)
    results: Results | None = None
    page: Path | None = None
    why_no_page: str = ""
    budget: dict[str, str] | None = None


def run(
    recipe: str | Path | Recipe,
    *,
    output: str | Path | None = None,
    again: tuple[str, ...] = (),
    trust: bool = False,
    typed: Collection[str] = (),
    progress: Progress = silent,
    listener: StageListener | None = None,
) -> RunReport:
    """Carry out a recipe.

    Args:
        recipe: A recipe or its file.
        output: Folder for the artifacts, in place of the recipe's.
        again: Stages to carry out although nothing changed, such as "bench".
        trust: Run code that the recipe names outside of its folder, write there, and load `.pt2` and Keras
            files that run code.
        typed: Spellings of models and data that the user typed himself, which need no more trust.
        progress: Told of every step.
        listener: Told of every stage when it is over.

    Returns:
        What was done, what was skipped, and what failed: `failures` is empty where every artifact is built.

    Raises:
        RecipeError: If the recipe is wrong, or names code outside of its folder without `trust`.
        InvalidOption: If a file that it reads would be overwritten.
        QCompileError: Of a stage that failed and that every artifact needs; what was done before stays done.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    given = Path(output) if output is not None else None
    recipe = trusted(recipe, trust=trust, output=given, typed=typed)
    folder = given or recipe.folder / recipe.output
    check_output(recipe, recipe.folder, folder)
    store = Store(folder)
    with store.locked(), trusting(recipe.model.trust):
        report = _Run(recipe, store, again, progress, listener).drive()
        store.forget_old()
    return report


class _Run:
    """One run: the stages in order, each handing its file to the next."""

    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        again: tuple[str, ...],
        progress: Progress,
        listener: StageListener | None,
    ) -> None:
        self.recipe, self.store, self.again = recipe, store, again
        self.progress, self.listener = progress, listener
        self.report = RunReport(store.output)
        self.source = recipe_source(recipe)
        self.source_digest = digest_source(
            self.source, depends=[recipe.folder / name for name in recipe.model.depends]
        )

    def drive(self) -> RunReport:
        recipe = self.recipe
        model = self._do(export_stage(recipe, self.source, self.source_digest))
        if recipe.model.simplify:
            model = self._do(simplify_stage(recipe, model))
        if recipe.calibrate.balance:
            model = self._do(balance_stage(recipe, model))
        ranges = self._ranges(model)
        built: dict[str, Made] = {}
        for one in recipe.artifact:
            if one.name not in self.report.failures:
                try:
                    built[one.name] = self._artifact(one, model, ranges)
                except QCompileError as error:
                    self.report.failures[one.name] = error
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
        checkpoint = self.store.folder / "calibrate.checkpoint"
        try:
            return self._do(calibrate_stage(self.recipe, model, checkpoint))
        except UsageError:
            raise  # the recipe is wrong
        except QCompileError as error:
            if len(needing) == len(self.recipe.artifact):
                raise
            self.report.failures |= dict.fromkeys(needing, error)
            return None

    def _artifact(self, one: ArtifactSection, model: Made, ranges: Made | None) -> Made:
        from ..engines.capabilities import capabilities
        from ..engines.registry import engine

        chosen = engine(one.target)
        if chosen.takes == "pytorch":
            stage = build_stage(self.recipe, one, self.source.absolute, self.source_digest)
        else:
            ranges = ranges if one.needs_ranges else None
            try:
                lowering = lower_stage(self.recipe, one, model, ranges, capabilities(chosen))
            except EngineUnavailable:
                lowering = None  # the build says why, and fails
            graph = self._do(lowering) if lowering else None
            stage = build_stage(self.recipe, one, str(model.path), model.digest, ranges=ranges, graph=graph)
        made = self._do(stage)
        self.report.artifacts[one.name] = self.store.output / stage.file
        return made

    def _bench(self, built: Mapping[str, Made], ranges: Made | None) -> None:
        from ..bench.results.results import load_results
        from ..reporting.source import read_source
        from ..reporting.summary import why_not

        reasons = {
            name: f"{error.message}; {error.hint}" if error.hint else error.message
            for name, error in self.report.failures.items()
        }
        unavailable = [
            name for name, error in self.report.failures.items() if isinstance(error, EngineUnavailable)
        ]
        stage = bench_stage(
            self.recipe, self.source, self.source_digest, built, self.store.output, reasons, unavailable
        )
        measured = self._do(stage)
        self.report.results = load_results(measured.path)
        if self.recipe.budget.limits:
            source = read_source(measured.path, budget=self.recipe.budget)
            self.report.budget = {one.name: why_not(one, self.recipe.budget) or "" for one in source.measured}
        try:
            page = self._do(report_stage(measured, ranges, self.recipe.budget)).path
            self.report.page = self.store.output / page.name
        except EngineUnavailable as error:  # the charts' library is an extra; everything else is done
            self.report.why_no_page = error.message

    def _do(self, stage: Stage) -> Made:
        """Carry out a stage unless it is done already."""
        start = time.monotonic()

        def told(text: str, done: int = 0, total: int | None = None, /) -> None:
            self.progress(f"{stage.name}: {text}", done, total)

        again = any(stage.name == wanted or stage.name.startswith(f"{wanted}-") for wanted in self.again)
        try:
            stored = self.store.run(
                stage.name,
                {**stage.key, "file": stage.file},
                lambda folder: self._work(stage, folder, told),
                again=again,
            )
        except QCompileError:
            self._note(stage, "failed", start)
            raise
        self._note(stage, "skipped" if stored.was_done else "done", start)
        return Made(stored.folder / stage.file, stored.files[stage.file])

    def _work(self, stage: Stage, folder: Path, told: Progress) -> None:
        try:
            stage.work(folder / stage.file, told)
        except Exception as error:
            shortage = out_of_memory(error, stage.name)
            if shortage is not None and shortage is not error:
                raise shortage from error
            if not isinstance(error, QCompileError):
                raise
            # The folder has another name each time, and is gone: say where the file would be.
            error.message = error.message.replace(str(folder), str(self.store.output))
            raise

    def _note(self, stage: Stage, state: str, start: float) -> None:
        self.report.stages[stage.name] = state
        if self.listener:
            self.listener(stage.name, state, time.monotonic() - start)
