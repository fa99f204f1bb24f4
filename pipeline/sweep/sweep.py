"""`qcompile sweep`: every model and shape of a matrix through `run`, several at a time.

    members ─▶ run of each, in its own folder ─▶ journal ─▶ sweep.json

Its state is that of the members in flight: a matrix of thousands takes no more memory than one of a few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ...bench.results.sweep_results import RESULTS, CellResult
from ...errors import ClusterError
from ...files import write_text
from ...progress import Progress, silent
from ...spec.artifacts import ArtifactSection
from ...spec.decode import Refused
from ...spec.words import BASELINE
from ..executor import Executor, ThisProcess
from ..recipe import Recipe, read_recipe, require_scales
from ..run import RunReport, run
from ..store import FOLDER, Store
from ..trust import trusted
from .cells import Cell, Member, cell_names, matches, members
from .journal import Journal, earlier_cells
from .measured import cells_of, sentence, without_run
from .once import Once
from .recipe_text import recipe_text

_RECIPE = "recipe.toml"


class SweepListener(Protocol):
    """Told of a sweep; its methods may be called from several threads."""

    def planned(self, cells: int, /) -> None:
        """So many cells are to be looked at."""

    def began(self, member: Member, /) -> None:
        """A model with a shape is taken up."""

    def stage(self, member: Member, stage: str, state: str, seconds: float, /) -> None:
        """A stage of it is over; `state` is "done", "skipped" or "failed"."""

    def finished(self, cell: CellResult, /, *, changed: bool) -> None:
        """A cell is over; without `changed` an earlier run had done all of it."""

    def left(self, member: Member, /) -> None:
        """All cells of a model with a shape are over."""


@dataclass(frozen=True)
class SweepReport:
    """What a sweep did.

    Attributes:
        output: Folder of everything.
        results: `sweep.json` in it.
        planned: Number of cells.
        counts: State to number of cells.
        unchanged: Number of cells for which there was nothing to do.
    """

    output: Path
    results: Path
    planned: int
    counts: dict[str, int]
    unchanged: int

    @property
    def failed(self) -> int:
        """Number of cells that failed."""
        return self.counts.get("failed", 0)


def sweep(
    recipe: str | Path | Recipe,
    *,
    output: str | Path | None = None,
    only: Sequence[str] = (),
    again: tuple[str, ...] = (),
    trust: bool = False,
    executor: Executor | None = None,
    gpus_there: Sequence[str] | None = None,
    progress: Progress = silent,
    listener: SweepListener | None = None,
) -> SweepReport:
    """Build and measure every cell of the matrix of a recipe.

    Args:
        recipe: A recipe with `[sweep]`, or its file.
        output: Folder for everything, in place of the recipe's.
        only: Globs over the names of the cells to do; empty for all. What an earlier run says of the others
            stays.
        again: Stages to carry out although nothing changed, such as "bench".
        trust: As `run`.
        executor: Carries out the stages; this process by default.
        gpus_there: Each kind of GPU that there is, for "each" in `sweep.gpus`; the executor's by default.
        progress: Told of every step.
        listener: Told of every cell.

    Returns:
        What was done. Cells that failed are in its counts, and in its results file with their reasons.

    Raises:
        RecipeError: If the recipe has no matrix, or is wrong.
        ClusterError: If the scheduler or all workers are lost; what was done before stays done.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    given = Path(output) if output is not None else None
    trusted(recipe, trust=trust, output=given)
    folder = (given or recipe.folder / recipe.output).absolute()
    executor = executor or ThisProcess()
    gpus_there = executor.kinds if gpus_there is None else gpus_there
    planned = sum(1 for _ in cell_names(recipe, gpus_there=gpus_there))
    store = Store(folder)
    with store.locked():
        others = _others(recipe, folder, only, gpus_there) if only else []
        with Journal(folder, store.own, name=recipe.name, planned=planned) as journal:
            for cell in others:
                journal.add(cell)
            if listener:
                listener.planned(planned - len(others))
            work = _Sweep(folder, journal, again, trust, Once(executor), progress, listener)
            work.drive(members(recipe, gpus_there=gpus_there, only=only))
    return SweepReport(folder, folder / RESULTS, planned, journal.counts, work.unchanged)


def _others(recipe: Recipe, folder: Path, only: Sequence[str], gpus_there: Sequence[str]) -> list[CellResult]:
    """What an earlier run says of the cells that this one leaves alone."""
    earlier = earlier_cells(folder)
    names = cell_names(recipe, gpus_there=gpus_there)
    return [earlier[name] for name in names if name in earlier and not matches(name, only)]


class _Sweep:
    """Carries out the members, as many at a time as the executor takes steps."""

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        again: tuple[str, ...],
        trust: bool,
        executor: Once,
        progress: Progress,
        listener: SweepListener | None,
    ) -> None:
        self.folder, self.journal, self.again, self.trust = folder, journal, again, trust
        self.executor, self.progress, self.listener = executor, progress, listener
        self.unchanged = 0

    def drive(self, every: Iterator[Member]) -> None:
        parallel = self.executor.parallel
        if parallel == 1:
            for member in every:
                self._carry_out(member)
            return
        threads = ThreadPoolExecutor(parallel, "qcompile-sweep")
        try:
            self._drive_threads(every, threads, parallel)
        except BaseException:
            self.executor.cancel()  # else its threads, which cannot be interrupted, would go on
            raise
        finally:
            threads.shutdown(cancel_futures=True)

    def _drive_threads(self, every: Iterator[Member], threads: ThreadPoolExecutor, parallel: int) -> None:
        flying: set[Future[None]] = set()
        for member in every:
            while len(flying) >= parallel:
                flying = _landed(flying)
            flying.add(threads.submit(self._carry_out, member))
        while flying:
            flying = _landed(flying)

    def _carry_out(self, member: Member) -> None:
        """Run one recipe, and note what became of its cells."""
        if self.listener:
            self.listener.began(member)
        try:
            member = with_scales(member)
            report = self._run(member) if member.recipe else RunReport(self.folder / member.place)
            results = list(cells_of(member, report, self.folder))
        except ClusterError:
            raise  # every other cell would fail for the same reason
        except Exception as error:
            reason = sentence(error)
            results = [
                without_run(cell, "impossible" if cell.why_not else "failed", cell.why_not or reason)
                for cell in member.cells
            ]
            report = RunReport(self.folder / member.place)
        for cell, result in zip(member.cells, results, strict=True):
            self._note(result, changed=_was_worked_on(cell, report))
        if self.listener:
            self.listener.left(member)

    def _run(self, member: Member) -> RunReport:
        assert member.recipe is not None, "the caller looks first"
        place, shared = self.folder / member.place, self.folder / member.shared / FOLDER
        written, text = place / _RECIPE, recipe_text(member.recipe)
        if not written.is_file() or written.read_text(encoding="utf-8") != text:
            place.mkdir(parents=True, exist_ok=True)
            write_text(written, text)

        def told(text: str, done: int = 0, total: int | None = None, /) -> None:
            self.progress(f"{member.name}: {text}", done, total)

        def listener(stage: str, state: str, seconds: float, /) -> None:
            if self.listener:
                self.listener.stage(member, stage, state, seconds)

        return run(
            replace(member.recipe, written=written),
            output=place,
            again=self.again,
            trust=self.trust,
            executor=self.executor,
            shared=shared,
            progress=told,
            listener=listener,
        )

    def _note(self, result: CellResult, *, changed: bool) -> None:
        self.journal.add(result)
        if not changed and result.state == "done":
            self.unchanged += 1
        if self.listener:
            self.listener.finished(result, changed=changed)


def _was_worked_on(cell: Cell, report: RunReport) -> bool:
    """Whether a stage that the cell needs was done by this run."""
    own = ("export", "simplify", f"quantize-{cell.artifact}", f"build-{cell.artifact}", "bench")
    return any(report.stages.get(stage) == "done" for stage in own)


def with_scales(member: Member) -> Member:
    """Return a member without the static INT8 that has neither ranges nor scales in its file."""
    if member.recipe is None:
        return member
    try:
        require_scales(member.recipe)
    except Refused as error:
        reason, artifacts = f"{error.key} {error.sentence}", member.recipe.artifact
        needing = {one.name for one in artifacts if one.needs_ranges}
        rest = tuple(one for one in artifacts if one.name not in needing)
        cells = tuple(
            replace(cell, why_not=reason) if cell.artifact in needing else cell for cell in member.cells
        )
        return replace(member, cells=cells, recipe=_of(member.recipe, rest) if rest else None)
    return member


def _of(recipe: Recipe, artifacts: tuple[ArtifactSection, ...]) -> Recipe:
    """A recipe with fewer artifacts."""
    bench = recipe.bench
    if bench is not None and bench.baseline not in {one.name for one in artifacts}:
        bench = replace(bench, baseline=BASELINE)
    return replace(recipe, artifact=artifacts, bench=bench)


def _landed(flying: set[Future[None]]) -> set[Future[None]]:
    """Wait for one, and return the others; an error of it is raised."""
    done, rest = wait(flying, return_when=FIRST_COMPLETED)
    for one in done:
        one.result()
    return rest
