"""Rewrite Gathers by a matrix of indices into the form that OpenVINO's low-precision passes match.

    Gather(x, indices[2,12])      becomes      Reshape(Gather(x, indices[24]))

A convolution's scales per channel, [1, C, 1, 1], are moved behind the Gather that follows it. Behind one that
adds an axis they no longer fit, and compilation fails with "Argument shapes are inconsistent" (2026.4): the
windows of a halo attention are such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....model.graph import attribute, infer_shapes
from ....model.graph_edits import drop_unused_initializers, set_nodes, store

if TYPE_CHECKING:
    import onnx


def gather_by_vectors(model: onnx.ModelProto) -> None:
    """Rewrite the Gathers of activations by stored indices of two or more axes, in place.

    One stays as it is where more than one axis behind the gathered one has an unknown extent.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    shapes, stored = infer_shapes(model), {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        indices = stored.get(node.input[1]) if node.op_type == "Gather" else None
        shape = shapes.get(node.input[0])
        if indices is None or len(indices.dims) < 2 or not shape or node.input[0] in stored:
            continue
        axis = attribute(node, "axis", 0) % len(shape)
        behind = [extent if isinstance(extent, int) else -1 for extent in shape[axis + 1 :]]
        if behind.count(-1) > 1:
            continue
        whole = np.array([0] * axis + [*indices.dims, *behind], np.int64)  # 0: as it comes in
        flat = store(graph, f"{node.name}/indices", numpy_helper.to_array(indices).reshape(-1))
        target, result = store(graph, f"{node.name}/shape", whole), f"{node.name}/flat"
        nodes.append(
            helper.make_node("Reshape", [result, target], [node.output[0]], name=f"{node.name}/reshape")
        )
        node.input[1], node.output[0] = flat, result
    set_nodes(graph, nodes)
    drop_unused_initializers(graph)
