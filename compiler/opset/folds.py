"""Rewrite Col2Im of disjoint blocks as a Transpose between two Reshapes, for runtimes without Col2Im.

    x [N, C bh bw, H/bh W/bw] ─ Reshape [N, C, bh, bw, H/bh, W/bw]
                              ─ Transpose [N, C, H/bh, bh, W/bw, bw] ─ Reshape [N, C, H, W]

PyTorch's `fold` with a stride as wide as its kernel is such: patches of an image go back to their places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...model.graph import attribute
from ...model.graph_edits import drop_unused_initializers, set_nodes, store

if TYPE_CHECKING:
    import onnx

_APART = (0, 1, 4, 2, 5, 3)


def folds_to_transposes(model: onnx.ModelProto) -> list[str]:
    """Rewrite each Col2Im of an image whose blocks do not overlap, and return the names of those nodes.

    Overlapping blocks, padding, and extents that are computed at run time stay.

    Args:
        model: Of opset 18 or newer; it is changed.
    """
    from onnx import numpy_helper

    graph = model.graph
    known = {
        tensor.name: [int(value) for value in numpy_helper.to_array(tensor)]
        for tensor in graph.initializer
        if len(tensor.dims) == 1 and tensor.dims[0] == 2 and tensor.data_type == 7
    }
    nodes: list[onnx.NodeProto] = []
    rewritten = []
    for node in graph.node:
        fits = node.op_type == "Col2Im" and node.input[1] in known and node.input[2] in known
        if not fits or not _apart(node, known[node.input[2]]):
            nodes.append(node)
            continue
        nodes += _transposed(graph, node, known[node.input[1]], known[node.input[2]])
        rewritten.append(node.name)
    set_nodes(graph, nodes)
    if rewritten:
        drop_unused_initializers(graph)
    return rewritten


def _apart(node: onnx.NodeProto, block: list[int]) -> bool:
    """Whether blocks lie side by side: strides as wide as they are, no pads, no dilations."""
    plain = attribute(node, "dilations", [1, 1]) == [1, 1] and not any(attribute(node, "pads", []))
    return plain and bool(attribute(node, "strides", [1, 1]) == block)


def _transposed(
    graph: onnx.GraphProto, node: onnx.NodeProto, image: list[int], block: list[int]
) -> list[onnx.NodeProto]:
    from onnx import helper

    (height, width), (rows, columns), name = image, block, node.name or node.output[0]
    blocks = [0, -1, rows, columns, height // rows, width // columns]
    blocks_shape = store(graph, f"{name}/blocks", np.array(blocks, np.int64))
    image_shape = store(graph, f"{name}/image", np.array([0, -1, height, width], np.int64))
    split, apart = f"{name}/split", f"{name}/apart"
    return [
        helper.make_node("Reshape", [node.input[0], blocks_shape], [split], name=split),
        helper.make_node("Transpose", [split], [apart], name=apart, perm=_APART),
        helper.make_node("Reshape", [apart, image_shape], [node.output[0]], name=name),
    ]
