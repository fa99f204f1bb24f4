"""Rewrite operators that a runtime reads or optimizes wrongly into equal forms that it computes correctly.

Mod(x, y) of integers                r = x - y Div(x, y);  r + y where the signs of r and y differ
GroupNormalization of one group      Reshape, InstanceNormalization, Reshape, Mul, Add
LSTM, GRU, RNN of layout 1           Transpose, the same operator of layout 0, Transpose
Shape with start or end              Shape, Slice
ReduceL1(x)                          ReduceSum(Abs(x)): axes are an attribute before opset 18
ReduceLogSum(x)                      Log(ReduceSum(x))
ReduceLogSumExp(x)                   m = Max(ReduceMax(x), lowest);  Squeeze(Log(ReduceSum(Exp(x - m))) + m)

CumSum becomes a product with a triangular matrix of ones, where a runtime confuses the axes of two CumSums.
`exclusive` and `reverse` use other comparisons; an axis other than the last is first swapped with the last:

    CumSum(x, axis) [.., n]      becomes      x ─ MatMul(Range(n)[:, None] <= Range(n)[None, :]), floats
                                              ReduceSum(x[.., :, None] * triangle, axis -2), integers

ONNX Runtime's optimizer quantizes the weight or bias of some layers behind a DequantizeLinear although the
graph does not (`find_requantized_layers` in `model/sessions`). A Sum of one operand, which returns the
operand, prevents this; an Identity does not, as the optimizer removes it:

    x ─ DQ ─ Conv        becomes        x ─ DQ ─ Sum ─ Conv

A bilinear GridSample(x, grid) of P = Ho Wo sampling points, with padding zeros or border, becomes for each of
the four corners of a point

grid ─ coordinates [N, P] ─┬─ Floor, Clip ─ index y * W + x ─ GatherElements(x [N, C, H W]) ─┐
                           └─ weight of the corner, 0 outside ─────────────────────── Mul ── Sum ─ Reshape
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import helper

from ...model.graph.graph import ONNX_DOMAINS, attribute, consumers, every_graph, opset
from ...model.graph.graph_edits import drop_attributes
from ...model.sessions.session import find_requantized_layers
from .scope import Chain, Links, Scope, every_scope, find_nodes, iterate_consumers, node_name, node_query

_BATCH_SECOND = (1, 0, 2)
_Y_BATCH_FIRST = (2, 0, 1, 3)  # [time, directions, batch, hidden] to [batch, time, directions, hidden]


@node_query("Mod")
def find_integer_mods(node: onnx.NodeProto, links: Links) -> bool:
    """Match an integer Mod (fmod = 0), unless its dividend comes from shapes: these values are small."""
    return not attribute(node, "fmod", 0) and not _comes_from_shapes(node.input[0], links.producers)


def exact_mod(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return an integer Mod as a Div, corrected: ONNX's Div rounds toward zero, Mod toward minus infinity."""
    chain, (x, y) = Chain(node, scope), node.input
    zero = chain.scalar(0, scope.elem_type(node, x))
    remainder = chain.add("Sub", [x, chain.add("Mul", [y, chain.add("Div", [x, y])])])
    signs = [chain.add("Less", [value, zero]) for value in (remainder, y)]  # the product of both may overflow
    is_nonzero = chain.add("Not", [chain.add("Equal", [remainder, zero])])
    differ = chain.add("And", [chain.add("Xor", signs), is_nonzero])
    return chain.result(chain.add("Where", [differ, chain.add("Add", [remainder, y]), remainder]))


def time_first(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return a recurrent layer of layout 1 as a layer of layout 0 between Transposes."""
    drop_attributes(node, "layout")
    nodes = [node]

    def transpose(name: str, place: int, order: str, perm: tuple[int, ...]) -> str:
        transposed = scope.fresh(f"{name}/time_first")
        ends = [name, transposed] if place == 0 else [transposed, name]
        name = scope.fresh(f"{node_name(node)}/{order}")
        nodes.insert(place, helper.make_node("Transpose", ends[:1], ends[1:], name, perm=perm))
        return transposed

    for index in (0, 5, 6):  # X, initial_h, initial_c
        if index < len(node.input) and node.input[index]:
            node.input[index] = transpose(node.input[index], 0, "time_first", _BATCH_SECOND)
    for index, result in enumerate(node.output):
        if result:
            perm = _BATCH_SECOND if index else _Y_BATCH_FIRST
            node.output[index] = transpose(result, len(nodes), "batch_first", perm)
    return nodes


def _comes_from_shapes(name: str, made_by: dict[str, onnx.NodeProto]) -> bool:
    """Return whether a tensor is computed only from shapes and constants."""
    pending, seen, from_shape = [name], {name}, False
    while pending:
        node = made_by.get(pending.pop())
        if node is None:
            return False
        if node.op_type in ("Shape", "Size"):
            from_shape = True
            continue
        operands = {name for name in node.input if name in made_by and made_by[name].op_type != "Constant"}
        pending += operands - seen
        seen |= operands
    return from_shape


_COMPARED = {(0, 0): "LessOrEqual", (1, 0): "Less", (0, 1): "GreaterOrEqual", (1, 1): "Greater"}
"""(exclusive, reverse) to the operator that compares row i of the triangle with column j."""
_FLOATS = (1, 10, 11, 16)  # float, float16, double, bfloat16


def find_mixed_cumsums(model: onnx.ModelProto) -> list[str]:
    """Return the CumSums with another axis or direction than the most frequent in the model."""
    if len(find_nodes(model, "CumSum")) < 2:
        return []
    kinds = [
        (node_name(node), (_axis(node, scope), *_direction(node)))
        for scope in every_scope(model, opset(model))
        for node in scope.graph.node
        if node.op_type == "CumSum" and node.domain in ONNX_DOMAINS
    ]
    ((most_frequent, _),) = Counter(kind for _, kind in kinds).most_common(1)
    return [name for name, kind in kinds if kind != most_frequent]


def cumsum_by_product(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """Return a CumSum as a product; None if its axis is computed, or its type or rank is unknown."""
    value = node.input[0]
    stored, shape = scope.constant(node.input[1]), scope.shape(value)
    if node.op_type != "CumSum" or stored is None or shape is None or not scope.type(value):
        return None
    chain, kind, rank = Chain(node, scope), scope.elem_type(node, value), len(shape)
    axis = int(stored.item()) % rank
    last = axis == rank - 1
    swap = list(range(rank))
    swap[axis], swap[-1] = swap[-1], axis
    if not last:
        value = chain.add("Transpose", [value], perm=swap)
    count = chain.add("Gather", [chain.add("Shape", [value]), chain.ints(rank - 1)])
    indices = chain.add("Range", [chain.ints(0), count, chain.ints(1)])
    rows, columns = (chain.add("Unsqueeze", [indices, chain.ints([at])]) for at in (1, 0))
    compared = _COMPARED[_direction(node)]
    triangle = chain.add("Cast", [chain.add(compared, [rows, columns])], to=kind)
    if kind in _FLOATS:
        result = chain.add("MatMul", [value, triangle])
    else:
        spread = chain.add("Mul", [chain.add("Unsqueeze", [value, chain.ints([-1])]), triangle])
        result = chain.add("ReduceSum", [spread, chain.ints([-2])], keepdims=0)
    return chain.result(result if last else chain.add("Transpose", [result], perm=swap))


def _direction(node: onnx.NodeProto) -> tuple[int, int]:
    return attribute(node, "exclusive", 0), attribute(node, "reverse", 0)


def _axis(node: onnx.NodeProto, scope: Scope) -> int | str:
    """Return the axis, counted from the last if the rank is known; for a computed axis, the tensor's name."""
    axis, shape = scope.constant(node.input[1]), scope.shape(node.input[0])
    if axis is None:
        return str(node.input[1])
    at = int(axis.item())
    return at - len(shape) if at >= 0 and shape is not None else at


_AXES_ARE_AN_INPUT = 18


def find_reduced_axes(model: onnx.ModelProto) -> list[str]:
    """Return the ReduceL1, ReduceLogSum and ReduceLogSumExp nodes with axes in an attribute."""
    if opset(model) >= _AXES_ARE_AN_INPUT:
        return []
    operators = "ReduceL1 ReduceLogSum ReduceLogSumExp"
    return find_nodes(model, operators, lambda node, _: attribute(node, "axes") is not None)


def by_sum(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return one of these reductions in terms of ReduceSum."""
    chain, x = Chain(node, scope), node.input[0]
    axes, keep = list(attribute(node, "axes")), int(attribute(node, "keepdims", 1))
    if node.op_type == "ReduceL1":
        result = chain.over_axes("ReduceSum", chain.add("Abs", [x]), axes, keepdims=keep)
    elif node.op_type == "ReduceLogSum":
        result = chain.add("Log", [chain.over_axes("ReduceSum", x, axes, keepdims=keep)])
    else:
        kind = scope.elem_type(node, x if scope.type(x) else node.output[0])
        lowest = float(np.finfo(helper.tensor_dtype_to_np_dtype(kind)).min)
        largest = chain.add("Max", [chain.add("ReduceMax", [x], axes=axes), chain.scalar(lowest, kind)])
        powers = chain.add("Exp", [chain.add("Sub", [x, largest])])
        total = chain.over_axes("ReduceSum", powers, axes, keepdims=1)
        result = chain.add("Add", [chain.add("Log", [total]), largest])
        if not keep:
            result = chain.over_axes("Squeeze", result, axes)
    return chain.result(result)


def find_requantized(model: onnx.ModelProto) -> list[str]:
    """Return the names of the layers that ONNX Runtime's optimizer would quantize wrongly."""
    return [node_name(node) for _, node in find_requantized_layers(model)]


def keep_layers_apart(model: onnx.ModelProto) -> list[str]:
    """Insert a Sum in front of each of these layers, in place; return the names of the layers."""
    layers = list(find_requantized_layers(model))
    names = [node_name(node) for _, node in layers]
    for graph, layer in layers:
        result, separated = layer.output[0], f"{layer.output[0]}/apart"
        index = next(index for index, node in enumerate(graph.node) if result in node.output)
        node = graph.node[index]
        sum_of_one = helper.make_node("Sum", [node.input[0]], [separated], name=separated)
        node.input[0] = separated
        graph.node.insert(index, sum_of_one)
    return names


_FLOAT, _INT64 = 1, 7  # TensorProto.DataType
MODES_RENAMED = 20  # opset: bilinear and bicubic became linear and cubic, names that some parsers do not know
_BILINEAR = ("bilinear", "linear")
_CARRIED_BY = frozenset("Unsqueeze Reshape Identity Squeeze Transpose Cast".split())


def find_renamed_modes(model: onnx.ModelProto) -> list[str]:
    """Return the GridSample nodes with a mode name of opset 20: linear or cubic."""
    if opset(model) < MODES_RENAMED:
        return []
    return find_nodes(model, "GridSample", lambda node, _: attribute(node, "mode") in ("linear", "cubic"))


@node_query("GridSample")
def find_cubic_modes(node: onnx.NodeProto, _: Links) -> bool:
    """Match mode "cubic", which all parsers know only by its name in older opsets."""
    return bool(attribute(node, "mode") == "cubic")


def mode_left_out(node: onnx.NodeProto, _: Scope) -> list[onnx.NodeProto] | None:
    """Drop mode "linear", the default in every opset under either name; return None for other modes."""
    if attribute(node, "mode") != "linear":
        return None
    drop_attributes(node, "mode")
    return [node]


def find_deformable_attention(model: onnx.ModelProto) -> list[str]:
    """Return the bilinear GridSamples that share a Concat, as the levels of a deformable attention do."""
    names = []
    for graph in every_graph(model.graph):
        read_by = consumers(graph)
        samples_by_concat: dict[str, list[str]] = {}
        for node in graph.node:
            if node.op_type == "GridSample" and attribute(node, "mode", "linear") in _BILINEAR:
                for reader in iterate_consumers(node.output[0], read_by, _CARRIED_BY):
                    if reader.op_type == "Concat":
                        samples_by_concat.setdefault(node_name(reader), []).append(node_name(node))
        names += [name for samples in samples_by_concat.values() if len(samples) > 1 for name in samples]
    return list(dict.fromkeys(names))


def gathered_corners(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """Return the nodes for a bilinear GridSample of an image [N, C, H, W]; None for others."""
    plain = attribute(node, "padding_mode", "zeros") in ("zeros", "border")
    if node.op_type != "GridSample" or not plain or len(scope.shape(node.input[0]) or ()) != 4:
        return None
    chain, (image, grid) = Chain(node, scope), node.input
    add, ints, kind = chain.add, chain.ints, scope.elem_type(node, image)
    sizes, grid_sizes = add("Shape", [image]), add("Shape", [grid])
    if scope.elem_type(node, grid) != _FLOAT:
        grid = add("Cast", [grid], to=_FLOAT)
    width, height = (add("Gather", [sizes, ints(axis)]) for axis in (3, 2))
    x_places, y_places = (
        _neighbours(node, chain, add("Gather", [grid, ints(index)], axis=3), size)
        for index, size in ((0, width), (1, height))
    )
    flat = add("Reshape", [image, ints([0, 0, -1])])
    channels = add("Concat", [ints([1]), add("Gather", [sizes, ints([1])]), ints([1])], axis=0)
    corners = []
    for x_index, x_weight in x_places:
        for y_index, y_weight in y_places:
            index = add("Add", [add("Mul", [y_index, width]), x_index])
            index = add("Expand", [add("Unsqueeze", [index, ints([1])]), channels])
            weight = add("Unsqueeze", [add("Mul", [x_weight, y_weight]), ints([1])])
            if kind != _FLOAT:
                weight = add("Cast", [weight], to=kind)
            corners.append(add("Mul", [add("GatherElements", [flat, index], axis=2), weight]))
    total = add("Add", [add("Add", corners[:2]), add("Add", corners[2:])])
    extents = [add("Gather", [shape, ints(axes)]) for shape, axes in ((sizes, [0, 1]), (grid_sizes, [1, 2]))]
    return chain.result(add("Reshape", [total, add("Concat", extents, axis=0)]))


def _neighbours(node: onnx.NodeProto, chain: Chain, value: str, extent: str) -> list[tuple[str, str]]:
    """Return index (int64) and weight, both [N, P], of the lower and the upper neighbour along an axis."""
    add, zeros = chain.add, attribute(node, "padding_mode", "zeros") == "zeros"
    one, half, zero = (chain.scalar(number, _FLOAT) for number in (1.0, 0.5, 0.0))
    size = add("Cast", [extent], to=_FLOAT)
    value = add("Add", [add("Reshape", [value, chain.ints([0, -1])]), one])
    last = add("Sub", [size, one])
    if attribute(node, "align_corners", 0):
        value = add("Mul", [add("Mul", [value, half]), last])
    else:
        value = add("Mul", [add("Sub", [add("Mul", [value, size]), one]), half])
    if not zeros:
        value = add("Min", [add("Max", [value, zero]), last])
    low = add("Floor", [value])
    share = add("Sub", [value, low])
    neighbours = []
    for corner, weight in ((low, add("Sub", [one, share])), (add("Add", [low, one]), share)):
        inside = add("Min", [add("Max", [corner, zero]), last])
        if zeros:
            weight = add("Mul", [weight, add("Cast", [add("Equal", [inside, corner])], to=_FLOAT)])
        neighbours.append((add("Cast", [inside], to=_INT64), weight))
    return neighbours
