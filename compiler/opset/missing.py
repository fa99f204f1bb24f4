"""Write operators that a reader of ONNX files lacks in operators that it has, or refuse them by name.

    IsInf                          Equal(Abs(x), inf), or Equal(x, +-inf)
    CastLike                       Cast, where the type is known
    those of `decompose`           LayerNormalization, RMSNormalization, Gelu, ...
    what ONNX defines by others    Swish, RotaryEmbedding, Attention, HannWindow, ... (`function_bodies`)

The opset stays. What lacks is data of the reader: it differs with its version.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UnsupportedOperator
from ...model.graph import ONNX_DOMAINS, attribute, every_graph
from ...model.graph_edits import drop_unread, drop_unused_initializers
from ...model.onnx_file import opset
from .decompose import DECOMPOSITIONS
from .function_bodies import write_out
from .rewrites import Rewrite, cast_to_known
from .scope import Scope, replace_nodes

if TYPE_CHECKING:
    import onnx

_DEEPEST = 8  # bodies within bodies


def is_inf_by_comparison(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """IsInf as a comparison with infinity, of one sign or of both."""
    from onnx import helper

    signs = [
        sign
        for sign, name in ((1.0, "detect_positive"), (-1.0, "detect_negative"))
        if attribute(node, name, 1)
    ]
    name, value = node.output[0], node.input[0]
    dtype = helper.tensor_dtype_to_np_dtype(scope.elem_type(node, value))
    if not signs:
        raise scope.refusal(node, "it detects neither sign")
    infinity = scope.store(np.array(signs[0] * np.inf, dtype), f"{name}/infinity")
    made: list[onnx.NodeProto] = []
    if len(signs) == 2:
        magnitude = scope.fresh(f"{name}/magnitude")
        made.append(helper.make_node("Abs", [value], [magnitude], scope.fresh(f"{node.name}/magnitude")))
        value = magnitude
    return [*made, helper.make_node("Equal", [value, infinity], [name], node.name)]


_FORMS: dict[str, Rewrite] = {**DECOMPOSITIONS, "IsInf": is_inf_by_comparison, "CastLike": cast_to_known}


def without_missing(model: onnx.ModelProto, operators: Container[str]) -> list[str]:
    """Write what lacks in other operators, in place; return the names of the nodes that were replaced.

    Args:
        model: It is changed.
        operators: What the reader has. What ONNX does not define is left to it: a plugin may be of that name.
    """
    version, replaced = opset(model), list[str]()
    changed = True

    def other(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
        nonlocal changed
        if not _lacks(node, operators, version):
            return [node]
        form = _FORMS.get(node.op_type)
        nodes = form(node, scope) if form else write_out(node, scope, version)
        if not nodes or any(made.op_type == node.op_type for made in nodes):
            return [node]
        changed = True
        replaced.append(node.name or node.output[0])
        return nodes

    for _ in range(_DEEPEST):
        if not changed:
            break
        changed = False
        replace_nodes(model, version, other)
    if replaced:
        drop_unread(model.graph)
        drop_unused_initializers(model.graph)
    return replaced


def require_operators(model: onnx.ModelProto, operators: Container[str], reader: str, file: str) -> None:
    """Refuse a model with a node whose operator the reader lacks.

    Args:
        model: After `without_missing`.
        operators: What the reader has.
        reader: Its name and version, for the message.
        file: Which file the model is of, for the message.

    Raises:
        UnsupportedOperator: Naming the first such operator, its node and the reader.
    """
    version = opset(model)
    for graph in every_graph(model.graph):
        for node in graph.node:
            if _lacks(node, operators, version):
                name = node.name or f"making {', '.join(node.output)}"
                raise UnsupportedOperator(
                    f"{file}: {reader} has no {node.op_type}: node {name!r} of opset {version}, which has "
                    "no form in other operators here",
                    hint="write it with other operators in the model, use a version that has it, or give "
                    "`plugins` with an operator of that name",
                    operator=node.op_type,
                    node=node.name,
                )


def _lacks(node: onnx.NodeProto, operators: Container[str], version: int) -> bool:
    import onnx

    if node.domain not in ONNX_DOMAINS or node.op_type in operators:
        return False
    try:
        onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return False
    return True
