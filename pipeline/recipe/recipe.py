"""The recipe: a TOML file that says which model becomes which artifacts, and how they are measured.

`spec/` declares its keys. A wrong one is named with its path before any work is done. So is a recipe in which
two of the files that its stages publish have one name:

    NAME.onnx  NAME.simplified.onnx  NAME.ranges       of the model
    ARTIFACT.graph.onnx  ARTIFACT.onnx | .engine | .pt                     of each artifact
    results.json  report.html                                              with endings of their own

Each ONNX file and engine has its manifest (`.json`) beside it, and a large ONNX file its weights (`.data`).
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.files import manifest_path, read_bytes
from ...engines.gpu import parse_devices
from ...engines.registry import engine
from ...errors import InvalidOption, RecipeError
from ...model.sources.source import Source, parse_source
from ...spec.artifacts import ArtifactSection
from ...spec.decode import Refused, decode, shared
from ...spec.measure import Budget
from ...spec.option import SHAPES
from ...spec.recipes import RECIPE_VERSION, RecipeFile
from ...spec.tensors import TensorInfo, fill_dynamic, parse_dynamic_axis, parse_input
from ...spec.words import BASELINE

if TYPE_CHECKING:
    from ...spec.measure import BenchSection

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_BYTES = 1 << 20
_MOST_DOTS = 5000

__all__ = ["BASELINE", "ArtifactSection", "Recipe", "read_recipe", "tomllib"]


class Recipe(RecipeFile):
    """A whole recipe, and the file that it was read from, or would be written to."""

    path: Path = Path("recipe.toml")

    @property
    def folder(self) -> Path:
        """The folder that the recipe's paths are relative to."""
        return self.path.resolve().parent

    @property
    def budget(self) -> Budget:
        """What an artifact may take to be recommended."""
        return shared(Budget, self.bench) if self.bench else Budget()

    @property
    def data_depends(self) -> tuple[Path, ...]:
        """Files elsewhere that the data's function reads."""
        return tuple(self.folder / name for name in self.data.depends)


def read_recipe(path: str | Path) -> Recipe:
    """Read and validate a recipe.

    Args:
        path: TOML file.

    Raises:
        MissingFile: If it is not there.
        RecipeError: Naming the key, what was found and what is required.
    """
    path = Path(path)
    return parse_recipe(read_bytes(path, what="recipe"), path)


def parse_recipe(content: bytes, path: Path) -> Recipe:
    """Return the recipe that a file holds."""
    if len(content) > _MOST_BYTES:
        raise RecipeError(f"{path}: has {len(content)} bytes; at most {_MOST_BYTES} are required", file=path)
    try:
        if any(line.count(b".") > _MOST_DOTS for line in content.splitlines()):  # tomllib takes minutes
            raise RecursionError
        values = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, a date that is none
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecipeError(f"{path}: not TOML: {problem}", file=path) from error
    return make_recipe(values, path)


def make_recipe(values: dict[str, Any], path: Path) -> Recipe:
    """Return the recipe of these values, which `path` holds or will hold."""
    try:
        version = values.get("version")
        if version is not None and version != RECIPE_VERSION:  # what else a newer one holds is not known here
            raise Refused("version", f"{RECIPE_VERSION} is required", value=version)
        recipe = Recipe(**vars(decode(RecipeFile, values)), path=path)
        try:
            parse_devices(recipe.bench.devices if recipe.bench else ())
        except InvalidOption as error:
            problem = error.message.removeprefix("`devices` ")
            raise Refused("bench.devices", f"holds {problem}", hint=error.hint) from error
        if recipe.sweep is None:  # of a matrix, the cells say it
            check_batches(recipe)
        check_names(recipe)
        if recipe.sweep is None:
            require_scales(recipe)
        return recipe
    except Refused as error:
        raise wrong_key(path, error.key, error.sentence, error.hint) from error


def wrong_key(path: Path, key: str, problem: str, hint: str) -> RecipeError:
    """Return the error of a key of a recipe."""
    return RecipeError(f"{path}: key '{key}' {problem}", hint=hint, file=path, key=key)


def recipe_source(recipe: Recipe) -> Source:
    """Return the model of a recipe."""
    section = recipe.model
    return parse_source(
        section.source, base=recipe.folder, weights=section.weights, download=section.download
    )


def require_scales(recipe: Recipe) -> None:
    """Without ranges, an ONNX file must hold the scales of static INT8 and FP8 itself, as Q/DQ."""
    needing = [artifact.name for artifact in recipe.artifact if artifact.needs_ranges]
    if not needing or recipe.has_ranges:
        return
    from ...model.graph.graph import graph_precision
    from ...model.graph.onnx_file import read_weightless

    model = recipe.folder / recipe.model.source
    if model.is_file() and graph_precision(read_weightless(model).model) not in ("int8", "fp8"):
        problem = f"is missing; {needing[0]!r} is static INT8, and {model.name} holds no Q/DQ"
        raise Refused("data.calibration", problem)


DEFAULT_MAX = 16
"""Largest batch of an engine that is built without shapes."""

Ranges = dict[str, tuple[int, int]]


def measured_batches(bench: BenchSection | None) -> dict[str, int]:
    """Return the key of each batch size that is measured to its value; nothing without `[bench]`."""
    if bench is None:
        return {}
    curve = {f"bench.batch_sizes[{i}]": size for i, size in enumerate(bench.batch_sizes)}
    return {"bench.batch_size": bench.batch_size, **curve}


def check_batches(recipe: RecipeFile) -> None:
    """Refuse a batch size that cannot be measured.

    The batch is the first axis of every input. One that `model.inputs` fixes is fixed for all artifacts. A
    TensorRT engine takes the shapes of its optimization profiles and no others.
    """
    named = {(name, axis) for name, axis, _ in map(parse_dynamic_axis, recipe.model.dynamic)}
    fixed = {
        tensor.name: tensor.shape[0]
        for tensor in map(parse_input, recipe.model.inputs)
        if tensor.shape and isinstance(tensor.shape[0], int) and (tensor.name, 0) not in named
    }
    for key, batch in measured_batches(recipe.bench).items():
        for name, extent in fixed.items():
            if extent != batch:
                problem = f"is {batch}; model.inputs fixes the first axis of {name!r} at {extent}"
                raise Refused(key, problem, hint=f"measure {extent}, or name the axis: {name}:[batch,...]")
        for index, artifact in enumerate(recipe.artifact):
            for source, profiles in _profiles(artifact, f"artifact[{index}]"):
                wrong = [_outside(ranges, batch, fixed) for ranges in profiles]
                if wrong and all(wrong):
                    problem = f"is {batch}; the engine {artifact.name!r} takes {wrong[0]} ({source})"
                    raise Refused(key, problem, hint=f"let {source} reach {batch}, or measure what it takes")


def default_shapes(
    inputs: Sequence[TensorInfo], bench: BenchSection | None
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return min, opt and max shapes that take every measured batch; empty where the defaults do.

    For an engine without shapes: 1 to 16 where the first axis alone is dynamic.
    """
    largest = max(measured_batches(bench).values(), default=0)
    dynamic = [tensor for tensor in inputs if tensor.dynamic_axes]
    if bench is None or largest <= DEFAULT_MAX or any({*tensor.dynamic_axes} != {0} for tensor in dynamic):
        return {}
    extents = {"min_shapes": 1, "opt_shapes": bench.batch_size, "max_shapes": largest}
    return {
        kind: {tensor.name: fill_dynamic(tensor, extent) for tensor in dynamic}
        for kind, extent in extents.items()
    }


def has_shapes(artifact: ArtifactSection) -> bool:
    """Whether an artifact says which shapes its engine takes."""
    shapes = artifact.min_shapes or artifact.opt_shapes or artifact.max_shapes
    return bool(shapes or artifact.tensorrt.profiles)


def _profiles(artifact: ArtifactSection, where: str) -> Iterator[tuple[str, list[Ranges]]]:
    """The key that holds them, and for each profile input to the least and the largest batch."""
    if not artifact.target.startswith("tensorrt"):
        return
    if artifact.tensorrt.profiles:
        yield f"{where}.tensorrt.profiles", [_read_profile(text) for text in artifact.tensorrt.profiles]
    low, opt, high = (artifact.shapes(kind) for kind in ("min_shapes", "opt_shapes", "max_shapes"))
    key = "max_shapes" if high else "opt_shapes" if opt else "min_shapes"
    ranges: Ranges = {}
    for name in {**low, **opt, **high}:
        middle = opt.get(name) or high.get(name) or low[name]
        least, largest = low.get(name, middle), high.get(name, middle)
        if least and largest:
            ranges[name] = least[0], largest[0]
    if ranges:
        yield f"{where}.{key}", [ranges]


def _read_profile(text: str) -> Ranges:
    """`image:1x3x32x32..8x3x32x32..32x3x32x32,...`; what cannot be read is refused by the build."""
    extents: Ranges = {}
    for part in re.split(SHAPES, text):
        name, _, spelled = part.rpartition(":")
        batches = [re.match(r"\s*\[?\s*([0-9]{1,18})", shape) for shape in spelled.split("..")]
        if name and len(batches) == 3 and batches[0] and batches[-1]:
            extents[name.strip()] = int(batches[0][1]), int(batches[-1][1])
    return extents


def _outside(ranges: Ranges, batch: int, fixed: dict[str, int]) -> str:
    """What an engine takes where the batch is not in it; empty where it is."""
    is_taken = any(low <= batch <= high for low, high in ranges.values())
    for name, (low, high) in ranges.items():
        is_state = is_taken and low == high  # its first axis is no batch
        if name not in fixed and not low <= batch <= high and not is_state:
            return f"{low} to {high} in {name!r}" if low != high else f"{low} in {name!r}"
    return ""


GRAPH, SIMPLIFIED = ".graph.onnx", ".simplified.onnx"
_LONGEST = 200
"""Bytes of a name that leave room for the endings, and for the names of what is not finished."""


def published(recipe: RecipeFile) -> Iterator[tuple[str, str, str]]:
    """Yield (file name, key of the recipe that names it, what it is) of all that a run may publish."""
    files = [(f"{recipe.name}.onnx", "name", "the exported model")]
    if recipe.model.simplify:
        files.append((f"{recipe.name}{SIMPLIFIED}", "name", "the simplified model"))
    if recipe.data.calibration and not recipe.calibrate.ranges:
        files.append((f"{recipe.name}.ranges", "name", "the ranges"))
    for index, artifact in enumerate(recipe.artifact):
        key, name, runtime = f"artifact[{index}].name", artifact.name, engine(artifact.target)
        if runtime.takes == "onnx" and artifact.precision != "fp32":  # which needs no graph
            files.append((f"{name}{GRAPH}", key, f"the graph of artifact {name!r}"))
        files.append((f"{name}{runtime.suffix}", key, f"artifact {name!r}"))
    for file, key, what in files:
        yield file, key, what
        yield manifest_path(Path(file)).name, key, f"the manifest of {what}"
        if file.endswith(".onnx"):
            yield f"{file}.data", key, f"the weights of {what}"


def check_names(recipe: RecipeFile) -> None:
    """Refuse a recipe in which two stages publish one file; names that differ by case alone are one."""
    named = {"name": recipe.name}
    named |= {f"artifact[{index}].name": artifact.name for index, artifact in enumerate(recipe.artifact)}
    for key, name in named.items():
        if len(name.encode("utf-8", "replace")) > _LONGEST:
            raise Refused(key, f"at most {_LONGEST} bytes are required", value=name)
    taken: dict[str, tuple[str, str]] = {}
    for file, key, what in published(recipe):
        # macOS and Windows take names for one that differ by case, or by how a letter is composed.
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", file).casefold())
        other_file, other = taken.setdefault(folded, (file, what))
        if other != what:
            problem = f"another name is required: {what} would be {file}, and {other} is {other_file}"
            raise Refused(key, problem, value=named[key])


def check_output(recipe: RecipeFile, folder: Path, output: Path) -> None:
    """Refuse an output folder in which a run would overwrite what it reads."""
    read = [folder / text for text in (recipe.model.source, recipe.calibrate.ranges) if text]
    for file, _, what in published(recipe):
        target = output / file
        if target.exists() and any(path.is_file() and target.samefile(path) for path in read):
            raise InvalidOption(
                f"`output` {output}: {what} would overwrite {target}, which the recipe reads",
                hint="give another `output`, or another `name`",
                option="output",
            )
