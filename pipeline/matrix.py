"""The cells of a matrix, and the ordinary recipes that make them: one for each model and shape.

    small-b8-onnxruntime-int8    model, shape, and the artifact: target, precision and GPU

Artifacts of one recipe are measured beside each other, so their speed-ups may be compared. What the options
forbid together is a cell that says why.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import RecipeError
from ..spec.artifacts import ArtifactSection
from ..spec.decode import Refused
from ..spec.sweep import SweepModel, SweepSection, SweepShape, first_taken
from ..spec.words import BASELINE, TENSORRT_TARGETS
from ..tensors import format_shape, parse_input
from .recipe import Recipe, check_batches, check_names, has_shapes, require_scales


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of the matrix; its name is unique in the sweep, and the same in every run of it.

    Attributes:
        shape: Label of the shape; empty without shapes.
        artifact: Name of the artifact in its recipe.
        gpu: Kind of GPU that it is built for; empty for this machine's, or none.
        why_not: Why the options forbid it; empty where they do not.
    """

    name: str = ""
    model: str = ""
    shape: str = ""
    artifact: str
    target: str
    precision: str
    gpu: str = ""
    why_not: str = ""


@dataclass(frozen=True)
class Member:
    """A model with a shape: its cells, and the recipe that makes those that are possible, if any."""

    model: str
    shape: str
    cells: tuple[Cell, ...]
    recipe: Recipe | None

    @property
    def name(self) -> str:
        """Name: "small-b8", or "small" without shapes."""
        return "-".join(filter(None, (self.model, self.shape)))


def members(recipe: Recipe, *, kinds: Sequence[str] = (), only: Sequence[str] = ()) -> list[Member]:
    """Return what a sweep consists of, one model and shape after the other.

    `kinds` are the workers' GPUs, such as "sm90", for "each" in `sweep.gpus`; `only` are globs, and cells
    whose name none of them matches are left out. Empty keeps all.
    """
    matrix = recipe.sweep
    if matrix is None:
        raise RecipeError(
            f"{recipe.path}: key 'sweep' is missing; a matrix is required",
            hint="`qcompile run` builds the artifacts of a recipe without one",
            file=recipe.path,
            key="sweep",
        )
    artifacts = list(_artifacts(recipe, matrix, kinds))
    models = matrix.every_model() or [SweepModel(name=recipe.name, source=recipe.model.source)]
    shapes: list[SweepShape | None] = [*matrix.read_shapes()] or [None]
    variants = [_Variant(recipe, model, shape) for model in models for shape in shapes]
    _check_unique(recipe, "sweep.shapes", [variant.name for variant in variants])
    _check_unique(recipe, "sweep", [variant.cell(cell).name for variant in variants for cell, _ in artifacts])
    every = (variant.member(artifacts, matrix.exclude, only) for variant in variants)
    return [member for member in every if member.cells]


def _artifacts(
    recipe: Recipe, matrix: SweepSection, kinds: Sequence[str]
) -> Iterator[tuple[Cell, Mapping[str, Any]]]:
    """The artifacts of the recipe, then those of the matrix: each a cell of no model yet, and its options."""
    for section in recipe.artifact:
        gpus = "+".join(section.gpus)
        cell = Cell(artifact=section.name, target=section.target, precision=section.precision, gpu=gpus)
        yield cell, vars(section)
    for item in matrix.combinations(kinds):
        options: dict[str, Any] = {"target": item.target, "precision": item.precision, "name": item.name}
        why_not = ""
        if item.gpu:
            options["gpus"] = (item.gpu,)
        elif item.target in TENSORRT_TARGETS and matrix.gpus:
            why_not = f"sweep.gpus is {', '.join(matrix.gpus)}, and no worker has a GPU"
        if item.precision == "int4":
            options["mode"] = "weights"  # the only mode of it
        yield Cell(artifact=item.name, **vars(item), why_not=why_not), options


@dataclass(frozen=True)
class _Variant:
    """A model with a shape, before its artifacts."""

    recipe: Recipe
    model: SweepModel
    shape: SweepShape | None

    @property
    def name(self) -> str:
        return f"{self.model.name}-{self.shape.label}" if self.shape else self.model.name

    def cell(self, cell: Cell) -> Cell:
        label = self.shape.label if self.shape else ""
        return replace(cell, name=f"{self.name}-{cell.artifact}", model=self.model.name, shape=label)

    def member(
        self, artifacts: Sequence[tuple[Cell, Mapping[str, Any]]], exclude: Sequence[str], only: Sequence[str]
    ) -> Member:
        cells, sections = [], []
        for cell, options in artifacts:
            cell = self.cell(cell)
            if _matches(cell.name, exclude) or (only and not _matches(cell.name, only)):
                continue
            section = cell.why_not or self.section(options)
            if isinstance(section, ArtifactSection):
                sections.append(section)
            else:
                cell = replace(cell, why_not=section)
            cells.append(cell)
        recipe = self.with_artifacts(sections) if sections else None
        return Member(self.model.name, self.shape.label if self.shape else "", tuple(cells), recipe)

    def section(self, options: Mapping[str, Any]) -> ArtifactSection | str:
        """The artifact, or why it cannot be made."""
        try:
            section = ArtifactSection(**options)
            if self.shape and section.target in TENSORRT_TARGETS and not has_shapes(section):
                section = replace(section, **_engine_shapes(self.shape))
            recipe = self.with_artifacts([section])
            require_scales(recipe)
            check_batches(recipe)
        except Refused as error:
            return f"{error.key} {error.sentence}"
        return section

    def with_artifacts(self, artifacts: Sequence[ArtifactSection]) -> Recipe:
        """The ordinary recipe of some artifacts; without the baseline, the model itself is the baseline."""
        bench = self.parts["bench"]
        if bench is not None and bench.baseline not in {section.name for section in artifacts}:
            bench = replace(bench, baseline=BASELINE)
        parts = {**self.parts, "bench": bench}
        recipe = replace(self.recipe, **parts, artifact=tuple(artifacts), sweep=None)
        check_names(recipe)
        return recipe

    @functools.cached_property
    def parts(self) -> dict[str, Any]:
        """Tables of the recipe with the model, its inputs of this shape, its data and its batch."""
        recipe, shape = self.recipe, self.shape
        options = {key: value for key, value in vars(self.model).items() if value and key != "name"}
        data = {key: options.pop(key) for key in ("calibration", "evaluation") if key in options}
        model = replace(recipe.model, **options)
        if shape and shape.inputs:
            model = replace(model, inputs=tuple(_fixed(text, shape) for text in model.inputs))
        bench = replace(recipe.bench, batch_size=shape.batch) if recipe.bench and shape else recipe.bench
        return {
            "name": self.model.name, "model": model, "data": replace(recipe.data, **data), "bench": bench,
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


def _engine_shapes(shape: SweepShape) -> dict[str, Any]:
    """The least, the measured and the largest shape of each input; nothing for a batch alone."""
    kinds = ("min_shapes", "opt_shapes", "max_shapes")
    return {
        kind: tuple(f"{name}:{format_shape(shapes[index])}" for name, shapes in shape.inputs.items())
        for index, kind in enumerate(kinds)
        if shape.inputs
    }


def _check_unique(recipe: Recipe, key: str, names: Sequence[str]) -> None:
    """Refuse two cells, or two folders, of one name; those that differ by case alone are one."""
    if (index := first_taken(names)) is not None:
        raise RecipeError(
            f"{recipe.path}: key '{key}' gives two the name {names[index]!r}; other names are required",
            hint="name a model or a shape in another way, as in small=8",
            file=recipe.path,
            key=key,
        )
