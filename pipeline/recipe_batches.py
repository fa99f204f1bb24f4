"""The batch sizes that a recipe measures, and whether its model and its engines take them.

A TensorRT engine takes the shapes of its optimization profiles and no others, so a recipe that measures a
batch outside of them is wrong before anything is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..spec.option import SHAPES
from ..tensors import TensorInfo, fill_dynamic, parse_dynamic_axis, parse_input

if TYPE_CHECKING:
    from ..spec.artifacts import ArtifactSection
    from ..spec.measure import BenchSection
    from ..spec.models import ModelSection

DEFAULT_MAX = 16
"""Largest batch of an engine that is built without shapes."""

Ranges = dict[str, tuple[int, int]]


def measured_batches(bench: BenchSection | None) -> dict[str, int]:
    """Return the key of each batch size that is measured to its value; nothing without `[bench]`."""
    if bench is None:
        return {}
    curve = {f"bench.batch_sizes[{i}]": size for i, size in enumerate(bench.batch_sizes)}
    return {"bench.batch_size": bench.batch_size, **curve}


def find_contradiction(
    model: ModelSection, artifacts: Sequence[ArtifactSection], bench: BenchSection | None
) -> tuple[str, str, str] | None:
    """Return the key of a batch size that cannot be measured, why not, and a hint; None where all can.

    The batch is the first axis of every input. One that `model.inputs` fixes is fixed for all artifacts.
    """
    fixed = _fixed_batches(model)
    for key, batch in measured_batches(bench).items():
        for name, extent in fixed.items():
            if extent != batch:
                return (
                    key,
                    f"is {batch}; model.inputs fixes the first axis of {name!r} at {extent}",
                    f"measure {extent}, or name the axis: {name}:[batch,...]",
                )
        for index, one in enumerate(artifacts):
            where = f"artifact[{index}]"
            for source, profiles in _profiles(one, where):
                wrong = [_outside(ranges, batch, fixed) for ranges in profiles]
                if wrong and all(wrong):
                    return (
                        key,
                        f"is {batch}; the engine {one.name!r} takes {wrong[0]} ({source})",
                        f"let {source} reach {batch}, or measure what it takes",
                    )
    return None


def default_shapes(
    inputs: Sequence[TensorInfo], bench: BenchSection | None
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return min, opt and max shapes that take every measured batch; empty where the defaults do.

    For an engine that is given none: 1 to 16 where the first axis alone is dynamic.
    """
    largest = max(measured_batches(bench).values(), default=0)
    dynamic = [tensor for tensor in inputs if tensor.dynamic_axes]
    if bench is None or largest <= DEFAULT_MAX or any(set(one.dynamic_axes) != {0} for one in dynamic):
        return {}
    extents = {"min_shapes": 1, "opt_shapes": bench.batch_size, "max_shapes": largest}
    return {
        kind: {tensor.name: fill_dynamic(tensor, extent) for tensor in dynamic}
        for kind, extent in extents.items()
    }


def has_shapes(one: ArtifactSection) -> bool:
    """Whether an artifact says which shapes its engine takes."""
    return bool(one.min_shapes or one.opt_shapes or one.max_shapes or one.tensorrt.profiles)


def _fixed_batches(model: ModelSection) -> dict[str, int]:
    named = {(name, axis) for name, axis, _ in map(parse_dynamic_axis, model.dynamic)}
    inputs = [parse_input(text) for text in model.inputs]
    return {
        one.name: one.shape[0]
        for one in inputs
        if one.shape and isinstance(one.shape[0], int) and (one.name, 0) not in named
    }


def _profiles(one: ArtifactSection, where: str) -> Iterator[tuple[str, list[Ranges]]]:
    """The key that holds them, and for each profile input to the least and the largest batch."""
    if not one.target.startswith("tensorrt"):
        return
    if one.tensorrt.profiles:
        yield f"{where}.tensorrt.profiles", [_read_profile(text) for text in one.tensorrt.profiles]
    kinds = ("min_shapes", "opt_shapes", "max_shapes")
    low, opt, high = (one.shapes(kind) for kind in kinds)
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
        shapes = spelled.split("..")
        least, largest = (re.match(r"\s*\[?\s*([0-9]{1,18})", shape) for shape in (shapes[0], shapes[-1]))
        if name and len(shapes) == 3 and least and largest:
            extents[name.strip()] = int(least[1]), int(largest[1])
    return extents


def _outside(ranges: Ranges, batch: int, fixed: dict[str, int]) -> str:
    """What an engine takes where the batch is not in it; empty where it is."""
    for name, (low, high) in ranges.items():
        if name not in fixed and not low <= batch <= high:
            return f"{low} to {high} in {name!r}" if low != high else f"{low} in {name!r}"
    return ""
