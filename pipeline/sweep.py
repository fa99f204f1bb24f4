"""`qcompile sweep`: `run` over the recipes that a matrix makes, one results file and one report of all.

recipe with [sweep] ── members ─▶ recipes ── run ─▶ results of each ── join ─▶ results.json
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from ..errors import ClusterError, EngineUnavailable, QCompileError
from ..progress import Progress, silent
from ..spec.decode import spec_from_call
from ..spec.recipes import SweepSpec
from .bench_stages import REPORT, RESULTS
from .graph import ThisProcess, each
from .matrix import Cell, Member, members
from .plan import Plan, PlannedStage, plan
from .recipe import Recipe, read_recipe
from .run import RunReport, StageListener, run
from .stage import Executor
from .store import FOLDER, Store
from .trust import trusted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..bench.results.results import Results
    from ..bench.results.row import Row
    from ..spec.keywords import SweepKeywords


def sweep(
    recipe: str | Path | Recipe,
    spec: SweepSpec | None = None,
    /,
    *,
    executor: Executor | None = None,
    progress: Progress = silent,
    listener: StageListener | None = None,
    **options: Unpack[SweepKeywords],
) -> RunReport:
    """Build and measure every cell of the matrix of a recipe.

    Args:
        recipe: A recipe with `[sweep]`, or its file.
        spec: How.
        executor, progress, listener: As `run`.
        options: Fields of `SweepSpec` by name, in place of those of `spec`.

    Returns:
        What all runs did: artifacts and failures by the names of the cells, stages as "small-b8: build-int8".
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    spec = spec_from_call(SweepSpec, spec, options)
    executor, folder = executor or ThisProcess(), _folder(recipe, spec)
    every = members(recipe, kinds=executor.kinds, only=spec.only)
    run_member = functools.partial(_run, spec, executor=executor, progress=progress, listener=listener)
    report, runs = RunReport(folder), dict[str, RunReport | QCompileError]()

    def run_model(name: str) -> None:  # its shapes share finished stages, so they run one after the other
        for member in every:
            if member.model == name and member.recipe is not None:
                runs[member.name] = run_member(member.recipe, member, folder)

    with Store(folder).locked():
        models = dict.fromkeys(member.model for member in every)
        each(executor, [functools.partial(run_model, model) for model in models])
        for member in every:
            _note(report, member, runs.get(member.name, RunReport(folder)))
        parts = {
            member.name: _renamed(results, member.name)
            for member in every
            if isinstance(done := runs.get(member.name), RunReport) and (results := done.results)
        }
        if parts:
            _join(report, recipe, parts, [cell for member in every for cell in member.cells])
    return report


def plan_sweep(recipe: Recipe, spec: SweepSpec | None = None, /, *, progress: Progress = silent) -> Plan:
    """Return what `sweep` would do; a stage that shapes of a model share counts once.

    The kinds of GPU of a cluster are known to the cluster: without one there are none.
    """
    spec = spec or SweepSpec()
    folder, stages = _folder(recipe, spec), dict[str, PlannedStage]()
    for member in members(recipe, only=spec.only):
        if member.recipe is None:
            continue
        place, shared = _places(member, folder)
        planned = plan(member.recipe, spec, output=place, shared=shared, progress=progress)
        for stage in planned.stages:
            if stage.name != "report":
                label = member.name if stage.name.startswith("bench") else member.model
                name = f"{label}: {stage.name}"
                stages.setdefault(name, replace(stage, name=name))
    return Plan(folder, tuple(stages.values()))


def _folder(recipe: Recipe, spec: SweepSpec) -> Path:
    trusted(recipe, trust=spec.trust, output=spec.output)
    return (spec.output or recipe.folder / recipe.output).absolute()


def _places(member: Member, folder: Path) -> tuple[Path, Path]:
    """Folder of the artifacts of a member, and that of the finished stages of its model."""
    return folder / member.model / member.shape, folder / member.model / FOLDER


def _run(
    spec: SweepSpec,
    recipe: Recipe,
    member: Member,
    folder: Path,
    *,
    executor: Executor,
    progress: Progress,
    listener: StageListener | None,
) -> RunReport | QCompileError:
    """Run the recipe of a member; an error fails its cells alone."""

    def show(text: str, done: int = 0, total: int | None = None, /) -> None:
        progress(f"{member.name}: {text}", done, total)

    def stage_over(stage: str, state: str, seconds: float, /) -> None:
        if listener:
            listener(f"{member.name}: {stage}", state, seconds)

    place, shared = _places(member, folder)
    try:
        return run(
            recipe, spec, output=place, executor=executor, shared=shared, page=False, progress=show,
            listener=stage_over,
        )  # fmt: skip
    except ClusterError:
        raise
    except QCompileError as error:
        return error


def _note(report: RunReport, member: Member, done: RunReport | QCompileError) -> None:
    """Add what became of the cells of a member."""
    for cell in member.cells:
        if cell.why_not:
            report.impossible[cell.name] = cell.why_not
        elif isinstance(done, QCompileError):
            report.failures[cell.name] = done
        elif cell.artifact in done.failures:
            report.failures[cell.name] = done.failures[cell.artifact]
        else:
            report.artifacts[cell.name] = done.artifacts[cell.artifact]
            report.digests[cell.name] = done.digests[cell.artifact]
    if isinstance(done, RunReport):
        report.stages |= {f"{member.name}: {stage}": state for stage, state in done.stages.items()}
        report.where |= {f"{member.name}: {stage}": worker for stage, worker in done.where.items()}


def _join(report: RunReport, recipe: Recipe, parts: Mapping[str, Results], cells: Sequence[Cell]) -> None:
    """Write one results file and one report of all; a cell that no run measured is a row that says why.

    Of the settings it holds those that all measurements have in common.
    """
    from ..bench.results.results import join_results, save_results
    from ..reporting import write_report

    joined = join_results(parts)
    names = {row.name for row in joined.rows}
    settings = {
        key: value
        for key, value in joined.settings.items()
        if all(part.settings.get(key) == value for part in parts.values())
    }
    report.results = structs.replace(
        joined,
        rows=[*joined.rows, *(_row(cell, report) for cell in cells if cell.name not in names)],
        settings={**settings, "command": ["qcompile", "sweep", str(recipe.path)], "sweep": recipe.name},
    )
    path, page = report.output / RESULTS, report.output / REPORT
    save_results(report.results, path)
    report.judge(path, recipe.budget)
    try:
        report.page = write_report(path, page, recipe.budget)
    except EngineUnavailable as error:  # the charts' library is an extra
        report.why_no_page = error.message


def _renamed(results: Results, member: str) -> Results:
    """Results whose rows have the names of the cells."""
    return structs.replace(
        results,
        baseline=f"{member}-{results.baseline}",
        rows=[structs.replace(row, name=f"{member}-{row.name}") for row in results.rows],
        machines={
            name: structs.replace(machine, baseline=f"{member}-{machine.baseline}")
            for name, machine in results.machines.items()
        },
    )


def _row(cell: Cell, report: RunReport) -> Row:
    from ..bench.results.row import Row

    error, machine = report.failures.get(cell.name), "-".join(filter(None, (cell.model, cell.shape)))
    reason = f"{error.message} {error.hint}".strip() if error else report.impossible[cell.name]
    return Row(
        cell.name, "", cell.target, cell.precision, cell.gpu or "CPU", machine=machine,
        status="failed" if error else "not run", reason=reason,
    )  # fmt: skip
