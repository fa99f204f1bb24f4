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

from ...errors import RecipeError
from ...spec.artifacts import ArtifactSection
from ...spec.decode import Refused
from ...spec.measure import BenchSection
from ...spec.models import ModelSection
from ...spec.recipes import DataSection
from ...spec.sweep import EACH_GPU, Combination, SweepModel, SweepSection, SweepShape
from ...spec.words import BASELINE, TENSORRT_TARGETS
from ...tensors import format_shape, parse_input
from ..published import check_names
from ..recipe import Recipe
from ..recipe_batches import find_contradiction, has_shapes


@dataclass(frozen=True)
class Cell:
    """One combination of the matrix.

    Attributes:
        name: Unique in the sweep, and the same in every run of it.
        model: Name of the model.
        shape: Label of the shape; empty without shapes.
        artifact: Name of the artifact in its recipe.
        target, precision: Of the artifact.
        gpu: Kind of GPU that it is built for; empty for this machine's, or none.
        why_not: Why the options forbid it; empty where they do not.
    """

    name: str
    model: str
    shape: str
    artifact: str
    target: str
    precision: str
    gpu: str = ""
    why_not: str = ""


@dataclass(frozen=True)
class Member:
    """A model with a shape: the cells that one recipe makes.

    Attributes:
        name: "small-b8", or "small" without shapes.
        place: Folder of its artifacts in the folder of the sweep: "small/b8" or "small".
        shared: Folder in the folder of the sweep whose finished stages all shapes of the model share.
        cells: Its cells, those that cannot be made too.
        recipe: Builds the others; None where there are none.
    """

    name: str
    place: str
    shared: str
    cells: tuple[Cell, ...]
    recipe: Recipe | None


def members(recipe: Recipe, *, gpus_there: Sequence[str] = (), only: Sequence[str] = ()) -> Iterator[Member]:
    """Yield what a sweep consists of, one model and shape after the other.

    Args:
        recipe: A recipe with `[sweep]`.
        gpus_there: Each kind of GPU that the workers have, such as "sm90", for "each" in `sweep.gpus`.
        only: Globs; cells whose name none of them matches are left out. Empty keeps all.

    Raises:
        RecipeError: If the recipe has no matrix, or two cells would have one name.
        Refused: If the artifacts that can be made alone cannot be made together.
    """
    bases, wanted = _product(recipe, gpus_there)
    bases.reverse()
    while bases:  # what is worked out for one is not kept
        member = _member(bases.pop(), wanted, only)
        if member.cells:
            yield member


def cell_names(recipe: Recipe, *, gpus_there: Sequence[str] = ()) -> Iterator[str]:
    """Yield the names of the cells of a matrix, without looking at what the options forbid.

    Raises:
        RecipeError: As `members`.
    """
    bases, wanted = _product(recipe, gpus_there)
    return (base.cell_name(one) for base in bases for one in wanted if _is_in(base, one, ()))


def _product(recipe: Recipe, gpus_there: Sequence[str]) -> tuple[list[_Base], list[_Wanted]]:
    matrix = recipe.sweep
    if matrix is None:
        raise RecipeError(
            f"{recipe.path}: key 'sweep' is missing; a matrix is required",
            hint="`qcompile run` builds the artifacts of a recipe without one",
            file=recipe.path,
            key="sweep",
        )
    wanted = list(_wanted(recipe, matrix, gpus_there))
    shapes: list[SweepShape | None] = [*matrix.read_shapes()] or [None]
    bases = [
        _Base(recipe, matrix, model, shape)
        for model in matrix.every_model() or [SweepModel(name=recipe.name, source=recipe.model.source)]
        for shape in shapes
    ]
    _require_own_names(recipe, bases, wanted)
    return bases, wanted


def _is_in(base: _Base, one: _Wanted, only: Sequence[str]) -> bool:
    name = base.cell_name(one)
    return not matches(name, base.matrix.exclude) and (not only or matches(name, only))


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a cell's name matches one of several globs."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class _Wanted:
    """An artifact of every member: what is built, its options, and why it cannot be made wherever."""

    about: Combination
    options: Mapping[str, Any]
    why_not: str = ""

    @property
    def name(self) -> str:
        return str(self.options["name"])


def _wanted(recipe: Recipe, matrix: SweepSection, gpus_there: Sequence[str]) -> Iterator[_Wanted]:
    """The artifacts of the recipe itself, then those of the matrix."""
    for one in recipe.artifact:
        yield _Wanted(Combination(one.target, one.precision, "+".join(one.gpus)), vars(one))
    for about in matrix.combinations(kinds_of_gpu(matrix, gpus_there)):
        options: dict[str, Any] = {"target": about.target, "precision": about.precision, "name": about.name}
        why_not = ""
        if about.gpu:
            options["gpus"] = (about.gpu,)
        elif about.target in TENSORRT_TARGETS and matrix.gpus:
            why_not = f"sweep.gpus is {', '.join(matrix.gpus)}, and no worker has a GPU"
        if about.precision == "int4":
            options["mode"] = "weights"  # the only one there is
        yield _Wanted(about, options, why_not)


def kinds_of_gpu(matrix: SweepSection, gpus_there: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of GPU of a matrix, "each" replaced by those there are; each once."""
    given = [one for text in matrix.gpus for one in (gpus_there if text == EACH_GPU else (text,))]
    return tuple(dict.fromkeys(given))


@dataclass(frozen=True)
class _Base:
    """A model with a shape, before its artifacts."""

    recipe: Recipe
    matrix: SweepSection
    own: SweepModel
    shape: SweepShape | None

    @property
    def model(self) -> str:
        return self.own.name

    @property
    def name(self) -> str:
        return f"{self.model}-{self.shape.label}" if self.shape else self.model

    @property
    def place(self) -> str:
        return f"{self.model}/{self.shape.label}" if self.shape else self.model

    def cell_name(self, one: _Wanted) -> str:
        return f"{self.name}-{one.name}"

    def cell(self, one: _Wanted, why_not: str = "") -> Cell:
        label, about = self.shape.label if self.shape else "", one.about
        return Cell(
            self.cell_name(one), self.model, label, one.name, about.target, about.precision, about.gpu,
            why_not,
        )  # fmt: skip

    @functools.cached_property
    def model_section(self) -> ModelSection:
        """How the model is exported: inputs with the extents of the shape."""
        given = {key: getattr(self.own, key) for key in ("source", "inputs", "weights", "preprocessing")}
        model = replace(self.recipe.model, **{key: value for key, value in given.items() if value})
        if self.shape is None or not self.shape.inputs:
            return model
        return replace(model, inputs=tuple(_fixed(text, self.shape) for text in model.inputs))

    @functools.cached_property
    def data_section(self) -> DataSection:
        """The samples of the model, or else of the recipe."""
        given = {key: getattr(self.own, key) for key in ("calibration", "evaluation")}
        return replace(self.recipe.data, **{key: value for key, value in given.items() if value})

    def bench_section(self, artifacts: Sequence[ArtifactSection]) -> BenchSection | None:
        """How they are measured; against the model where the baseline is not among them."""
        bench = self.recipe.bench
        if bench is None:
            return None
        baseline = bench.baseline if any(one.name == bench.baseline for one in artifacts) else BASELINE
        batch = self.shape.batch if self.shape else bench.batch_size
        return replace(bench, baseline=baseline, batch_size=batch)

    def with_artifacts(self, artifacts: Sequence[ArtifactSection]) -> Recipe:
        """The ordinary recipe of some artifacts.

        Raises:
            Refused: If its options contradict each other.
        """
        made = replace(
            self.recipe, name=self.model, model=self.model_section, data=self.data_section,
            bench=self.bench_section(artifacts), artifact=tuple(artifacts), sweep=None,
        )  # fmt: skip
        check_names(made)
        return made

    def section(self, one: _Wanted) -> ArtifactSection | str:
        """The artifact, or why it cannot be made."""
        if one.why_not:
            return one.why_not
        try:
            section = ArtifactSection(**one.options)
            if self.shape is not None and section.target in TENSORRT_TARGETS and not has_shapes(section):
                section = replace(section, **_engine_shapes(self.shape))
            made = self.with_artifacts([section])
        except Refused as error:
            return f"{error.key} {error.sentence}"
        contradiction = find_contradiction(made.model, made.artifact, made.bench)
        return f"{contradiction[0]} {contradiction[1]}" if contradiction else section


def _member(base: _Base, wanted: Sequence[_Wanted], only: Sequence[str]) -> Member:
    cells, kept = [], []
    for one in wanted:
        if not _is_in(base, one, only):
            continue
        section = base.section(one)
        if isinstance(section, str):
            cells.append(base.cell(one, section))
        else:
            cells.append(base.cell(one))
            kept.append(section)
    return Member(
        base.name, base.place, base.model, tuple(cells), base.with_artifacts(kept) if kept else None
    )


def _fixed(text: str, shape: SweepShape) -> str:
    """An input with the extents of the shape: those that do not vary, and the batch where it is a number."""
    tensor = parse_input(text)
    given = shape.inputs.get(tensor.name)
    if given is None or len(given[1]) != len(tensor.shape):
        return text
    low, opt, high = given
    kept = isinstance(tensor.shape[0], str)
    axes = [
        str(old) if (axis == 0 and kept) or low[axis] != high[axis] else str(opt[axis])
        for axis, old in enumerate(tensor.shape)
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


def _require_own_names(recipe: Recipe, bases: Sequence[_Base], wanted: Sequence[_Wanted]) -> None:
    """Refuse two cells, or two folders, of one name; those that differ by case alone are one."""
    for key, names in (
        ("sweep.shapes", (base.name for base in bases)),
        ("sweep", (base.cell_name(one) for base in bases for one in wanted)),
    ):
        seen: set[str] = set()
        for name in names:
            if name.casefold() in seen:
                raise RecipeError(
                    f"{recipe.path}: key '{key}' gives two the name {name!r}; other names are required",
                    hint="name a model or a shape in another way, as in small=8",
                    file=recipe.path,
                    key=key,
                )
            seen.add(name.casefold())
