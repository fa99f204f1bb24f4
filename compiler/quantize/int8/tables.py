"""Store lookup tables of floats (embeddings) as int8.

        Gather(table, ids)      becomes      Reshape(Cast(Gather(int8, ids)) * Gather(scales, ids))

A scale belongs to a block of one row: rows of a vocabulary differ, and a scale per column would have to
fit the largest of tens of thousands. Plain operators do it, which every CPU runtime has.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from ....calibration.qparams import choose_weight_qparams, quantize
from ....model.graph import attribute, infer_shapes
from ....model.graph_edits import drop_unused_initializers, set_nodes, store

if TYPE_CHECKING:
    import onnx

BLOCK_SIZE = 128
SMALLEST = 1 << 16
"""Tables of fewer values stay as they are: they weigh nothing."""


def is_table(node: onnx.NodeProto, stored: dict[str, onnx.TensorProto]) -> bool:
    """Return whether a node looks up rows of a stored float32 table of two axes that is worth quantizing."""
    table = stored.get(node.input[0]) if node.op_type == "Gather" else None
    axis = attribute(node, "axis", 0)
    if table is None or table.data_type != 1 or len(table.dims) != 2 or axis != 0:
        return False
    return int(np.prod(table.dims)) >= SMALLEST


def large_tables(model: onnx.ModelProto, excluded: Collection[str] = ()) -> set[str]:
    """Return the names of the nodes for which `is_table` is true, and that are not excluded."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    return {node.name for node in model.graph.node if is_table(node, stored)} - set(excluded)


def quantize_tables(model: onnx.ModelProto, names: set[str]) -> None:
    """Quantize the tables of the named nodes, for each of which `is_table` is true, in place."""
    from onnx import helper, numpy_helper

    graph = model.graph
    shapes = infer_shapes(model) if names else {}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.name not in names or node.input[1] not in shapes | stored:
            continue
        table, ids, result, name = node.input[0], node.input[1], node.output[0], node.name
        axes = len(shapes[ids]) if ids in shapes else len(stored[ids].dims)
        if f"{table}/int8" not in stored:
            for tensor in _quantized(table, numpy_helper.to_array(stored[table])):
                stored[tensor.name] = tensor
                graph.initializer.append(tensor)
        whole = f"{name}/shape"
        store(graph, whole, np.array([0] * axes + [-1], np.int64))
        node.input[0], node.output[0] = f"{table}/int8", f"{result}/int8"
        made = [f"{result}/{what}" for what in ("float", "scale", "blocks")]
        nodes += [
            helper.make_node("Cast", [node.output[0]], made[:1], name=f"{name}/float", to=1),
            helper.make_node("Gather", [f"{table}/scale", ids], made[1:2], name=f"{name}/scale"),
            helper.make_node("Mul", made[:2], made[2:], name=f"{name}/scaled"),
            helper.make_node("Reshape", [made[2], whole], [result], name=f"{name}/row"),
        ]
    set_nodes(graph, nodes)
    drop_unused_initializers(graph)


def _quantized(
    name: str, values: np.ndarray[tuple[int, int], np.dtype[np.float32]]
) -> list[onnx.TensorProto]:
    """int8 [rows, blocks, block] and scales float32 [rows, blocks, 1]; symmetric."""
    from onnx import numpy_helper

    rows, columns = values.shape
    block = next(size for size in (BLOCK_SIZE, columns) if columns % size == 0)
    blocks = values.reshape(-1, block)
    qparams = choose_weight_qparams(blocks, 0)
    quantized = quantize(blocks, qparams).reshape(rows, -1, block)
    return [
        numpy_helper.from_array(quantized, f"{name}/int8"),
        numpy_helper.from_array(qparams.scale.reshape(rows, -1, 1), f"{name}/scale"),
    ]
