"""Operators whose operands or attributes changed: the older form of each, or a refusal.

    ReduceMean (18) and its kin   axes: operand -> attribute
    Split (18)                    num_outputs: attribute -> sizes, where they may be unequal
    Pad (18), Resize (18)         axes: some -> all
    GridSample (20)               "linear", "cubic" -> "bilinear", "bicubic", of images alone
    DFT (20)                      axis: operand -> attribute
    ReduceMax, ReduceMin (20)     of booleans -> of int32
    IsInf (20)                    of halves -> of float32
    Optional... (18)              of what is no optional -> what it is
    CastLike (19)                 -> Cast
    RoiAlign (16)                 coordinate_transformation_mode, where it is as before
    Reshape (14)                  allowzero, where it says nothing
    Shape (15)                    start, end -> Slice

Each takes a node and its scope, and returns the nodes in its place. They are of opset 13, so that they
mean the same in every opset from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...model.graph import attribute
from ...model.graph_edits import drop_attributes
from .scope import Scope

if TYPE_CHECKING:
    import onnx

Rewrite = Callable[["onnx.NodeProto", Scope], "list[onnx.NodeProto]"]

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
_KEPT_WHOLE = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")
"""Reductions that do nothing where they reduce no axis; the others still square, or take logarithms."""
_IMAGE_MODES = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}


def reduce_by_attribute(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """ReduceMean and its kin: an older parser would ignore the operand, and reduce every axis."""
    from onnx import TensorProto, helper

    axes = _operand(node, 1, scope, "its axes are")
    noop = attribute(node, "noop_with_empty_axes", 0)
    drop_attributes(node, "noop_with_empty_axes")
    del node.input[1:]
    if axes is None or not axes.size:
        if noop and node.op_type not in _KEPT_WHOLE:
            raise scope.refusal(node, "noop_with_empty_axes without axes has no older form")
        if noop:
            return [helper.make_node("Identity", node.input, node.output, node.name)]
    else:
        node.attribute.append(helper.make_attribute("axes", [int(axis) for axis in axes.reshape(-1)]))
    if scope.type(node.input[0]) != "tensor(bool)":
        return [node]
    # Compared with 0 and not cast: that is right for no elements too, of which the result is the least int.
    number, reduced = scope.fresh(f"{node.output[0]}/int"), scope.fresh(f"{node.output[0]}/reduced")
    zero = scope.store(np.array(0, np.int32), f"{node.output[0]}/zero")
    cast = helper.make_node(
        "Cast", node.input, [number], scope.fresh(f"{node.name}/int"), to=TensorProto.INT32
    )
    above = helper.make_node("Greater", [reduced, zero], node.output, scope.fresh(f"{node.name}/above"))
    node.input[0], node.output[0] = number, reduced
    return [cast, node, above]


def split_by_sizes(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Split into a number of parts, of which the last may be smaller."""
    count = attribute(node, "num_outputs", 0)
    drop_attributes(node, "num_outputs")
    if not count:
        return [node]
    if count != len(node.output):
        raise scope.refusal(node, f"num_outputs is {count}, and it has {len(node.output)} outputs")
    axis = attribute(node, "axis", 0)
    shape = scope.shape(node.input[0])
    extent = shape[axis] if shape is not None else None
    if extent is None:
        return [*_sizes_of_parts(node, scope, axis, count), node]
    if extent % count:
        part = -(-extent // count)
        sizes = [part] * (count - 1) + [extent - part * (count - 1)]
        if sizes[-1] < 0:
            raise scope.refusal(node, f"{extent} elements do not make {count} parts of {part}")
        del node.input[1:]
        node.input.append(scope.store(np.array(sizes, np.int64), f"{node.output[0]}/sizes"))
    return [node]


def _sizes_of_parts(node: onnx.NodeProto, scope: Scope, axis: int, count: int) -> list[onnx.NodeProto]:
    """Nodes that compute the sizes, where it is not known whether the parts are equal."""
    from onnx import helper

    base = f"{node.output[0]}/sizes"
    shape, extent, above, part, most, last, sizes = (scope.fresh(base) for _ in range(7))
    at, less, whole, others = (
        scope.store(np.array([value], np.int64), base) for value in (axis, count - 1, count, count - 1)
    )
    del node.input[1:]
    node.input.append(sizes)
    steps: tuple[tuple[str, list[str], str], ...] = (
        ("Shape", [node.input[0]], shape),
        ("Gather", [shape, at], extent),
        ("Add", [extent, less], above),
        ("Div", [above, whole], part),
        ("Mul", [part, others], most),
        ("Sub", [extent, most], last),
    )
    made = [helper.make_node(what, read, [name], scope.fresh(name)) for what, read, name in steps]
    parts = [part] * (count - 1) + [last]
    return [*made, helper.make_node("Concat", parts, [sizes], scope.fresh(sizes), axis=0)]


def pad_every_axis(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Pad whose pads are those of some axes."""
    from onnx import helper

    if attribute(node, "mode", "constant") == "wrap":
        raise scope.refusal(node, "mode 'wrap' came with opset 19")
    axes = _operand(node, 3, scope, "its axes are")
    del node.input[3:]
    while node.input and not node.input[-1]:
        node.input.pop()
    if axes is None:
        return [node]
    rank = scope.rank(node, node.input[0])
    places = np.concatenate([axes.reshape(-1) % rank, axes.reshape(-1) % rank + rank]).astype(np.int64)
    none = np.zeros(2 * rank, np.int64)
    pads = scope.constant(node.input[1])
    if pads is not None:
        none[places] = pads.reshape(-1)
        node.input[1] = scope.store(none, f"{node.output[0]}/pads")
        return [node]
    every = scope.fresh(f"{node.output[0]}/pads")
    operands = [scope.store(none, f"{every}/none"), scope.store(places, f"{every}/places"), node.input[1]]
    spread = helper.make_node("ScatterElements", operands, [every], scope.fresh(f"{node.name}/pads"), axis=0)
    node.input[1] = every
    return [spread, node]


def resize_every_axis(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Resize whose scales or sizes are those of some axes."""
    from onnx import TensorProto, helper

    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    if attribute(node, "antialias", 0):
        raise scope.refusal(node, "antialias = 1 came with opset 18", "resize without antialiasing")
    if policy != "stretch" and len(node.input) > 3 and node.input[3]:
        raise scope.refusal(node, f"keep_aspect_ratio_policy {policy!r} came with opset 18")
    if mode == "half_pixel_symmetric":
        raise scope.refusal(node, f"coordinate_transformation_mode {mode!r} came with opset 19")
    axes = attribute(node, "axes")
    drop_attributes(node, "antialias", "axes", "keep_aspect_ratio_policy")
    if axes is None:
        return [node]
    if mode == "tf_crop_and_resize":
        raise scope.refusal(node, f"axes with {mode!r} came with opset 18")
    rank = scope.rank(node, node.input[0])
    places = scope.store(np.array([axis % rank for axis in axes], np.int64), f"{node.output[0]}/axes")
    by_size = len(node.input) > 3 and bool(node.input[3])
    index = 3 if by_size else 2
    made: list[onnx.NodeProto] = []
    if by_size:
        whole = scope.fresh(f"{node.output[0]}/extents")
        made.append(helper.make_node("Shape", node.input[:1], [whole], scope.fresh(f"{node.name}/shape")))
    else:
        kind = scope.elem_type(node, node.input[2])
        if kind != TensorProto.FLOAT:
            raise scope.refusal(node, "its scales are not float32")
        whole = scope.store(np.ones(rank, np.float32), f"{node.output[0]}/ones")
    every = scope.fresh(f"{node.output[0]}/{'sizes' if by_size else 'scales'}")
    stored = scope.constant(node.input[index])
    if stored is not None and not by_size:
        values = np.ones(rank, np.float32)
        values[[axis % rank for axis in axes]] = stored.reshape(-1)
        node.input[index] = scope.store(values, every)
        return [node]
    operands = [whole, places, node.input[index]]
    made.append(
        helper.make_node("ScatterElements", operands, [every], scope.fresh(f"{node.name}/axes"), axis=0)
    )
    node.input[index] = every
    return [*made, node]


def sample_images(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """GridSample, whose modes have other names, and which took no volumes."""
    from onnx import helper

    if scope.rank(node, node.input[0]) != 4:
        raise scope.refusal(node, "it samples no image of four axes")
    mode = attribute(node, "mode", "linear")
    drop_attributes(node, "mode")
    node.attribute.append(helper.make_attribute("mode", _IMAGE_MODES.get(mode, mode)))
    return [node]


def transform_by_attribute(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """DFT, whose axis was an attribute, with another default."""
    from onnx import helper

    axis = _operand(node, 2, scope, "its axis is")
    del node.input[2:]
    while not node.input[-1]:
        node.input.pop()
    rank = scope.rank(node, node.input[0])
    node.attribute.append(helper.make_attribute("axis", (-2 if axis is None else int(axis.item())) % rank))
    return [node]


def is_inf_of_float(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """IsInf of float16 or bfloat16: float32 holds all of their values, and their infinities."""
    from onnx import TensorProto, helper

    if scope.type(node.input[0]) not in ("tensor(float16)", "tensor(bfloat16)"):
        return [node]
    wide = scope.fresh(f"{node.output[0]}/float")
    cast = helper.make_node(
        "Cast", node.input, [wide], scope.fresh(f"{node.name}/float"), to=TensorProto.FLOAT
    )
    node.input[0] = wide
    return [cast, node]


def optional_as_it_is(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """OptionalHasElement and OptionalGetElement of a tensor or sequence, which are always there."""
    from onnx import helper, numpy_helper

    given = bool(node.input) and bool(node.input[0])
    kind = scope.type(node.input[0]) if given else ""
    if given and not kind:
        raise scope.refusal(node, f"the type of {node.input[0]!r} cannot be inferred")
    if given and kind.startswith("optional("):
        return [node]
    if node.op_type == "OptionalGetElement":
        return [helper.make_node("Identity", node.input, node.output, node.name)]
    answer = numpy_helper.from_array(np.array(given), "")
    return [helper.make_node("Constant", [], node.output, node.name, value=answer)]


def cast_to_known(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """CastLike, which many runtimes lack, where the type is known."""
    from onnx import helper

    if not scope.type(node.input[1]):
        return [node]
    kind = scope.elem_type(node, node.input[1])
    return [helper.make_node("Cast", node.input[:1], node.output, node.name, to=kind)]


def align_as_before(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """RoiAlign, which came to shift by half a pixel."""
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if mode != "output_half_pixel":
        raise scope.refusal(node, f"coordinate_transformation_mode {mode!r} came with opset 16")
    drop_attributes(node, "coordinate_transformation_mode")
    return [node]


def reshape_without_zeros(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Reshape that takes 0 for an extent (allowzero), where there is none; it was "as it is" before."""
    sizes = scope.constant(node.input[1])
    if sizes is not None and (sizes != 0).all():
        drop_attributes(node, "allowzero")
    return [node]


def slice_shape(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Shape from one axis to another."""
    from onnx import helper

    start, end = attribute(node, "start", 0), attribute(node, "end")
    drop_attributes(node, "start", "end")
    if not start and end is None:
        return [node]
    rank = scope.rank(node, node.input[0])
    first, last = (min(max(at + rank * (at < 0), 0), rank) for at in (start, rank if end is None else end))
    result, whole = node.output[0], scope.fresh(f"{node.output[0]}/whole")
    node.output[0] = whole
    bounds = [scope.store(np.array([at], np.int64), f"{whole}/bound") for at in (first, max(first, last))]
    return [node, helper.make_node("Slice", [whole, *bounds], [result], scope.fresh(f"{node.name}/slice"))]


REWRITES: dict[str, tuple[int, Rewrite]] = {
    **{f"Reduce{kind}": (18, reduce_by_attribute) for kind in _REDUCTIONS},
    "Split": (18, split_by_sizes),
    "Pad": (18, pad_every_axis),
    "Resize": (18, resize_every_axis),
    "GridSample": (20, sample_images),
    "DFT": (20, transform_by_attribute),
    "IsInf": (20, is_inf_of_float),
    "OptionalHasElement": (18, optional_as_it_is),
    "OptionalGetElement": (18, optional_as_it_is),
    "CastLike": (19, cast_to_known),
    "RoiAlign": (16, align_as_before),
    "Reshape": (14, reshape_without_zeros),
    "Shape": (15, slice_shape),
}
"""Operator to the opset that changed it, and the rewrite to what it was."""


def _operand(node: onnx.NodeProto, index: int, scope: Scope, what: str) -> NDArray[Any] | None:
    """The values of an operand that was an attribute; None where there is none."""
    if len(node.input) <= index or not node.input[index]:
        return None
    values = scope.constant(node.input[index])
    if values is None:
        raise scope.refusal(node, f"{what} computed at run time ({node.input[index]!r})")
    return values
