"""Determine the batch sizes that a recipe measures, and check them against its engines' shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...spec.artifacts import ArtifactSection
from ...spec.decode import Refused
from ...spec.option import SHAPES
from ...spec.recipes import RecipeFile
from ...spec.tensors import TensorInfo, fill_dynamic, parse_dynamic_axis, parse_input

if TYPE_CHECKING:
    from ...spec.measure import BenchSection

DEFAULT_MAX = 16
"""Largest batch of an engine built without shapes."""

Ranges = dict[str, tuple[int, int]]


def measured_batches(bench: BenchSection | None) -> dict[str, int]:
    """Return recipe key to value of each measured batch size; empty without `[bench]`."""
    if bench is None:
        return {}
    curve = {f"bench.batch_sizes[{i}]": size for i, size in enumerate(bench.batch_sizes)}
    return {"bench.batch_size": bench.batch_size, **curve}


def check_batches(recipe: RecipeFile) -> None:
    """Raise `Refused` for a batch size that cannot be measured.

    The batch is the first axis of every input. If `model.inputs` fixes it, it is fixed for all artifacts. A
    TensorRT engine takes only the shapes of its optimization profiles.
    """
    dynamic = {(name, axis) for name, axis, _ in map(parse_dynamic_axis, recipe.model.dynamic)}
    fixed = {
        tensor.name: tensor.shape[0]
        for tensor in map(parse_input, recipe.model.inputs)
        if tensor.shape and isinstance(tensor.shape[0], int) and (tensor.name, 0) not in dynamic
    }
    for key, batch in measured_batches(recipe.bench).items():
        for name, extent in fixed.items():
            if extent != batch:
                problem = f"is {batch}; model.inputs fixes the first axis of {name!r} at {extent}"
                raise Refused(key, problem, hint=f"measure {extent}, or name the axis: {name}:[batch,...]")
        for index, artifact in enumerate(recipe.artifact):
            for source, profiles in _profiles(artifact, f"artifact[{index}]"):
                excluded = [_excluding_range(ranges, batch, fixed) for ranges in profiles]
                if excluded and all(excluded):
                    problem = f"is {batch}; the engine {artifact.name!r} takes {excluded[0]} ({source})"
                    raise Refused(key, problem, hint=f"extend {source} to {batch}, or measure another batch")


def default_shapes(
    inputs: Sequence[TensorInfo], bench: BenchSection | None
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return min, opt and max shapes for measured batches; empty if 1 to 16 suffice or other axes vary."""
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
    """Return whether an artifact sets the shapes of its engine."""
    shapes = artifact.min_shapes or artifact.opt_shapes or artifact.max_shapes
    return bool(shapes or artifact.tensorrt.profiles)


def _profiles(artifact: ArtifactSection, where: str) -> Iterator[tuple[str, list[Ranges]]]:
    """Yield a key with shapes, and for each of its profiles input to smallest and largest batch."""
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
    """Parse `image:1x3x32x32..8x3x32x32..32x3x32x32,...`; skip invalid parts, which the build rejects."""
    extents: Ranges = {}
    for part in re.split(SHAPES, text):
        name, _, spelled = part.rpartition(":")
        batches = [re.match(r"\s*\[?\s*([0-9]{1,18})", shape) for shape in spelled.split("..")]
        if name and len(batches) == 3 and batches[0] and batches[-1]:
            extents[name.strip()] = int(batches[0][1]), int(batches[-1][1])
    return extents


def _excluding_range(ranges: Ranges, batch: int, fixed: dict[str, int]) -> str:
    """Return the engine's range as a text if it excludes the batch, else an empty string."""
    is_taken = any(low <= batch <= high for low, high in ranges.values())
    for name, (low, high) in ranges.items():
        is_state = is_taken and low == high  # the first axis of a state is no batch
        if name not in fixed and not low <= batch <= high and not is_state:
            return f"{low} to {high} in {name!r}" if low != high else f"{low} in {name!r}"
    return ""
