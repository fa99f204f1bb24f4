"""Replace scatters with a reduction, for parsers that read only plain scatters (TensorRT-RTX 1.7.1).

A layer of a graph network sums the messages of all edges into their target nodes (`index_add`), or takes the
largest (`scatter_reduce`):

out[i] = data[i] + sum of updates[e] over e with index[e] = i,    data [N, ...], index [E], updates [E, ...]

Range(N) [N, 1] == index [1, E] ─ Cast [N, E] ─ MatMul(updates [E, F]) ─ Reshape as data ─ Add(data)

Maxima, minima, products, integers, and indices that differ along another axis need another form:

Range(N) [N, 1] == index [1, E] ─ Where(updates, identity) [N, E, F] ─ ReduceMax over E ─ Max(data)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from ...model.graph.graph import attribute
from .passes import form_pass
from .scope import Chain, Scope, rewriting_each

_INT64 = 7  # TensorProto.DataType
_FLOATS = (1, 10, 11, 16)  # float, float16, double, bfloat16
_REDUCTIONS: Mapping[str, tuple[str, str]] = {
    "add": ("ReduceSum", "Add"), "mul": ("ReduceProd", "Mul"),
    "max": ("ReduceMax", "Max"), "min": ("ReduceMin", "Min"),
}  # fmt: skip


def reduces(node: onnx.NodeProto) -> bool:
    return node.op_type in ("ScatterElements", "ScatterND") and attribute(node, "reduction", "none") != "none"


@rewriting_each("ScatterElements ScatterND")
def scatters_to_masks(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """Return the nodes for a scatter with a reduction; None if unfit, such as if axes are partly written."""
    data, indices, updates = node.input
    extents, tuples = scope.extents(data), scope.extents(indices)
    if not reduces(node) or not extents or not tuples:
        return None
    chain, rank, by_rows = Chain(node, scope), len(extents), True
    add, ints, kind = chain.add, chain.ints, scope.elem_type(node, data)
    axis = attribute(node, "axis", 0) % rank if node.op_type == "ScatterElements" else 0
    if node.op_type == "ScatterND":
        if tuples[-1] != 1:
            return None
    else:
        other_axes = [at for at in range(rank) if at != axis]
        if any(extents[at] != tuples[at] or extents[at] is None for at in other_axes):
            return None  # only a part of the other axes is written
        indices = scope.expanded(indices)
        by_rows = axis == 0 and (scope.shape(indices) or ())[1:] == (1,) * (rank - 1)
    count = add("Gather", [add("Shape", [data]), ints(axis)])
    rows = add("Range", [ints(0), count, ints(1)])
    index = add("Cast", [indices], to=_INT64)
    index = add("Where", [add("Less", [index, ints(0)]), add("Add", [index, count]), index])
    if by_rows:
        index, rows = add("Reshape", [index, ints([1, -1])]), add("Reshape", [rows, ints([-1, 1])])
        updates = add(
            "Flatten", [updates], axis=max(len(tuples) - 1, 1) if node.op_type == "ScatterND" else 1
        )
    else:
        index, updates = (add("Unsqueeze", [name, ints([axis])]) for name in (index, updates))
        rows = add("Reshape", [rows, ints([-1] + [1] * (rank - axis))])
    mask = add("Equal", [rows, index])
    reduction, combine = _REDUCTIONS[attribute(node, "reduction")]
    if by_rows and reduction == "ReduceSum" and kind in _FLOATS:
        reduced = add("MatMul", [add("Cast", [mask], to=kind), updates])
    else:
        mask = add("Unsqueeze", [mask, ints([2])]) if by_rows else mask
        values = add("Where", [mask, updates, chain.scalar(_identity(reduction, kind), kind)])
        reduced = chain.over_axes(reduction, values, [axis + 1], keepdims=0)
    if by_rows:
        reduced = add("Reshape", [reduced, add("Shape", [data])])
    return chain.result(add(combine, [data, reduced]))


def _identity(reduction: str, kind: int) -> float:
    if reduction in ("ReduceSum", "ReduceProd"):
        return float(reduction == "ReduceProd")
    if kind in _FLOATS:
        return -np.inf if reduction == "ReduceMax" else np.inf
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(kind))
    return limits.min if reduction == "ReduceMax" else limits.max


PASSES = tuple(form_pass(name, scatters_to_masks) for name in ("ScatterElements", "ScatterND"))
