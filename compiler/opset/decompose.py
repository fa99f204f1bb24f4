"""Decompose operators that older opsets lack into operators that runtimes fuse again.

    Gelu (20)                       x / 2 * (1 + Erf(x / sqrt(2))), or with Tanh
    RMSNormalization (23)           x / Sqrt(ReduceMean(x * x) + epsilon) * scale
    LayerNormalization (17)         (x - mean) / Sqrt(variance + epsilon) * scale + bias
    GroupNormalization (18, 21)     Reshape, InstanceNormalization, Reshape, Mul, Add

What has no decomposition here is written as ONNX itself defines it (`function_bodies`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...model.graph import attribute
from .rewrites import Rewrite
from .scope import Scope

if TYPE_CHECKING:
    import onnx


class Chain:
    """Nodes one behind the other, named after the one they stand for."""

    def __init__(self, node: onnx.NodeProto, scope: Scope) -> None:
        self.node, self.scope = node, scope
        self.nodes: list[onnx.NodeProto] = []

    def add(self, operator: str, operands: Sequence[str], *, last: bool = False, **attributes: Any) -> str:
        """Append a node; return the name of what it makes, the replaced node's own output for the last."""
        from onnx import helper

        what = f"{self.node.output[0]}/{operator.lower()}"
        made = self.node.output[0] if last else self.scope.fresh(what)
        name = self.scope.fresh(f"{self.node.name or self.node.output[0]}/{operator}")
        self.nodes.append(helper.make_node(operator, operands, [made], name, **attributes))
        return str(made)

    def scalar(self, value: float, kind: int) -> str:
        """Store a number of an element type."""
        from onnx import helper

        dtype = helper.tensor_dtype_to_np_dtype(kind)
        return self.scope.store(np.array(value, dtype), f"{self.node.output[0]}/constant")

    def column(self, name: str, axes: int) -> str:
        """Return a vector with so many axes of one element behind its own."""
        values = self.scope.constant(name)
        if values is not None:
            return self.scope.store(values.reshape(-1, *[1] * axes), f"{name}/column")
        shape = self.scope.store(np.array([-1] + [1] * axes, np.int64), f"{name}/column")
        return self.add("Reshape", [name, shape])

    def mean(self, name: str, axes: list[int]) -> str:
        """Take the mean over axes, which are an operand from opset 18 on."""
        if self.scope.target < 18:
            return self.add("ReduceMean", [name], axes=axes)
        return self.add("ReduceMean", [name, self.scope.store(np.array(axes, np.int64), f"{name}/axes")])


def gelu(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Gelu, in the form in which exporters have always written it."""
    chain, x = Chain(node, scope), node.input[0]
    kind = scope.elem_type(node, x if scope.type(x) else node.output[0])
    one, half = chain.scalar(1.0, kind), chain.scalar(0.5, kind)
    if attribute(node, "approximate", "none") == "tanh":
        cubed = chain.add("Pow", [x, chain.scalar(3.0, kind)])
        inner = chain.add("Add", [x, chain.add("Mul", [chain.scalar(0.044715, kind), cubed])])
        scaled = chain.add("Mul", [chain.scalar(math.sqrt(2 / math.pi), kind), inner])
        bent = chain.add("Tanh", [scaled])
    else:
        bent = chain.add("Erf", [chain.add("Div", [x, chain.scalar(math.sqrt(2), kind)])])
    product = chain.add("Mul", [x, chain.add("Add", [bent, one])])
    chain.add("Mul", [product, half], last=True)
    return chain.nodes


def group_normalization(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """GroupNormalization: one scale per group in opset 18, one per channel from 21 on.

    The statistics are those of float32 by default (stash_type), so a half is cast for them.
    """
    from onnx import TensorProto, helper

    chain, (x, scale, bias) = Chain(node, scope), node.input
    rank, kind = scope.rank(node, x), scope.elem_type(node, x)
    groups = int(attribute(node, "num_groups", 0))
    scales = scope.shape(scale)
    if scales is None or scales[0] is None:
        raise scope.refusal(node, f"whether {scale!r} is per group or per channel is not known")
    stash = attribute(node, "stash_type", TensorProto.FLOAT)
    if stash != TensorProto.FLOAT or kind == TensorProto.DOUBLE:
        stash = kind
    shape = chain.add("Shape", [x])
    value = x if stash == kind else chain.add("Cast", [x], to=stash)
    each = scope.store(np.array([0, groups, -1], np.int64), f"{shape}/groups")
    value = chain.add("Reshape", [value, each])
    dtype = helper.tensor_dtype_to_np_dtype(stash)
    ones = scope.store(np.ones(groups, dtype), f"{shape}/ones")
    zeros = scope.store(np.zeros(groups, dtype), f"{shape}/zeros")
    epsilon = attribute(node, "epsilon", 1e-5)
    value = chain.add("InstanceNormalization", [value, ones, zeros], epsilon=epsilon)
    if stash != kind:
        value = chain.add("Cast", [value], to=kind)
    if scales[0] == groups:
        value = chain.add("Mul", [value, chain.column(scale, 1)])
        value = chain.add("Add", [value, chain.column(bias, 1)])
        chain.add("Reshape", [value, shape], last=True)
    else:
        value = chain.add("Mul", [chain.add("Reshape", [value, shape]), chain.column(scale, rank - 2)])
        chain.add("Add", [value, chain.column(bias, rank - 2)], last=True)
    return chain.nodes


def rms_normalization(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """RMSNormalization, whose mean of squares is that of float32 by default (stash_type)."""
    from onnx import TensorProto

    chain, (x, scale) = Chain(node, scope), node.input
    rank, kind = scope.rank(node, x), scope.elem_type(node, x)
    stash = attribute(node, "stash_type", TensorProto.FLOAT)
    axis = attribute(node, "axis", -1) % rank
    value = x if stash == kind else chain.add("Cast", [x], to=stash)
    square = chain.add("Mul", [value, value])
    mean = chain.mean(square, list(range(axis, rank)))
    epsilon = chain.scalar(attribute(node, "epsilon", 1e-5), stash)
    root = chain.add("Sqrt", [chain.add("Add", [mean, epsilon])])
    value = chain.add("Div", [value, root])
    value = value if stash == kind else chain.add("Cast", [value], to=kind)
    if scope.elem_type(node, scale) != kind:
        raise scope.refusal(node, f"{scale!r} is of another type than {x!r}")
    chain.add("Mul", [value, scale], last=True)
    return chain.nodes


def layer_normalization(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """LayerNormalization, as exporters wrote it before there was one; statistics as `rms_normalization`."""
    from onnx import TensorProto

    chain, (x, scale, *bias) = Chain(node, scope), node.input
    if len([name for name in node.output if name]) > 1:
        raise scope.refusal(node, "its mean and deviation are read, which only newer opsets return")
    rank, kind = scope.rank(node, x), scope.elem_type(node, x)
    stash = attribute(node, "stash_type", TensorProto.FLOAT)
    axes = list(range(attribute(node, "axis", -1) % rank, rank))
    value = x if stash == kind else chain.add("Cast", [x], to=stash)
    value = chain.add("Sub", [value, chain.mean(value, axes)])
    variance = chain.mean(chain.add("Mul", [value, value]), axes)
    epsilon = chain.scalar(attribute(node, "epsilon", 1e-5), stash)
    value = chain.add("Div", [value, chain.add("Sqrt", [chain.add("Add", [variance, epsilon])])])
    value = value if stash == kind else chain.add("Cast", [value], to=kind)
    given = [name for name in bias if name]
    value = chain.add("Mul", [value, scale], last=not given)
    if given:
        chain.add("Add", [value, given[0]], last=True)
    return chain.nodes


DECOMPOSITIONS: dict[str, Rewrite] = {
    "Gelu": gelu,
    "LayerNormalization": layer_normalization,
    "GroupNormalization": group_normalization,
    "RMSNormalization": rms_normalization,
}
"""Operator to what makes it of operators that the older opset has."""
