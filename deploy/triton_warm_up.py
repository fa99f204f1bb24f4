"""Warm-up requests that Triton generates before a model counts as ready.

Zeros, not Triton's random data: that is random bytes (core, `GenerateWarmupData`), among them NaN and
infinity, and indices outside of any table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidOption
from ..spec.looking import TritonOptions
from ..tensors import format_shape
from .triton_backends import TYPES
from .triton_model import TritonModel
from .triton_text import Message

Shapes = Mapping[str, tuple[int, ...]]


def warm_up(model: TritonModel, options: TritonOptions, size: int) -> tuple[list[Message], list[str]]:
    """Return the warm-up samples, and what the user should know.

    An engine is warmed up at the optimum of each of its profiles; others at their largest batch.

    Args:
        model: The artifact.
        options: Whether to, and shapes for axes that nothing tells the extents of.
        size: `max_batch_size`.

    Raises:
        InvalidOption: If a warm-up was asked for and cannot be made, or a shape does not fit.
    """
    if options.warm_up is False:
        return [], []
    _check_shapes(model, options, size)
    reason = _why_not(model, options, size)
    if reason and options.warm_up:
        raise InvalidOption(f"`warm_up`: {model.path}: {reason}", hint=_hint(model), option="warm_up")
    if reason:
        return [], [f"no warm-up: {reason}{f'; {hint}' if (hint := _hint(model)) else ''}"]
    if model.profiles:
        shapes: list[tuple[str, Shapes]] = [
            (f"profile {index}", {name: item.opt for name, item in ranges.items()})
            for index, ranges in enumerate(model.profiles)
            if not size or all(item.min[0] <= size for item in ranges.values())
        ]
    else:
        shapes = [("largest batch" if size else "one request", options.shapes)]
    return [_sample(model, name, given, size) for name, given in shapes], []


def _sample(model: TritonModel, name: str, given: Shapes, size: int) -> Message:
    """One request; with a batch, Triton repeats the sample that many times."""
    inputs: dict[str, Message] = {}
    batch = 1
    if size:
        batch = min([size, *(shape[0] for shape in given.values())])
    for tensor in model.io.inputs:
        shape = given.get(tensor.name) or tuple(
            extent if isinstance(extent, int) else 1 for extent in tensor.shape
        )
        fields: dict[str, Any] = {
            "data_type": TYPES[tensor.dtype],
            "dims": list(shape[1:] if size else shape) or [1],
            "zero_data": True,
        }
        inputs[tensor.name] = fields
    return {"name": name, "batch_size": batch, "inputs": inputs}


def _why_not(model: TritonModel, options: TritonOptions, size: int) -> str:
    if model.shape_tensors:
        return f"{', '.join(sorted(model.shape_tensors))} holds a shape, which zeros are not"
    if model.profiles:
        return ""
    for tensor in model.io.inputs:
        # The first axis is the batch where Triton forms batches; elsewhere it may be anything.
        open_axes = [axis for axis in tensor.dynamic_axes if not (size and axis == 0)]
        if open_axes and tensor.name not in options.shapes:
            return f"nothing tells the extents of {tensor.name} {format_shape(tensor.shape)}"
    return ""


def _hint(model: TritonModel) -> str:
    return "" if model.shape_tensors else "`warm_up_shapes` gives them"


def _check_shapes(model: TritonModel, options: TritonOptions, size: int) -> None:
    if options.warm_up_shapes and model.profiles:
        raise InvalidOption(
            "`warm_up_shapes`: an engine is warmed up at the optimum of its profiles",
            hint="leave it out",
            option="warm_up_shapes",
        )
    tensors = {tensor.name: tensor for tensor in model.io.inputs}
    for name, shape in options.shapes.items():
        if name not in tensors:
            raise InvalidOption(f"`warm_up_shapes`: no input {name!r}; the inputs are {', '.join(tensors)}")
        if not tensors[name].accepts(shape) or 0 in shape:
            raise InvalidOption(
                f"`warm_up_shapes`: {format_shape(shape)} does not fit "
                f"{name}:{format_shape(tensors[name].shape)}"
            )
    batches = {shape[0] for shape in options.shapes.values()} if size else set()
    if len(batches) > 1 or any(batch > size for batch in batches):
        raise InvalidOption(
            f"`warm_up_shapes`: batches {', '.join(map(str, sorted(batches)))}; one up to {size} is required"
        )
