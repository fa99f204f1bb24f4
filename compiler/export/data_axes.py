"""Read names, types and varying axes of inputs from samples, where neither the user nor the model gives them.

An axis is dynamic if batches differ in its extent; a first axis also if they differ from the model's example.
Axes of several inputs with the same extents in every batch are one axis.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from ...core.artifact import Check
from ...data.batches import Data
from ...data.kinds import ARRAYS
from ...data.spelling import FUNCTION
from ...model.sources.example import declared_inputs, forward_parameters
from ...model.sources.preprocessing import Preprocessing, as_json, match_preprocessing
from ...model.sources.pytorch import LoadedModel
from ...spec.tensors import Dim, TensorInfo, parse_dynamic_axis, parse_input

_BATCHES = 16  # batches that are read
_ROWS = ("npz", "npy")  # kinds with all samples on the first axis; the model's extent is the batch size

VARYING = "axes that vary in the data are dynamic"
"""Name of the check that lists these axes."""

Shapes = Mapping[str, Sequence[tuple[int, ...]]]
"""Input name to its shape in every batch."""
Place = tuple[str, int]
"""An input and an index of its axes."""


def with_preprocessing(
    inputs: Sequence[TensorInfo], preprocessing: Preprocessing | None
) -> tuple[TensorInfo, ...]:
    """Return the inputs with the preprocessing fitted to them, or unchanged inputs without preprocessing."""
    fitted = match_preprocessing(preprocessing, inputs) if preprocessing is not None else {}
    return tuple(
        replace(tensor, preprocessing=as_json(fitted[tensor.name])) if tensor.name in fitted else tensor
        for tensor in inputs
    )


def inputs_of_data(
    loaded: LoadedModel, spelled: Sequence[str | TensorInfo], data: str, read: type[Data]
) -> tuple[Sequence[str | TensorInfo], Shapes]:
    """Return the inputs, read from the data if they are unknown, and their shapes in the data.

    Only functions and arrays have shapes; data of other kinds is fitted to the inputs.
    """
    inputs = declared_inputs(loaded, spelled)
    kind = read(data, inputs).spelling.kind
    if kind not in (FUNCTION, *ARRAYS):
        return spelled, {}
    named = {parse_input(item).name if isinstance(item, str) else item.name for item in spelled}
    if not inputs:
        inputs = inputs_of_first_batch(loaded, data, read)
        spelled = inputs
    loosened = [tensor if tensor.name in named else _loosen(tensor, rows=kind in _ROWS) for tensor in inputs]
    batches = [batch.feeds for batch in islice(read(data, loosened), _BATCHES)]
    return spelled, {tensor.name: [batch[tensor.name].shape for batch in batches] for tensor in inputs}


def varying_axes(inputs: Sequence[TensorInfo], shapes: Shapes, dynamic: Sequence[str]) -> dict[Place, str]:
    """Return the varying axes without a name, and new names for them.

    Args:
        inputs: Inputs of the model's example or of the user.
        shapes: Shapes of the inputs in batches of the data.
        dynamic: Named axes, as `INPUT:AXIS=NAME`.
    """
    extents = {
        (name, axis): column
        for name, rows in shapes.items()
        for axis, column in enumerate(zip(*rows, strict=True))
    }
    names = {(tensor.name, axis): name for tensor in inputs for axis, name in tensor.dynamic_axes.items()}
    names |= {(name, axis): label for name, axis, label in map(parse_dynamic_axis, dynamic)}
    new_names: dict[Place, str] = {}
    for tensor in inputs:
        for axis, dim in enumerate(tensor.shape if tensor.name in shapes else ()):
            place = tensor.name, axis
            of_example = {dim} if axis == 0 else set()
            if place not in names and len({*extents[place], *of_example}) > 1:
                names[place] = new_names[place] = _name_axis(place, extents, names)
    first = {new_names.get((tensor.name, 0)) for tensor in inputs if tensor.shape}
    if "batch" not in names.values() and len(first) == 1:  # the same axis in every input
        new_names = {place: "batch" if name in first else name for place, name in new_names.items()}
    return new_names


def varying_axes_check(varying: Mapping[Place, str], shapes: Shapes) -> list[Check]:
    """Return a check that lists the varying axes and their extents; nothing if no axis varies."""
    lines = []
    for name in dict.fromkeys(varying.values()):
        places = [place for place, label in varying.items() if label == name]
        tensor, axis = places[0]
        extents = [shape[axis] for shape in shapes[tensor]]
        listed = ", ".join(f"{tensor}:{axis}" for tensor, axis in places)
        lines.append(f"{name} ({listed}) {min(extents)} to {max(extents)}")
    return [Check(VARYING, True, "; ".join(lines))] if lines else []


def _name_axis(place: Place, extents: Mapping[Place, tuple[int, ...]], names: Mapping[Place, str]) -> str:
    """Return the name of another input's axis with the same extents (same index first), or a new name."""
    tensor, axis = place
    of_tensor = {name for (other_input, _), name in names.items() if other_input == tensor}
    alike = [
        (other_axis != axis, name)
        for (other_input, other_axis), name in names.items()
        if name not in of_tensor and extents.get((other_input, other_axis)) == extents[place]
    ]
    return min(alike, key=lambda item: item[0])[1] if alike else parse_dynamic_axis(f"{tensor}:{axis}")[2]


def _loosen(tensor: TensorInfo, *, rows: bool) -> TensorInfo:
    return replace(
        tensor, shape=tuple(d if rows and not axis else "?" for axis, d in enumerate(tensor.shape))
    )


def inputs_of_first_batch(loaded: LoadedModel, data: str, read: type[Data]) -> tuple[TensorInfo, ...]:
    """Return the inputs of the first batch, named by its keys (dict) or by `forward`'s parameters (tuple).

    A first axis that all inputs share is the batch. It is dynamic, because samples do not fix a batch size.
    """
    parameters = forward_parameters(loaded.module)
    required = [name for name, parameter in parameters if parameter.default is inspect.Parameter.empty]
    names = required or [name for name, _ in parameters[:1]]
    first = read(data, [TensorInfo(name, "undefined", ("?",)) for name in names]).first_batch_unchecked()
    is_batch = len({array.shape[:1] for array in first.values() if array.ndim}) == 1
    has_float64 = any(str(value.dtype) == "torch.float64" for value in loaded.module.parameters())
    tensors = []
    for name, array in first.items():
        dtype = "float32" if array.dtype == np.float64 and not has_float64 else str(array.dtype)
        shape: tuple[Dim, ...] = array.shape
        tensors.append(TensorInfo(name, dtype, ("batch", *shape[1:]) if is_batch and shape else shape))
    return tuple(tensors)
