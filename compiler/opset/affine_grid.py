"""Rewrite AffineGrid as a MatMul for runtimes without it: ONNX's function body (opset 20) is invalid.

    theta [N, r, r + 1] ─ Transpose ─┐
    points [P, r + 1] ────────── MatMul [N, P, r] ─ Reshape [N, (D), H, W, r]

A row of `points` holds the coordinates of a grid point, x first, followed by 1. Of n points along an axis,
point k is at (2 k + 1) / n - 1. With align_corners it is at 1 - 2 (n - 1 - k) / (n - 1), and at 1 if n = 1,
as in ONNX Runtime.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from ...model.graph.graph import attribute
from .scope import Chain, Scope

_FLOAT, _DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


def affine_grid(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return the nodes of opset 13 that replace an AffineGrid."""
    chain, (theta, size) = Chain(node, scope), node.input
    add, ints, kind = chain.add, chain.ints, scope.elem_type(node, theta)
    extents = scope.shape(theta)
    if extents is None or extents[1] is None:
        raise scope.unsupported(node, f"the number of axes of {theta!r} is not known")
    rank, computed = extents[1], _DOUBLE if kind == _DOUBLE else _FLOAT
    spatial = add("Slice", [size, ints([2]), ints([rank + 2])])
    one = chain.scalar(1, computed)
    columns = []
    for axis in reversed(range(rank)):
        other_axes = [index for index in range(rank) if index != axis]
        coordinates = _coordinates(node, chain, add("Gather", [size, ints(axis + 2)]), computed, one)
        columns.append(add("Expand", [chain.over_axes("Unsqueeze", coordinates, other_axes), spatial]))
    columns = [chain.over_axes("Unsqueeze", name, [-1]) for name in (*columns, add("Expand", [one, spatial]))]
    points = add("Reshape", [add("Concat", columns, axis=-1), ints([-1, rank + 1])])
    product = add("MatMul", [chain.cast(points, computed, kind), add("Transpose", [theta], perm=[0, 2, 1])])
    batch = add("Slice", [size, ints([0]), ints([1])])
    return chain.result(add("Reshape", [product, add("Concat", [batch, spatial, ints([rank])], axis=0)]))


def _coordinates(node: onnx.NodeProto, chain: Chain, count: str, kind: int, one: str) -> str:
    """Return the tensor [n] of the coordinates of n points along an axis."""
    add, ints, two = chain.add, chain.ints, chain.scalar(2, kind)
    indices = add("Range", [ints(0), count, ints(1)])
    if attribute(node, "align_corners", 0):
        last = add("Sub", [count, ints(1)])
        distance = add("Mul", [add("Cast", [add("Sub", [last, indices])], to=kind), two])
        return add("Sub", [one, add("Div", [distance, add("Cast", [add("Max", [last, ints(1)])], to=kind)])])
    odd = add("Add", [add("Mul", [add("Cast", [indices], to=kind), two]), one])
    return add("Sub", [add("Div", [odd, add("Cast", [count], to=kind)]), one])
