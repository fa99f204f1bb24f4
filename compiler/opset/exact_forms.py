"""Write operators in forms that leave a parser nothing to mistake.

Mod(x, y) of integers                r = x - y Div(x, y);  r + y where the signs of r and y differ
GroupNormalization of one group      Reshape, InstanceNormalization, Reshape, Mul, Add
LSTM, GRU, RNN of layout 1           Transpose, the same of layout 0, Transpose
Shape from one axis to another       Shape, Slice
ReduceL1(x)                          ReduceSum(Abs(x)): axes are an attribute before opset 18
ReduceLogSum(x)                      Log(ReduceSum(x))
ReduceLogSumExp(x)                   m = Max(ReduceMax(x), lowest);  Log(ReduceSum(Exp(x - m))) + m, no axes

CumSum becomes a product with a triangle of ones, where a runtime mixes up the axes of several:

    CumSum(x, axis) [.., n]      becomes      x ─ MatMul(Range(n)[:, None] <= Range(n)[None, :]), floats
                                              ReduceSum(x[.., :, None] * triangle, axis -2), integers

Other comparisons stand for `exclusive` and `reverse`; an axis that is not the last is exchanged with it.

ONNX Runtime's optimizer quantizes layers further than the graph says (`model/requantized`):

    x ─ DQ ─ Conv        becomes        x ─ DQ ─ Sum ─ Conv

A Sum of one operand is that operand. The optimizer only looks at layers right behind a DequantizeLinear, and
removes an Identity, but not a Sum.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ...model.graph import ONNX_DOMAINS, attribute, every_graph, producers
from ...model.graph_edits import drop_attributes, set_nodes
from ...model.onnx_file import opset
from ...model.onnxruntime_optimizer import requantized
from .scope import Chain, Scope, every_scope, find_nodes, node_name

_RECURRENT = ("LSTM", "GRU", "RNN")
_BATCH_SECOND = (1, 0, 2)
_Y_BATCH_FIRST = (2, 0, 1, 3)  # [time, directions, batch, hidden] to [batch, time, directions, hidden]
_OF_SHAPES = ("Shape", "Size")


def find_integer_mods(model: onnx.ModelProto) -> list[str]:
    """Return Mods of integers (fmod = 0) whose operand is no extent of a shape: those are small."""
    return [
        node_name(node)
        for graph in every_graph(model.graph)
        for made_by in [producers(graph)]
        for node in graph.node
        if node.op_type == "Mod" and node.domain in ONNX_DOMAINS
        if not attribute(node, "fmod", 0) and not _of_shapes(node.input[0], made_by)
    ]


def find_one_group(model: onnx.ModelProto) -> list[str]:
    """Return GroupNormalizations of one group."""
    return find_nodes(model, ("GroupNormalization",), lambda node: attribute(node, "num_groups") == 1)


def find_batch_first(model: onnx.ModelProto) -> list[str]:
    """Return recurrent layers of layout 1."""
    return find_nodes(model, _RECURRENT, lambda node: attribute(node, "layout", 0) == 1)


def find_sliced_shapes(model: onnx.ModelProto) -> list[str]:
    """Return Shapes that are not of all axes."""
    return find_nodes(
        model, ("Shape",), lambda node: attribute(node, "start", 0) or attribute(node, "end") is not None
    )


def exact_mod(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Mod by a division of integers; ONNX's Div rounds towards zero, Mod towards minus infinity."""

    chain, (x, y) = Chain(node, scope), node.input
    rest = chain.add("Sub", [x, chain.add("Mul", [y, chain.add("Div", [x, y])])])
    other_sign = chain.add("Less", [chain.add("Mul", [rest, y]), chain.scalar(0, scope.elem_type(node, x))])
    chain.add("Where", [other_sign, chain.add("Add", [rest, y]), rest], last=True)
    return chain.nodes


def time_first(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """A recurrent layer of layout 1 as one of layout 0."""
    drop_attributes(node, "layout")
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    for index in (0, 5, 6):  # X, initial_h, initial_c
        if index < len(node.input) and node.input[index]:
            turned = scope.fresh(f"{node.input[index]}/time_first")
            name = scope.fresh(f"{node_name(node)}/time_first")
            before.append(
                helper.make_node("Transpose", [node.input[index]], [turned], name, perm=_BATCH_SECOND)
            )
            node.input[index] = turned
    for index, result in enumerate(node.output):
        if result:
            inner = scope.fresh(f"{result}/time_first")
            perm = _BATCH_SECOND if index else _Y_BATCH_FIRST
            name = scope.fresh(f"{node_name(node)}/batch_first")
            after.append(helper.make_node("Transpose", [inner], [result], name, perm=perm))
            node.output[index] = inner
    return [*before, node, *after]


def _of_shapes(name: str, made_by: dict[str, onnx.NodeProto]) -> bool:
    """Whether a tensor is computed from shapes and constants alone."""
    waiting, seen, from_shape = [name], set[str](), False
    while waiting:
        node = made_by.get(waiting.pop())
        if node is None:
            return False
        if node.op_type in _OF_SHAPES:
            from_shape = True
            continue
        for operand in node.input:
            if operand in made_by and operand not in seen and made_by[operand].op_type != "Constant":
                seen.add(operand)
                waiting.append(operand)
    return from_shape


_COMPARED = {(0, 0): "LessOrEqual", (1, 0): "Less", (0, 1): "GreaterOrEqual", (1, 1): "Greater"}
"""(exclusive, reverse) to how row i of the triangle is compared with column j."""
_FLOATS = (1, 10, 11, 16)  # float, float16, double, bfloat16


def find_mixed_cumsums(model: onnx.ModelProto) -> list[str]:
    """Return the CumSums that differ in axis or direction from the most frequent kind of the model."""
    kinds = _kinds(model)
    if len({kind for _, kind in kinds}) < 2:
        return []
    ((most, _),) = Counter(kind for _, kind in kinds).most_common(1)
    return [name for name, kind in kinds if kind != most]


def cumsum_by_product(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """A CumSum as a product; None where its axis is not stored, or the shape not known."""
    value = node.input[0]
    stored, shape = scope.constant(node.input[1]), scope.shape(value)
    if node.op_type != "CumSum" or stored is None or shape is None or not scope.type(value):
        return None
    chain, kind, rank = Chain(node, scope), scope.elem_type(node, value), len(shape)
    axis = int(stored.item()) % rank
    exchanged = list(range(rank))
    exchanged[axis], exchanged[-1] = exchanged[-1], axis
    if axis != rank - 1:
        value = chain.add("Transpose", [value], perm=exchanged)
    count = chain.add("Gather", [chain.add("Shape", [value]), chain.ints(rank - 1)])
    places = chain.add("Range", [chain.ints(0), count, chain.ints(1)])
    rows, columns = (chain.add("Unsqueeze", [places, chain.ints([at])]) for at in (1, 0))
    compared = _COMPARED[attribute(node, "exclusive", 0), attribute(node, "reverse", 0)]
    triangle = chain.add("Cast", [chain.add(compared, [rows, columns])], to=kind)
    last = axis == rank - 1
    if kind in _FLOATS:
        made = chain.add("MatMul", [value, triangle], last=last)
    else:
        spread = chain.add("Mul", [chain.add("Unsqueeze", [value, chain.ints([-1])]), triangle])
        made = chain.add("ReduceSum", [spread, chain.ints([-2])], last=last, keepdims=0)
    if not last:
        chain.add("Transpose", [made], last=True, perm=exchanged)
    return chain.nodes


def _kinds(model: onnx.ModelProto) -> list[tuple[str, tuple[Any, ...]]]:
    """Each CumSum's name, and its axis, counted from the last, with its direction."""
    graphs = every_graph(model.graph)
    if not any(node.op_type == "CumSum" for graph in graphs for node in graph.node):
        return []
    return [
        (
            node_name(node),
            (_axis(node, scope), attribute(node, "exclusive", 0), attribute(node, "reverse", 0)),
        )
        for scope in every_scope(model, opset(model))
        for node in scope.graph.node
        if node.op_type == "CumSum" and node.domain in ONNX_DOMAINS
    ]


def _axis(node: onnx.NodeProto, scope: Scope) -> int | str:
    axis, shape = scope.constant(node.input[1]), scope.shape(node.input[0])
    if axis is None:
        return str(node.input[1])
    at = int(axis.item())
    return at - len(shape) if at >= 0 and shape is not None else at


_OPERATORS = ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
_AXES_OF_SUM_ARE_AN_INPUT = 13
_AXES_ARE_AN_INPUT = 18


def find_reduced_axes(model: onnx.ModelProto) -> list[str]:
    """Return those nodes that have their axes in an attribute."""
    if opset(model) >= _AXES_ARE_AN_INPUT:
        return []
    return find_nodes(model, _OPERATORS, lambda node: attribute(node, "axes") is not None)


def by_sum(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """A reduction by ReduceSum."""
    chain, x = Chain(node, scope), node.input[0]
    axes, keep = list(attribute(node, "axes")), int(attribute(node, "keepdims", 1))
    if node.op_type == "ReduceL1":
        _sum(chain, chain.add("Abs", [x]), axes, keepdims=keep, last=True)
    elif node.op_type == "ReduceLogSum":
        chain.add("Log", [_sum(chain, x, axes, keepdims=keep)], last=True)
    else:
        kind = scope.elem_type(node, x if scope.type(x) else node.output[0])
        lowest = float(np.finfo(helper.tensor_dtype_to_np_dtype(kind)).min)
        largest = chain.add("Max", [chain.add("ReduceMax", [x], axes=axes), chain.scalar(lowest, kind)])
        powers = chain.add("Exp", [chain.add("Sub", [x, largest])])
        total = _sum(chain, powers, axes, keepdims=1)
        result = chain.add("Add", [chain.add("Log", [total]), largest], last=bool(keep))
        if not keep and chain.scope.target < _AXES_OF_SUM_ARE_AN_INPUT:
            chain.add("Squeeze", [result], axes=axes, last=True)
        elif not keep:
            chain.add("Squeeze", [result, chain.ints(axes)], last=True)
    return chain.nodes


def _sum(chain: Chain, x: str, axes: list[int], **options: Any) -> str:
    if chain.scope.target < _AXES_OF_SUM_ARE_AN_INPUT:
        return chain.add("ReduceSum", [x], axes=axes, **options)
    return chain.add("ReduceSum", [x, chain.ints(axes)], **options)


def find_requantized(model: onnx.ModelProto) -> list[str]:
    """Return the names of the layers that the optimizer would quantize further, and wrongly."""
    return [node_name(node) for _, node in requantized(model)]


def keep_layers_apart(model: onnx.ModelProto) -> list[str]:
    """Write a Sum in front of each such layer, in place; return their names."""
    found = requantized(model)
    names = [node_name(node) for _, node in found]
    for graph, layer in found:
        made, apart = layer.output[0], f"{layer.output[0]}/apart"
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if made in node.output:
                nodes.append(helper.make_node("Sum", [node.input[0]], [apart], name=apart))
                node.input[0] = apart
            nodes.append(node)
        set_nodes(graph, nodes)
    return names
