"""Write CumSum as a product with a triangle of ones, where a runtime mixes up the axes of several.

    CumSum(x, axis) [.., n]      becomes      x ─ MatMul(Range(n)[:, None] <= Range(n)[None, :]), floats
                                              ReduceSum(x[.., :, None] * triangle, axis -2), integers

Other comparisons stand for `exclusive` and `reverse`; an axis that is not the last is exchanged with it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...model.graph import ONNX_DOMAINS, attribute, every_graph
from ...model.onnx_file import opset
from .decompose import Chain
from .scope import Scope, every_scope, replace_nodes

if TYPE_CHECKING:
    import onnx

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


def cumsums_to_products(model: onnx.ModelProto) -> None:
    """Write the CumSums that `find_mixed_cumsums` finds as products, where their axis is stored."""
    found = set(find_mixed_cumsums(model))

    def product(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
        if node.op_type != "CumSum" or _name(node) not in found:
            return [node]
        axis, shape = scope.constant(node.input[1]), scope.shape(node.input[0])
        if axis is None or shape is None or not scope.type(node.input[0]):
            return [node]
        return _product(node, scope, int(axis.item()) % len(shape), len(shape))

    replace_nodes(model, opset(model), product)


def _product(node: onnx.NodeProto, scope: Scope, axis: int, rank: int) -> list[onnx.NodeProto]:
    from onnx import TensorProto

    chain, value = Chain(node, scope), node.input[0]
    kind = scope.elem_type(node, value)

    def ints(*values: int) -> str:
        return scope.store(np.array(values, np.int64), f"{node.output[0]}/ints")

    exchanged = list(range(rank))
    exchanged[axis], exchanged[-1] = exchanged[-1], axis
    if axis != rank - 1:
        value = chain.add("Transpose", [value], perm=exchanged)
    extent = chain.add("Slice", [chain.add("Shape", [value]), ints(rank - 1), ints(rank)])
    count = chain.add("Squeeze", [extent, ints(0)])
    zero, one = (scope.store(np.array(number, np.int64), "number") for number in (0, 1))
    places = chain.add("Range", [zero, count, one])
    rows, columns = (chain.add("Unsqueeze", [places, ints(at)]) for at in (1, 0))
    compared = _COMPARED[attribute(node, "exclusive", 0), attribute(node, "reverse", 0)]
    triangle = chain.add("Cast", [chain.add(compared, [rows, columns])], to=kind)
    last = axis == rank - 1
    if kind in _FLOATS:
        made = chain.add("MatMul", [value, triangle], last=last)
    else:
        assert kind != TensorProto.BOOL  # which CumSum does not take
        spread = chain.add("Mul", [chain.add("Unsqueeze", [value, ints(-1)]), triangle])
        made = chain.add("ReduceSum", [spread, ints(-2)], last=last, keepdims=0)
    if not last:
        chain.add("Transpose", [made], last=True, perm=exchanged)
    return chain.nodes


def _kinds(model: onnx.ModelProto) -> list[tuple[str, tuple[Any, ...]]]:
    """Each CumSum's name, and its axis, counted from the last, with its direction."""
    graphs = every_graph(model.graph)
    if not any(node.op_type == "CumSum" for graph in graphs for node in graph.node):
        return []
    return [
        (_name(node), (_axis(node, scope), attribute(node, "exclusive", 0), attribute(node, "reverse", 0)))
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


def _name(node: onnx.NodeProto) -> str:
    return str(node.name or node.output[0])
