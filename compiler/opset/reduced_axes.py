"""Write reductions so that no reader misses their axes, which are an attribute before opset 18.

ReduceL1(x)            ReduceSum(Abs(x))
ReduceLogSum(x)        Log(ReduceSum(x))
ReduceLogSumExp(x)     m = Max(ReduceMax(x), lowest);  Log(ReduceSum(Exp(x - m))) + m, without the axes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...model.graph import ONNX_DOMAINS, attribute, every_graph
from ...model.onnx_file import opset
from .decompose import Chain
from .exact_forms import rewriting
from .scope import Scope

if TYPE_CHECKING:
    import onnx

_OPERATORS = ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
_AXES_OF_SUM_ARE_AN_INPUT = 13
_AXES_ARE_AN_INPUT = 18


def find_reduced_axes(model: onnx.ModelProto) -> list[str]:
    """Return those nodes that have their axes in an attribute."""
    if opset(model) >= _AXES_ARE_AN_INPUT:
        return []
    return [
        str(node.name or node.output[0])
        for graph in every_graph(model.graph)
        for node in graph.node
        if node.op_type in _OPERATORS and node.domain in ONNX_DOMAINS and attribute(node, "axes") is not None
    ]


def by_sum(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """A reduction by ReduceSum."""
    from onnx import helper

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
        if not keep:
            _squeeze(chain, result, axes)
    return chain.nodes


sums_of_axes = rewriting(find_reduced_axes, by_sum)


def _sum(chain: Chain, x: str, axes: list[int], **options: Any) -> str:
    if chain.scope.target < _AXES_OF_SUM_ARE_AN_INPUT:
        return chain.add("ReduceSum", [x], axes=axes, **options)
    return chain.add("ReduceSum", [x, _stored(chain, axes)], **options)


def _squeeze(chain: Chain, x: str, axes: list[int]) -> str:
    if chain.scope.target < _AXES_OF_SUM_ARE_AN_INPUT:
        return chain.add("Squeeze", [x], axes=axes, last=True)
    return chain.add("Squeeze", [x, _stored(chain, axes)], last=True)


def _stored(chain: Chain, axes: list[int]) -> str:
    return chain.scope.store(np.array(axes, np.int64), f"{chain.node.output[0]}/axes")
