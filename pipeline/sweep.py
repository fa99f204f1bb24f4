"""`qcompile sweep`: `run` over the recipes that a matrix makes, one results file and one report of all.

recipe with [sweep] ── members ─▶ recipes ── run ─▶ results of each ── join ─▶ results.json

A cell of the matrix is a model, a shape and an artifact: small-b8-onnxruntime-int8. Artifacts of one recipe
are measured beside each other, so their speed-ups may be compared. What the options forbid together is a cell
that says why.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ..core.progress import Progress, silent
from ..errors import ClusterError, EngineUnavailable, QCompileError
from ..spec.artifacts import ArtifactSection
from ..spec.decode import Refused, spec_from_call
from ..spec.recipes import SweepSpec
from ..spec.sweep import SweepModel, SweepSection, SweepShape, first_taken
from ..spec.tensors import format_shape, parse_input
from ..spec.words import BASELINE, TENSORRT_TARGETS
from .plan import Plan, PlannedStage, plan
from .recipe.batches import check_batches, has_shapes
from .recipe.published import REPORT, RESULTS, check_names
from .recipe.recipe import Recipe, read_recipe, require_scales, wrong_key
from .recipe.trust import trusted
from .run import RunReport, StageListener, run
from .stages.graph import ThisProcess, each
from .stages.stage import Executor
from .stages.store import FOLDER, Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..bench.results.results import Results
    from ..bench.results.row import Row
    from ..spec.keywords import SweepKeywords


@dataclass(frozen=True)
class MatrixCell:
    """One combination of the matrix; its name is unique in the sweep, and the same in every run of it.

    `artifact` is its name in its recipe; `gpu` the kind of GPU that it is built for, empty for this
    machine's, or none; `why_not` says why the options forbid it, empty where they do not.
    """

    name: str
    model: str
    shape: str
    artifact: str
    target: str
    precision: str
    gpu: str = ""
    why_not: str = ""


def members(recipe: Recipe, *, kinds: Sequence[str] = (), only: Sequence[str] = ()) -> list[Member]:
    """Return what a sweep consists of, one model and shape after the other.

    `kinds` are the workers' GPUs, such as "sm90", for "each" in `sweep.gpus`; `only` are globs, and cells
    whose name none of them matches are left out. Empty keeps all.
    """
    matrix = recipe.sweep
    if matrix is None:
        hint = "`qcompile run` builds the artifacts of a recipe without one"
        raise wrong_key(recipe.path, "sweep", "is missing; a matrix is required", hint)
    artifacts: list[tuple[Mapping[str, Any], str]] = [(vars(section), "") for section in recipe.artifact]
    artifacts += _combinations(matrix, kinds)
    models = matrix.every_model() or [SweepModel(name=recipe.name, source=recipe.model.source)]
    shapes: list[SweepShape | None] = [*matrix.read_shapes()] or [None]
    every = [Member(recipe, model, shape) for model in models for shape in shapes]
    _check_unique(recipe, "sweep.shapes", [member.name for member in every])
    cells = [member.cell(options) for member in every for options, _ in artifacts]
    _check_unique(recipe, "sweep", [cell.name for cell in cells])
    for member in every:
        member.fill(artifacts, matrix.exclude, only)
    return [member for member in every if member.cells]


def _combinations(matrix: SweepSection, kinds: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """The options of the artifacts of a matrix, and why one cannot be made."""
    for item in matrix.combinations(kinds):
        options: dict[str, Any] = {"target": item.target, "precision": item.precision, "name": item.name}
        why_not = ""
        if item.gpu:
            options["gpus"] = (item.gpu,)
        elif item.target in TENSORRT_TARGETS and matrix.gpus:
            why_not = f"sweep.gpus is {', '.join(matrix.gpus)}, and no worker has a GPU"
        if item.precision == "int4":
            options["mode"] = "weights"  # the only mode of it
        yield options, why_not


class Member:
    """A model with a shape, "small-b8": its `cells`, and the `recipe` of those that are possible, if any."""

    def __init__(self, matrix: Recipe, model: SweepModel, shape: SweepShape | None) -> None:
        self.matrix, self.model, self.shape = matrix, model.name, shape.label if shape else ""
        self.name = "-".join(filter(None, (self.model, self.shape)))
        self._model, self._shape = model, shape
        self.cells: list[MatrixCell] = []
        self.recipe: Recipe | None = None

    def places(self, folder: Path) -> tuple[Path, Path]:
        """Return the folder of its artifacts, and that of the finished stages of its model."""
        return folder / self.model / self.shape, folder / self.model / FOLDER

    def cell(self, options: Mapping[str, Any]) -> MatrixCell:
        """The cell of an artifact of these options."""
        name, gpus = options["name"], "+".join(options.get("gpus", ()))
        return MatrixCell(
            f"{self.name}-{name}", self.model, self.shape, name, options["target"], options["precision"], gpus
        )

    def fill(
        self, artifacts: Sequence[tuple[Mapping[str, Any], str]], exclude: Sequence[str], only: Sequence[str]
    ) -> None:
        """Make the cells that are not left out, and the recipe."""
        sections: list[ArtifactSection] = []
        for options, why_not in artifacts:
            cell = self.cell(options)
            if _matches(cell.name, exclude) or (only and not _matches(cell.name, only)):
                continue
            section = why_not or self.section(options)
            if isinstance(section, ArtifactSection):
                sections.append(section)
            else:
                cell = replace(cell, why_not=section)
            self.cells.append(cell)
        self.recipe = self.with_artifacts(sections) if sections else None

    def section(self, options: Mapping[str, Any]) -> ArtifactSection | str:
        """The artifact, or why it cannot be made."""
        try:
            section = ArtifactSection(**options)
            shape = self._shape
            if shape and shape.inputs and section.target in TENSORRT_TARGETS and not has_shapes(section):
                shapes: dict[str, Any] = {  # the least, the measured and the largest of each input
                    kind: tuple(f"{name}:{format_shape(each[index])}" for name, each in shape.inputs.items())
                    for index, kind in enumerate(("min_shapes", "opt_shapes", "max_shapes"))
                }
                section = replace(section, **shapes)
            recipe = self.with_artifacts([section])
            require_scales(recipe)
            check_batches(recipe)
        except Refused as error:
            return f"{error.key} {error.sentence}"
        return section

    def with_artifacts(self, artifacts: Sequence[ArtifactSection]) -> Recipe:
        """The ordinary recipe of some artifacts; without the baseline, the model itself is the baseline."""
        tables = self.tables
        bench = tables["bench"]
        if bench is not None and bench.baseline not in {section.name for section in artifacts}:
            tables = {**tables, "bench": replace(bench, baseline=BASELINE)}
        recipe = replace(self.matrix, **tables, artifact=tuple(artifacts), sweep=None)
        check_names(recipe)
        return recipe

    @functools.cached_property
    def tables(self) -> dict[str, Any]:
        """Tables of the recipe with the model, its inputs of this shape, its data and its batch."""
        recipe, shape = self.matrix, self._shape
        options = {key: value for key, value in vars(self._model).items() if value and key != "name"}
        data = {key: options.pop(key) for key in ("calibration", "evaluation") if key in options}
        model = replace(recipe.model, **options)
        if shape and shape.inputs:
            model = replace(model, inputs=tuple(_fixed(text, shape) for text in model.inputs))
        bench = replace(recipe.bench, batch_size=shape.batch) if recipe.bench and shape else recipe.bench
        return {
            "name": self.model, "model": model, "data": replace(recipe.data, **data), "bench": bench,
        }  # fmt: skip


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _fixed(text: str, shape: SweepShape) -> str:
    """An input with the extents of the shape: those that do not vary, and the batch where it is a number."""
    tensor = parse_input(text)
    extents = shape.inputs.get(tensor.name)
    if extents is None or len(extents[1]) != len(tensor.shape):
        return text
    low, opt, high = extents
    named = isinstance(tensor.shape[0], str)
    axes = [
        str(axis) if (index == 0 and named) or low[index] != high[index] else str(opt[index])
        for index, axis in enumerate(tensor.shape)
    ]
    return f"{tensor.name}:[{','.join(axes)}]:{tensor.dtype}"


def _check_unique(recipe: Recipe, key: str, names: Sequence[str]) -> None:
    """Refuse two cells, or two folders, of one name; those that differ by case alone are one."""
    if (index := first_taken(names)) is not None:
        problem = f"gives two the name {names[index]!r}; other names are required"
        raise wrong_key(recipe.path, key, problem, "name a model or a shape in another way, as in small=8")


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
    report, runs = RunReport(folder), dict[str, RunReport | QCompileError]()

    def run_member(member: Member, of: Recipe) -> RunReport | QCompileError:
        """An error of a member fails its cells alone."""

        def stage_over(stage: str, state: str, seconds: float, /) -> None:
            if listener:
                listener(f"{member.name}: {stage}", state, seconds)

        output, shared = member.places(folder)
        try:
            return run(
                of,
                spec,
                output=output,
                executor=executor,
                shared=shared,
                page=False,
                progress=lambda text, *counts: progress(f"{member.name}: {text}", *counts),
                listener=stage_over,
            )
        except ClusterError:
            raise
        except QCompileError as error:
            return error

    def run_model(name: str) -> None:  # its shapes share finished stages, so they run one after the other
        for member in every:
            if member.model == name and member.recipe is not None:
                runs[member.name] = run_member(member, member.recipe)

    with Store(folder).locked():
        models = dict.fromkeys(member.model for member in every)
        each(executor, [functools.partial(run_model, model) for model in models])
        parts: dict[str, Results] = {}
        for member in every:
            done = runs.get(member.name, RunReport(folder))
            _note(report, member, done)
            if isinstance(done, RunReport) and done.results:
                parts[member.name] = _renamed(member.name, done.results)
        if parts:
            _join(report, recipe, parts, [cell for member in every for cell in member.cells])
    return report


def _renamed(member: str, results: Results) -> Results:
    """The results of a member, whose rows have the names of cells."""
    machines = {
        name: structs.replace(machine, baseline=f"{member}-{machine.baseline}")
        for name, machine in results.machines.items()
    }
    rows = [structs.replace(row, name=f"{member}-{row.name}") for row in results.rows]
    return structs.replace(results, baseline=f"{member}-{results.baseline}", rows=rows, machines=machines)


def plan_sweep(recipe: Recipe, spec: SweepSpec | None = None, /, *, progress: Progress = silent) -> Plan:
    """Return what `sweep` would do; a stage that shapes of a model share counts once.

    The kinds of GPU of a cluster are known to the cluster: without one there are none.
    """
    spec = spec or SweepSpec()
    folder, stages = _folder(recipe, spec), dict[str, PlannedStage]()
    for member in members(recipe, only=spec.only):
        if member.recipe is None:
            continue
        output, shared = member.places(folder)
        for stage in plan(member.recipe, spec, output=output, shared=shared, progress=progress).stages:
            if stage.name != "report":
                label = member.name if stage.name.startswith("bench") else member.model
                name = f"{label}: {stage.name}"
                stages.setdefault(name, replace(stage, name=name))
    return Plan(folder, tuple(stages.values()))


def _folder(recipe: Recipe, spec: SweepSpec) -> Path:
    trusted(recipe, trust=spec.trust, output=spec.output)
    return (spec.output or recipe.folder / recipe.output).absolute()


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


def _join(
    report: RunReport, recipe: Recipe, parts: Mapping[str, Results], cells: Sequence[MatrixCell]
) -> None:
    """Write one results file and one report of all; a cell that no run measured is a row that says why.

    Of the settings it holds those that all measurements have in common.
    """
    from ..bench.report import write_report
    from ..bench.results.results import join_results, save_results

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


def _row(cell: MatrixCell, report: RunReport) -> Row:
    from ..bench.results.row import Row

    error, machine = report.failures.get(cell.name), "-".join(filter(None, (cell.model, cell.shape)))
    reason = f"{error.message} {error.hint}".strip() if error else report.impossible[cell.name]
    return Row(
        cell.name, "", cell.target, cell.precision, cell.gpu or "CPU", machine=machine,
        status="failed" if error else "not run", reason=reason,
    )  # fmt: skip
