"""Give the open axes of an ONNX graph's inputs other names, or fixed extents.

1. `batch` becomes `n` in every input, output and intermediate tensor, also in expressions: `2*batch`, `2*n`.
2. `batch` becomes 4 in every input, output and intermediate tensor. Expressions of it become unknown extents,
   and those of outputs are inferred again.
3. An axis without a name is changed in its input alone.

A fixed extent cannot change: constants of the graph, such as the shapes of Reshape, may depend on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import InvalidOption
from ...model.graph.graph import infer_shapes, model_io
from ...model.graph.input_notes import InputNote, read_notes, write_notes
from ...spec.tensors import Dim, TensorInfo, format_shape, parse_dynamic_axis, parse_input
from .checks import format_range

if TYPE_CHECKING:
    import onnx

_HINT = "export the original model with this axis dynamic"


def requested_shapes(
    tensors: Sequence[TensorInfo], requested: Sequence[str | TensorInfo], dynamic: Sequence[str]
) -> list[TensorInfo]:
    """Return the inputs with requested shapes; an open axis takes a name or an extent.

    Args:
        tensors: Inputs of the model.
        requested: Shapes, as `NAME:SHAPE` or objects; float32 stands for the model's type.
        dynamic: Names of axes, as `NAME:AXIS=LABEL`.

    Raises:
        InvalidOption: For an unknown input, another type or rank, a range, or a change of a fixed extent.
    """
    types = {tensor.name: tensor.dtype for tensor in tensors}
    shapes: dict[str, list[Dim]] = {tensor.name: list(tensor.shape) for tensor in tensors}
    infos = [parse_input(item) if isinstance(item, str) else item for item in requested]
    labels = list(map(parse_dynamic_axis, dynamic))
    names = [("inputs", info.name) for info in infos] + [("dynamic", label[0]) for label in labels]
    for option, name in names:
        if name not in shapes:
            problem = f"`{option}` {name}: no input of the model; it takes {', '.join(shapes)}"
            raise InvalidOption(problem, option=option)
    for info in infos:
        shape, problem, hint = shapes[info.name], "", ""
        if info.extents:
            problem = "a range is for PyTorch models; a name or an extent is required"
        elif info.dtype not in ("float32", types[info.name]):
            problem = f"the model's type is {types[info.name]}"
        elif len(shape) != len(info.shape) or any(
            isinstance(dim, int) and dim != extent for dim, extent in zip(shape, info.shape, strict=True)
        ):
            own = "x".join(str(dim) if isinstance(dim, int) else "?" for dim in shape)
            problem, hint = f"the model's shape is {own}", _HINT if len(shape) == len(info.shape) else ""
        if problem:
            raise InvalidOption(f"`inputs` {info}: {problem}", hint=hint, option="inputs")
        pairs = zip(shape, info.shape, strict=True)
        shapes[info.name] = [dim if extent == "?" else extent for dim, extent in pairs]
    for text, (name, axis, label) in zip(dynamic, labels, strict=True):
        shape, problem, hint = shapes[name], "", ""
        if axis >= len(shape):
            problem = f"input {name!r} has rank {len(shape)}"
        elif isinstance(shape[axis], int):
            problem, hint = f"the axis is fixed at {shape[axis]}", _HINT
        if problem:
            raise InvalidOption(f"`dynamic` {text}: {problem}", hint=hint, option="dynamic")
        shape[axis] = label
    return [replace(tensor, shape=tuple(shapes[tensor.name])) for tensor in tensors]


def set_shapes(model: onnx.ModelProto, requested: Sequence[str | TensorInfo], dynamic: Sequence[str]) -> None:
    """Give the inputs of a graph the requested shapes, see `requested_shapes`; edits the graph.

    Raises:
        InvalidOption: If an axis gets two names or extents, or an extent outside its range.
    """
    inputs = model_io(model).inputs
    targets = requested_shapes(inputs, requested, dynamic)
    changes: dict[str, Dim] = {}
    for tensor, target in zip(inputs, targets, strict=True):
        for dim, extent in zip(tensor.shape, target.shape, strict=True):
            if (
                isinstance(dim, str)
                and dim not in ("?", extent)
                and changes.setdefault(dim, extent) != extent
            ):
                raise _two_extents(dim, changes[dim], extent)
    named = {parse_input(item).name if isinstance(item, str) else item.name for item in requested}
    shapes: dict[str, tuple[Dim, ...]] = {}
    for tensor, target in zip(inputs, targets, strict=True):
        dims = zip(tensor.shape, target.shape, strict=True)
        shapes[tensor.name] = tuple(changes.get(str(dim), extent) for dim, extent in dims)
        if tensor.name in named and shapes[tensor.name] != target.shape:
            dims = zip(shapes[tensor.name], target.shape, strict=True)
            axis, (other, extent) = next((n, pair) for n, pair in enumerate(dims) if pair[0] != pair[1])
            raise _two_extents(str(tensor.shape[axis]), other, extent)
    _set_notes(model, shapes)
    for value in model.graph.input:
        for dim, extent in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            _set(dim, "" if extent == "?" else extent)
    _change(model.graph.value_info, changes)
    _change(model.graph.output, changes)
    inferred = infer_shapes(model)
    for value in model.graph.output:
        declared, known = value.type.tensor_type.shape.dim, inferred.get(value.name, ())
        for axis, (place, extent) in enumerate(zip(declared, known, strict=False)):
            if not place.WhichOneof("value"):
                _set(place, extent if isinstance(extent, int) else f"{value.name}_{axis}")


def _two_extents(axis: str, first: Dim, second: Dim) -> InvalidOption:
    return InvalidOption(
        f"axis {axis!r} of the model: {first} in an input, {second} in another; one is required"
    )


def _set_notes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[Dim]]) -> None:
    """Fit the notes on the inputs to fixed extents; raise InvalidOption for an extent outside its range."""
    notes = read_notes(model)
    for name, note in notes.items():
        fixed = {axis: dim for axis, dim in enumerate(shapes.get(name, ())) if isinstance(dim, int)}
        for axis, limits in note.axes.items():
            if axis in fixed and limits.round_up(fixed[axis]) != fixed[axis]:
                raise InvalidOption(
                    f"`inputs` {name}:{format_shape(shapes[name])}: axis {axis} takes {format_range(limits)}",
                    option="inputs",
                )
        notes[name] = _with_fixed(note, fixed)
    write_notes(model, notes)


def _with_fixed(note: InputNote, fixed: Mapping[int, int]) -> InputNote:
    example = tuple(fixed.get(axis, extent) for axis, extent in enumerate(note.example))
    axes = {axis: limits for axis, limits in note.axes.items() if axis not in fixed}
    seen = {axis: extents for axis, extents in (note.seen or {}).items() if axis not in fixed}
    return replace(note, example=example, axes=axes, seen=seen or None)


def _change(values: Sequence[onnx.ValueInfoProto], changes: Mapping[str, Dim]) -> None:
    """Change the names of axes; an expression with a fixed axis becomes an unknown extent."""
    if not changes:
        return
    symbols = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, changes)) + r")(?!\w)")
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            found = set(symbols.findall(dim.dim_param))
            if dim.dim_param in changes:
                _set(dim, changes[dim.dim_param])
            elif any(isinstance(changes[name], int) for name in found):
                dim.ClearField("dim_param")
            elif found:
                dim.dim_param = symbols.sub(lambda match: str(changes[match.group()]), dim.dim_param)


def _set(dim: onnx.TensorShapeProto.Dimension, extent: Dim) -> None:
    dim.ClearField("dim_value")
    dim.ClearField("dim_param")
    if isinstance(extent, int):
        dim.dim_value = extent
    elif extent:
        dim.dim_param = extent
