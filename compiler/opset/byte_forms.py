"""Move bytes as float32, for parsers that take uint8 only as the type of a model input (TensorRT).

A model with built-in preprocessing transposes, slices or joins images before it casts them:

    x uint8 ─ Transpose ─ Cast(float) ─ Div      becomes      x uint8 ─ Cast(float) ─ Transpose ─ Cast ─ Div

float32 represents every byte exactly and these operators do no arithmetic, so the values are equal. A result
that another node or a model output needs as uint8 is cast back.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...model.graph.graph import ONNX_DOMAINS, attribute, opset
from ...model.graph.graph_edits import drop_unread, drop_unused_initializers, set_nodes
from .passes import Pass
from .scope import Scope, every_scope, node_name

_MOVES = frozenset(
    """
    Clip Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Max MaxPool Min Pad
    ReduceMax ReduceMin Reshape Resize Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze Where
    """.split()
)
"""Operators that only copy or select values of their inputs; Resize does so only in mode nearest."""
_READS = frozenset("ArgMax ArgMin Cast Equal Greater GreaterOrEqual Less LessOrEqual".split())
_FLOAT, _BYTE = TensorProto.FLOAT, TensorProto.UINT8


def takes_bytes(model: onnx.ModelProto) -> bool:
    return any(value.type.tensor_type.elem_type == _BYTE for value in model.graph.input)


def bytes_to_floats(model: onnx.ModelProto) -> list[str]:
    """Let moves and comparisons of uint8 use float32, in place; return the names of the rewritten nodes."""
    scope = next(iter(every_scope(model, opset(model))))
    names, nodes = list[str](), list[onnx.NodeProto]()
    floats: dict[str, str] = {}
    for node in model.graph.node:
        moves = node.op_type in _MOVES and (
            node.op_type != "Resize" or attribute(node, "mode", "nearest") == "nearest"
        )
        is_supported = node.domain in ONNX_DOMAINS and (moves or node.op_type in _READS)
        byte_inputs = {name for name in node.input if is_supported and scope.type(name) == "tensor(uint8)"}
        if not byte_inputs or (node.op_type == "Cast" and not byte_inputs & floats.keys()):
            nodes.append(node)
            continue
        names.append(node_name(node))
        for name in byte_inputs - floats.keys():
            floats[name] = _cast_to_float(name, scope, nodes)
        node.input[:] = [floats.get(name, name) if name in byte_inputs else name for name in node.input]
        nodes.append(node)
        for index, name in enumerate(node.output if moves else ()):
            if name and scope.type(name) == "tensor(uint8)":
                floats[name] = node.output[index] = scope.fresh(f"{name}/float")
                nodes.append(helper.make_node("Cast", [floats[name]], [name], f"{name}/byte", to=_BYTE))
    if names:
        set_nodes(model.graph, nodes)
        drop_unread(model.graph, ("Cast",))
        drop_unused_initializers(model.graph)
    return names


def _cast_to_float(name: str, scope: Scope, nodes: list[onnx.NodeProto]) -> str:
    values = scope.constant(name)
    if values is not None:
        return scope.store(values.astype(np.float32), f"{name}/float")
    result = scope.fresh(f"{name}/float")
    nodes.append(helper.make_node("Cast", [name], [result], result, to=_FLOAT))
    return result


PASS = Pass(
    "bytes moved in float32",
    lambda graph: bytes_to_floats(graph.model),
    needs=lambda graph: takes_bytes(graph.model),
)
