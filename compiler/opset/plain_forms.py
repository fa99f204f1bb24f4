"""Rewrite operators into forms that TensorRT's parser reads: Einsum in lower case, EyeLike by ranges.

    EyeLike(x)      becomes      Cast(Equal(rows[:, None] + k, columns[None, :]))

Its parser takes capital letters of an equation for invalid characters, and an EyeLike of free extents not at
all (TensorRT-RTX 1.7.1).
"""

from __future__ import annotations

from string import ascii_lowercase
from typing import TYPE_CHECKING

import numpy as np

from ...model.graph import attribute, infer_types
from ...model.graph_edits import set_nodes, store

if TYPE_CHECKING:
    import onnx


def einsums_in_lower_case(model: onnx.ModelProto) -> list[str]:
    """Rename the axes of each Einsum that has capital ones, in place; return the names of those nodes."""
    renamed = []
    for node in model.graph.node:
        equation = next((one for one in node.attribute if one.name == "equation"), None)
        if node.op_type != "Einsum" or equation is None:
            continue
        text = equation.s.decode()
        axes = dict.fromkeys(letter for letter in text if letter.isalpha())
        if text == text.lower() or len(axes) > len(ascii_lowercase):
            continue
        free = iter(letter for letter in ascii_lowercase if letter not in axes)
        names = {axis: axis if axis.islower() else next(free) for axis in axes}
        equation.s = "".join(names.get(letter, letter) for letter in text).encode()
        renamed.append(node.name)
    return renamed


def eyes_to_ranges(model: onnx.ModelProto) -> list[str]:
    """Rewrite each EyeLike, and return the names of those nodes.

    Args:
        model: Of opset 13 or newer; it is changed.
    """
    eyes = [node for node in model.graph.node if node.op_type == "EyeLike"]
    if not eyes:
        return []
    from onnx import helper

    types = infer_types(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "EyeLike":
            nodes.append(node)
            continue
        own = attribute(node, "dtype", 0)
        kind = own or helper.np_dtype_to_tensor_dtype(np.dtype(types[node.input[0]]))
        nodes += _ranges(model.graph, node, kind)
    set_nodes(model.graph, nodes)
    return [node.name for node in eyes]


def _ranges(graph: onnx.GraphProto, node: onnx.NodeProto, kind: int) -> list[onnx.NodeProto]:
    from onnx import helper

    name = node.name or node.output[0]

    def stored(what: str, value: list[int] | int) -> str:
        return store(graph, f"{name}/{what}", np.array(value, np.int64))

    made: list[onnx.NodeProto] = []

    def add(operator: str, inputs: list[str], what: str, **attributes: int) -> str:
        made.append(
            helper.make_node(operator, inputs, [f"{name}/{what}"], name=f"{name}/{what}", **attributes)
        )
        return f"{name}/{what}"

    zero, one = stored("zero", 0), stored("one", 1)
    rows_axis, columns_axis = stored("axis_1", [1]), stored("axis_0", [0])
    shift = stored("k", attribute(node, "k", 0))
    shape = add("Shape", [node.input[0]], "shape")
    rows = add("Range", [zero, add("Gather", [shape, zero], "height"), one], "rows")
    columns = add("Range", [zero, add("Gather", [shape, one], "width"), one], "columns")
    diagonal = add("Unsqueeze", [add("Add", [rows, shift], "shifted"), rows_axis], "diagonal")
    where = add("Equal", [diagonal, add("Unsqueeze", [columns, columns_axis], "across")], "where")
    made.append(helper.make_node("Cast", [where], list(node.output), name=name, to=kind))
    return made
