"""`qcompile sweep`: `run` for every recipe of a matrix, with one joint results file and one report.

recipe with [sweep] ── members ─▶ recipes ── run ─▶ results of each ── join ─▶ results.json

A cell of the matrix is a model, a shape and an artifact: small-b8-onnxruntime-int8. Artifacts of one recipe
are measured together, so their speed-ups are comparable. A forbidden combination is a cell with a reason.
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
from .recipe.trust import check_trust
from .run import RunReport, StageListener, run
from .stages.graph import ThisProcess, run_tasks
from .stages.stage import Executor
from .stages.store import FOLDER, Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..bench.results.results import Results
    from ..bench.results.row import Row
    from ..spec.keywords import SweepKeywords


@dataclass(frozen=True)
class MatrixCell:
    """One combination of the matrix; its name is unique in the sweep and the same in every run.

    `artifact` is the name in the cell's recipe; `gpu` the GPU kind to build for, empty for this machine's
    GPU or the CPU; `why_not` the reason why the options forbid the cell, or empty.
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
    """Return the members of a sweep that have cells, ordered by model, then by shape.

    `kinds` are the workers' GPUs, such as "sm90", for "each" in `sweep.gpus`. `only` are globs of cell names;
    empty matches all.
    """
    matrix = recipe.sweep
    if matrix is None:
        hint = "`qcompile run` builds a recipe without a matrix"
        raise wrong_key(recipe.path, "sweep", "is missing; a matrix is required", hint)
    artifacts: list[tuple[Mapping[str, Any], str]] = [(vars(section), "") for section in recipe.artifact]
    artifacts += _combinations(matrix, kinds)
    models = matrix.every_model() or [SweepModel(name=recipe.name, source=recipe.model.source)]
    shapes: list[SweepShape | None] = [*matrix.read_shapes()] or [None]
    all_members = [Member(recipe, model, shape) for model in models for shape in shapes]
    _check_unique(recipe, "sweep.shapes", [member.name for member in all_members])
    cells = [member.cell(options) for member in all_members for options, _ in artifacts]
    _check_unique(recipe, "sweep", [cell.name for cell in cells])
    for member in all_members:
        member.fill(artifacts, matrix.exclude, only)
    return [member for member in all_members if member.cells]


def _combinations(matrix: SweepSection, kinds: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the options of each artifact of a matrix, with the reason if it cannot be built."""
    for item in matrix.combinations(kinds):
        options: dict[str, Any] = {"target": item.target, "precision": item.precision, "name": item.name}
        why_not = ""
        if item.gpu:
            options["gpus"] = (item.gpu,)
        elif item.target in TENSORRT_TARGETS and matrix.gpus:
            why_not = f"sweep.gpus is {', '.join(matrix.gpus)}, and no worker has a GPU"
        if item.precision == "int4":
            options["mode"] = "weights"  # the only INT4 mode
        yield options, why_not


class Member:
    """A model with a shape, "small-b8": its `cells`, and the `recipe` of the possible cells, if any."""

    def __init__(self, matrix: Recipe, model: SweepModel, shape: SweepShape | None) -> None:
        self.matrix, self.model, self.shape = matrix, model.name, shape.label if shape else ""
        self.name = "-".join(filter(None, (self.model, self.shape)))
        self._model, self._shape = model, shape
        self.cells: list[MatrixCell] = []
        self.recipe: Recipe | None = None

    def places(self, folder: Path) -> tuple[Path, Path]:
        """Return the folder of the member's artifacts, and the folder of its model's finished stages."""
        return folder / self.model / self.shape, folder / self.model / FOLDER

    def cell(self, options: Mapping[str, Any]) -> MatrixCell:
        """Return the cell of an artifact with these options."""
        name, gpus = options["name"], "+".join(options.get("gpus", ()))
        return MatrixCell(
            f"{self.name}-{name}", self.model, self.shape, name, options["target"], options["precision"], gpus
        )

    def fill(
        self, artifacts: Sequence[tuple[Mapping[str, Any], str]], exclude: Sequence[str], only: Sequence[str]
    ) -> None:
        """Fill `cells` with the cells that the filters select, and set `recipe`."""
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
        """Return the artifact, or the reason why it cannot be built."""
        try:
            section = ArtifactSection(**options)
            shape = self._shape
            if shape and shape.inputs and section.target in TENSORRT_TARGETS and not has_shapes(section):
                shapes: dict[str, Any] = {  # low, opt and high shape of each input
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
        """Return the ordinary recipe of these artifacts; the model replaces a missing baseline."""
        tables = self.tables
        bench = tables["bench"]
        if bench is not None and bench.baseline not in {section.name for section in artifacts}:
            tables = {**tables, "bench": replace(bench, baseline=BASELINE)}
        recipe = replace(self.matrix, **tables, artifact=tuple(artifacts), sweep=None)
        check_names(recipe)
        return recipe

    @functools.cached_property
    def tables(self) -> dict[str, Any]:
        """Tables of the recipe with this model, its inputs in this shape, its data and batch size."""
        recipe, shape = self.matrix, self._shape
        options = {key: value for key, value in vars(self._model).items() if value and key != "name"}
        data = {key: options.pop(key) for key in ("calibration", "evaluation") if key in options}
        model = replace(recipe.model, **options)
        if shape and shape.inputs:
            model = replace(model, inputs=tuple(_fix_extents(text, shape) for text in model.inputs))
        bench = replace(recipe.bench, batch_size=shape.batch) if recipe.bench and shape else recipe.bench
        return {
            "name": self.model, "model": model, "data": replace(recipe.data, **data), "bench": bench,
        }  # fmt: skip


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _fix_extents(text: str, shape: SweepShape) -> str:
    """Return an input with the shape's constant extents; varying and symbolic batch axes do not change."""
    tensor = parse_input(text)
    extents = shape.inputs.get(tensor.name)
    if extents is None or len(extents[1]) != len(tensor.shape):
        return text
    low, opt, high = extents
    has_symbolic_batch = isinstance(tensor.shape[0], str)
    axes = [
        str(axis) if (index == 0 and has_symbolic_batch) or low[index] != high[index] else str(opt[index])
        for index, axis in enumerate(tensor.shape)
    ]
    return f"{tensor.name}:[{','.join(axes)}]:{tensor.dtype}"


def _check_unique(recipe: Recipe, key: str, names: Sequence[str]) -> None:
    """Raise if two cells or two folders have the same name, ignoring case."""
    if (index := first_taken(names)) is not None:
        problem = f"gives {names[index]!r} twice; unique names are required"
        raise wrong_key(recipe.path, key, problem, "rename a model or a shape, as in small=8")


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
        spec: Options of the sweep.
        executor, progress, listener: As in `run`.
        options: Fields of `SweepSpec` by name; they override those of `spec`.

    Returns:
        The joint outcome: artifacts and failures by cell name, stages as "small-b8: build-int8".
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    spec = spec_from_call(SweepSpec, spec, options)
    executor, folder = executor or ThisProcess(), _output_folder(recipe, spec)
    all_members = members(recipe, kinds=executor.kinds, only=spec.only)
    report, runs = RunReport(folder), dict[str, RunReport | QCompileError]()

    def run_member(member: Member, member_recipe: Recipe) -> RunReport | QCompileError:
        """Run one member; return its error, which fails only its cells."""

        def stage_over(stage: str, state: str, seconds: float, /) -> None:
            if listener:
                listener(f"{member.name}: {stage}", state, seconds)

        output, shared = member.places(folder)
        try:
            return run(
                member_recipe,
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

    def run_model(name: str) -> None:  # one after another: shapes of a model share finished stages
        for member in all_members:
            if member.model == name and member.recipe is not None:
                runs[member.name] = run_member(member, member.recipe)

    with Store(folder).locked():
        models = dict.fromkeys(member.model for member in all_members)
        run_tasks(executor, [functools.partial(run_model, model) for model in models])
        parts: dict[str, Results] = {}
        for member in all_members:
            outcome = runs.get(member.name, RunReport(folder))
            _add_outcome(report, member, outcome)
            if isinstance(outcome, RunReport) and outcome.results:
                parts[member.name] = _rename_rows(member.name, outcome.results)
        if parts:
            _write_joined(report, recipe, parts, [cell for member in all_members for cell in member.cells])
    return report


def _rename_rows(member: str, results: Results) -> Results:
    """Return the results of a member, with the cell names as names of the rows."""
    machines = {
        name: structs.replace(machine, baseline=f"{member}-{machine.baseline}")
        for name, machine in results.machines.items()
    }
    rows = [structs.replace(row, name=f"{member}-{row.name}") for row in results.rows]
    return structs.replace(results, baseline=f"{member}-{results.baseline}", rows=rows, machines=machines)


def plan_sweep(recipe: Recipe, spec: SweepSpec | None = None, /, *, progress: Progress = silent) -> Plan:
    """Return the stages that `sweep` would carry out; a stage that shapes of a model share counts once.

    "each" in `sweep.gpus` matches no GPU, because the kinds are known only to a cluster.
    """
    spec = spec or SweepSpec()
    folder, stages = _output_folder(recipe, spec), dict[str, PlannedStage]()
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


def _output_folder(recipe: Recipe, spec: SweepSpec) -> Path:
    check_trust(recipe, trust=spec.trust, output=spec.output)
    return (spec.output or recipe.folder / recipe.output).absolute()


def _add_outcome(report: RunReport, member: Member, outcome: RunReport | QCompileError) -> None:
    """Add the outcome of a member's cells to the report."""
    for cell in member.cells:
        if cell.why_not:
            report.impossible[cell.name] = cell.why_not
        elif isinstance(outcome, QCompileError):
            report.failures[cell.name] = outcome
        elif cell.artifact in outcome.failures:
            report.failures[cell.name] = outcome.failures[cell.artifact]
        else:
            report.artifacts[cell.name] = outcome.artifacts[cell.artifact]
            report.digests[cell.name] = outcome.digests[cell.artifact]
    if isinstance(outcome, RunReport):
        report.stages |= {f"{member.name}: {stage}": state for stage, state in outcome.stages.items()}
        report.where |= {f"{member.name}: {stage}": worker for stage, worker in outcome.where.items()}


def _write_joined(
    report: RunReport, recipe: Recipe, parts: Mapping[str, Results], cells: Sequence[MatrixCell]
) -> None:
    """Write the joint results, with common settings and the reasons of unmeasured cells, and the report."""
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
