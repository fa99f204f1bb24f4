"""Rewrite two-axis products before an Add into the form that ONNX Runtime runs as integer kernels.

A bias becomes the product's own:

    x ─ MatMul(w) ─ Add(b) ─ y      becomes      x ─ Gemm(w, b) ─ y

ONNX Runtime's own optimizer would join the two after Q/DQ are placed, also where the Add is of another
activation: its Gemm then has a float bias, for which there is no integer kernel, and the product runs in
float (1.31.1). Such an Add of activations is written as Sum, which computes the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from ....model.graph import consumers, infer_shapes, producers
from ....model.graph_edits import store

if TYPE_CHECKING:
    import onnx


def join_biases(model: onnx.ModelProto, *, exclude: Collection[str] = ()) -> list[str]:
    """Rewrite a prepared model, and return the names of the nodes that became a Gemm; they keep their names.

    Args:
        model: From `prepare.prepared`; it is changed.
        exclude: Names of nodes that stay as they are.
    """
    from onnx import numpy_helper

    graph = model.graph
    readers, shapes = consumers(graph), infer_shapes(model)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    outputs = {value.name for value in graph.output}
    joined = []
    for node in list(graph.node):
        behind = readers.get(node.output[0], []) if node.op_type == "MatMul" else []
        weight = stored.get(node.input[1]) if behind else None
        if weight is None or len(weight.dims) != 2 or len(shapes.get(node.input[0], ())) != 2:
            continue
        if len(behind) != 1 or behind[0].op_type != "Add" or node.output[0] in outputs:
            continue
        add = behind[0]
        name = next((name for name in add.input if name != node.output[0]), "")
        bias = stored.get(name)
        channels = weight.dims[1]
        fits = bias is not None and list(bias.dims) in ([channels], [1, channels], [1], [])
        if bias is None or not fits or {node.name, add.name} & set(exclude):
            continue
        if len(readers[name]) > 1 or list(bias.dims) != [channels]:  # its int32 scale differs with each
            plain = np.broadcast_to(numpy_helper.to_array(bias).reshape(-1), (channels,)).copy()
            name = store(graph, f"{name}/{node.name}", plain)
        node.op_type = "Gemm"
        node.input.append(name)
        node.output[0] = add.output[0]
        graph.node.remove(add)
        joined.append(node.name)
    return joined


def keep_adds_apart(model: onnx.ModelProto, planned: set[str]) -> None:
    """Write each Add of two activations behind a planned product of two axes as Sum.

    Args:
        model: With Q/DQ; it is changed.
        planned: Names of the quantized nodes.
    """
    made_by, shapes = producers(model.graph), infer_shapes(model)
    stored = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "Add" or node.name in planned or stored & set(node.input):
            continue
        before = [made_by.get(name) for name in node.input]
        products = [one for one in before if one is not None and one.op_type == "MatMul"]
        if any(one.name in planned and len(shapes.get(one.output[0], ())) == 2 for one in products):
            node.op_type = "Sum"
