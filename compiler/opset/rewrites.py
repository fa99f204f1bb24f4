"""Rewrite operators into their older form, or refuse them.

`REWRITES` has the rewrite of each operator with moved operands or attributes, and the opset of the change.
`DECOMPOSITIONS` replaces operators that older opsets lack by patterns that runtimes fuse again:

    Gelu (20)                       x / 2 * (1 + Erf(x / sqrt(2))), or with Tanh
    RMSNormalization (23)           x / Sqrt(ReduceMean(x * x) + epsilon) * scale
    LayerNormalization (17)         (x - mean) / Sqrt(variance + epsilon) * scale + bias
    GroupNormalization (18, 21)     Reshape, InstanceNormalization, Reshape, Mul, Add

The replacements are nodes of opset 13, which mean the same in every later opset.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ...model.graph.graph import attribute
from ...model.graph.graph_edits import drop_attributes
from .affine_grid import affine_grid
from .scope import Chain, Rewrite, Scope, drop_trailing

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
_IDENTITY_WITHOUT_AXES = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")
"""Reductions that are the identity if they reduce no axis; the others still square, or take logarithms."""
_IMAGE_MODES = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}


def reduce_by_attribute(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Move the axes of a reduction to an attribute: older parsers would ignore them and reduce all axes."""
    axes = _operand(node, 1, scope, "its axes are")
    noop = attribute(node, "noop_with_empty_axes", 0)
    drop_attributes(node, "noop_with_empty_axes")
    del node.input[1:]
    if axes is not None and axes.size:
        node.attribute.append(helper.make_attribute("axes", axes.reshape(-1).tolist()))
    elif noop and node.op_type not in _IDENTITY_WITHOUT_AXES:
        raise scope.unsupported(node, "noop_with_empty_axes without axes has no older form")
    elif noop:
        return [helper.make_node("Identity", node.input, node.output, node.name)]
    if scope.type(node.input[0]) != "tensor(bool)":
        return [node]
    # A comparison, unlike a cast, is right for no elements too: their maximum is the least integer.
    chain = Chain(node, scope)
    node.input[0] = chain.add("Cast", node.input, to=TensorProto.INT32)
    node.output[0] = scope.fresh("reduced")
    chain.nodes.append(node)
    return chain.result(chain.add("Greater", [node.output[0], chain.scalar(0, TensorProto.INT32)]))


def split_by_sizes(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Give a Split into `num_outputs` parts its sizes; the last part may be smaller."""
    count = attribute(node, "num_outputs", 0)
    drop_attributes(node, "num_outputs")
    if not count:
        return [node]
    if count != len(node.output):
        raise scope.unsupported(node, f"num_outputs is {count}, and it has {len(node.output)} outputs")
    axis, shape = attribute(node, "axis", 0), scope.shape(node.input[0])
    extent = shape[axis] if shape is not None else None
    if extent is None:
        chain = Chain(node, scope)
        extents = chain.add("Gather", [chain.add("Shape", node.input[:1]), chain.ints([axis])])
        padded = chain.add("Add", [extents, chain.ints([count - 1])])
        parts = chain.add("Div", [padded, chain.ints([count])])
        last = chain.add("Sub", [extents, chain.add("Mul", [parts, chain.ints([count - 1])])])
        del node.input[1:]
        node.input.append(chain.add("Concat", [parts] * (count - 1) + [last], axis=0))
        return [*chain.nodes, node]
    if extent % count:
        part = -(-extent // count)
        sizes = [part] * (count - 1) + [extent - part * (count - 1)]
        if sizes[-1] < 0:
            raise scope.unsupported(node, f"{extent} elements do not make {count} parts of {part}")
        del node.input[1:]
        node.input.append(scope.store(np.array(sizes, np.int64), f"{node.output[0]}/sizes"))
    return [node]


def pad_every_axis(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Give a Pad of some axes the pads of all axes."""
    axes = _operand(node, 3, scope, "its axes are")
    del node.input[3:]
    drop_trailing(node)
    if axes is None:
        return [node]
    rank, pads = scope.rank(node, node.input[0]), scope.constant(node.input[1])
    positions = np.concatenate([axes.reshape(-1) % rank, axes.reshape(-1) % rank + rank]).astype(np.int64)
    values = np.zeros(2 * rank, np.int64)
    if pads is not None:
        values[positions] = pads.reshape(-1)
        node.input[1] = scope.store(values, f"{node.output[0]}/pads")
        return [node]
    chain = Chain(node, scope)
    operands = [chain.ints(values), chain.ints(positions), node.input[1]]
    node.input[1] = chain.add("ScatterElements", operands, axis=0)
    return [*chain.nodes, node]


def resize_every_axis(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Give a Resize of some axes the scales or sizes of all axes."""
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    if attribute(node, "antialias", 0):
        raise scope.unsupported(node, "antialias = 1 came with opset 18", "resize without antialiasing")
    if policy != "stretch" and len(node.input) > 3 and node.input[3]:
        raise scope.unsupported(node, f"keep_aspect_ratio_policy {policy!r} came with opset 18")
    axes = attribute(node, "axes")
    drop_attributes(node, "antialias", "axes", "keep_aspect_ratio_policy")
    if axes is None:
        return [node]
    if mode == "tf_crop_and_resize":
        raise scope.unsupported(node, f"axes with {mode!r} came with opset 18")
    rank = scope.rank(node, node.input[0])
    places = [axis % rank for axis in axes]
    by_size = len(node.input) > 3 and bool(node.input[3])
    index, chain = 3 if by_size else 2, Chain(node, scope)
    if not by_size and scope.elem_type(node, node.input[2]) != TensorProto.FLOAT:
        raise scope.unsupported(node, "its scales are not float32")
    ones, stored = np.ones(rank, np.float32), scope.constant(node.input[index])
    if stored is not None and not by_size:
        ones[places] = stored.reshape(-1)
        node.input[index] = scope.store(ones, f"{chain.output}/scales")
        return [node]
    whole = chain.add("Shape", node.input[:1]) if by_size else scope.store(ones, f"{chain.output}/ones")
    operands = [whole, chain.ints(places), node.input[index]]
    node.input[index] = chain.add("ScatterElements", operands, axis=0)
    return [*chain.nodes, node]


def sample_images(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Rename the mode of a GridSample of images; volumes have no older form."""
    if scope.rank(node, node.input[0]) != 4:
        raise scope.unsupported(node, "it samples no image of four axes")
    mode = attribute(node, "mode", "linear")
    drop_attributes(node, "mode")
    node.attribute.append(helper.make_attribute("mode", _IMAGE_MODES.get(mode, mode)))
    return [node]


def transform_by_attribute(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Move the axis of a DFT to an attribute, which has another default."""
    axis = _operand(node, 2, scope, "its axis is")
    del node.input[2:]
    drop_trailing(node)
    rank = scope.rank(node, node.input[0])
    node.attribute.append(helper.make_attribute("axis", (-2 if axis is None else int(axis.item())) % rank))
    return [node]


def is_inf_of_float(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Cast the float16 or bfloat16 operand of IsInf to float32, which has all its values and infinities."""
    if scope.type(node.input[0]) not in ("tensor(float16)", "tensor(bfloat16)"):
        return [node]
    chain = Chain(node, scope)
    node.input[0] = chain.add("Cast", node.input, to=TensorProto.FLOAT)
    return [*chain.nodes, node]


def optional_as_it_is(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Replace OptionalHasElement and OptionalGetElement of a tensor or sequence, which is always present."""
    has_value = any(node.input[:1])
    kind = scope.type(node.input[0]) if has_value else ""
    if has_value and not kind:
        raise scope.unsupported(node, f"the type of {node.input[0]!r} cannot be inferred")
    if kind.startswith("optional("):
        return [node]
    if node.op_type == "OptionalGetElement":
        return [helper.make_node("Identity", node.input, node.output, node.name)]
    answer = numpy_helper.from_array(np.array(has_value), "")
    return [helper.make_node("Constant", [], node.output, node.name, value=answer)]


def cast_to_known(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Replace CastLike, which many runtimes lack, by Cast if the type is known."""
    if not scope.type(node.input[1]):
        return [node]
    kind = scope.elem_type(node, node.input[1])
    return [helper.make_node("Cast", node.input[:1], node.output, node.name, to=kind)]


def align_as_before(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Remove mode "output_half_pixel" of a RoiAlign, the only mode before opset 16."""
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if mode != "output_half_pixel":
        raise scope.unsupported(node, f"coordinate_transformation_mode {mode!r} came with opset 16")
    drop_attributes(node, "coordinate_transformation_mode")
    return [node]


def reshape_without_zeros(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Remove allowzero from a Reshape to a stored shape without zeros; older opsets copy the extent for 0."""
    sizes = scope.constant(node.input[1])
    if sizes is not None and (sizes != 0).all():
        drop_attributes(node, "allowzero")
    return [node]


def slice_shape(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Replace the start and end of a Shape by a Slice."""
    start, end = attribute(node, "start", 0), attribute(node, "end")
    drop_attributes(node, "start", "end")
    if not start and end is None:
        return [node]
    rank = scope.rank(node, node.input[0])
    first, last = (min(max(at + rank * (at < 0), 0), rank) for at in (start, rank if end is None else end))
    chain = Chain(node, scope)
    node.output[0] = scope.fresh(f"{chain.output}/whole")
    chain.nodes.append(node)
    return chain.result(
        chain.add("Slice", [node.output[0], chain.ints([first]), chain.ints([max(first, last)])])
    )


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
"""Operator to the opset that changed it, and the rewrite to its older form."""


def _operand(node: onnx.NodeProto, index: int, scope: Scope, what: str) -> NDArray[Any] | None:
    """Return the values of an operand that was an attribute; None if the node does not use it."""
    if len(node.input) <= index or not node.input[index]:
        return None
    values = scope.constant(node.input[index])
    if values is None:
        raise scope.unsupported(node, f"{what} computed at run time ({node.input[index]!r})")
    return values


def gelu(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return a Gelu in the pattern that exporters wrote before the operator existed."""
    chain, x = Chain(node, scope), node.input[0]
    kind = scope.elem_type(node, x if scope.type(x) else node.output[0])
    one, half = chain.scalar(1.0, kind), chain.scalar(0.5, kind)
    if attribute(node, "approximate", "none") == "tanh":
        cubed = chain.add("Pow", [x, chain.scalar(3.0, kind)])
        inner = chain.add("Add", [x, chain.add("Mul", [chain.scalar(0.044715, kind), cubed])])
        curve = chain.add("Tanh", [chain.add("Mul", [chain.scalar(math.sqrt(2 / math.pi), kind), inner])])
    else:
        curve = chain.add("Erf", [chain.add("Div", [x, chain.scalar(math.sqrt(2), kind)])])
    return chain.result(chain.add("Mul", [chain.add("Mul", [x, chain.add("Add", [curve, one])]), half]))


def group_normalization(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return a GroupNormalization, with a scale per group (opset 18) or per channel (from 21 on)."""
    chain, (x, scale, bias) = Chain(node, scope), node.input
    rank, kind = scope.rank(node, x), scope.elem_type(node, x)
    groups = int(attribute(node, "num_groups", 0))
    scales = scope.shape(scale)
    if scales is None or scales[0] is None:
        raise scope.unsupported(node, f"whether {scale!r} is per group or per channel is not known")
    stash = attribute(node, "stash_type", TensorProto.FLOAT)  # the type of the statistics
    if stash != TensorProto.FLOAT or kind == TensorProto.DOUBLE:
        stash = kind
    shape = chain.add("Shape", [x])
    value = chain.cast(x, kind, stash)
    grouped_shape = scope.store(np.array([0, groups, -1], np.int64), f"{shape}/groups")
    value = chain.add("Reshape", [value, grouped_shape])
    dtype = helper.tensor_dtype_to_np_dtype(stash)
    ones = scope.store(np.ones(groups, dtype), f"{shape}/ones")
    zeros = scope.store(np.zeros(groups, dtype), f"{shape}/zeros")
    epsilon = attribute(node, "epsilon", 1e-5)
    value = chain.add("InstanceNormalization", [value, ones, zeros], epsilon=epsilon)
    value = chain.cast(value, stash, kind)
    if scales[0] == groups:
        value = chain.add("Mul", [value, chain.column(scale, 1)])
        value = chain.add("Add", [value, chain.column(bias, 1)])
        value = chain.add("Reshape", [value, shape])
    else:
        value = chain.add("Mul", [chain.add("Reshape", [value, shape]), chain.column(scale, rank - 2)])
        value = chain.add("Add", [value, chain.column(bias, rank - 2)])
    return chain.result(value)


def rms_normalization(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return an RMSNormalization; its mean of squares is in float32 by default (stash_type)."""
    chain, (x, scale) = Chain(node, scope), node.input
    value = _normalized(node, chain, scope, centred=False)
    if scope.elem_type(node, scale) != scope.elem_type(node, x):
        raise scope.unsupported(node, f"{scale!r} is of another type than {x!r}")
    return chain.result(chain.add("Mul", [value, scale]))


def layer_normalization(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return a LayerNormalization in its older pattern, with statistics as in `rms_normalization`."""
    chain, (_, scale, *bias) = Chain(node, scope), node.input
    if len([name for name in node.output if name]) > 1:
        raise scope.unsupported(node, "its mean and deviation are read, which only newer opsets return")
    value = _normalized(node, chain, scope, centred=True)
    value = chain.add("Mul", [value, scale])
    return chain.result(chain.add("Add", [value, bias[0]]) if any(bias) else value)


def _normalized(node: onnx.NodeProto, chain: Chain, scope: Scope, *, centred: bool) -> str:
    """Return the first operand, less its mean if `centred`, by the root of the mean of its squares."""
    x = node.input[0]
    rank, kind = scope.rank(node, x), scope.elem_type(node, x)
    stash = attribute(node, "stash_type", TensorProto.FLOAT)
    axes = list(range(attribute(node, "axis", -1) % rank, rank))
    value = chain.cast(x, kind, stash)
    if centred:
        value = chain.add("Sub", [value, chain.over_axes("ReduceMean", value, axes)])
    mean = chain.over_axes("ReduceMean", chain.add("Mul", [value, value]), axes)
    epsilon = chain.scalar(attribute(node, "epsilon", 1e-5), stash)
    value = chain.add("Div", [value, chain.add("Sqrt", [chain.add("Add", [mean, epsilon])])])
    return chain.cast(value, stash, kind)


DECOMPOSITIONS: dict[str, Rewrite] = {
    "AffineGrid": affine_grid,
    "Gelu": gelu,
    "LayerNormalization": layer_normalization,
    "GroupNormalization": group_normalization,
    "RMSNormalization": rms_normalization,
}
"""Operator to the function that decomposes it into operators of the older opset."""
