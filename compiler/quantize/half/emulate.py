"""Emulate bfloat16: compute in float32 and round after every node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....model.graph import infer_types
from ....model.graph_edits import set_nodes
from ....model.onnx_file import copy_model

if TYPE_CHECKING:
    import onnx


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a float32 model that computes what a bfloat16 one does, up to the order of sums.

    Every bfloat16 tensor becomes float32 and holds bfloat16 values: hardware multiplies bfloat16 exactly
    and sums in float32 too.
    """
    from onnx import TensorProto, helper, numpy_helper

    copy = copy_model(model)
    graph = copy.graph
    rounded = {name for name, dtype in infer_types(model).items() if dtype == "bfloat16"}
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.BFLOAT16:
            values = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype") and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
        for index, name in enumerate(node.output):
            if name in rounded:
                node.output[index], narrow = f"{name}/wide", f"{name}/narrow"
                to = TensorProto.BFLOAT16
                nodes.append(helper.make_node("Cast", [node.output[index]], [narrow], to=to))
                nodes.append(helper.make_node("Cast", [narrow], [name], to=TensorProto.FLOAT))
    del graph.value_info[:]
    set_nodes(graph, nodes)
    return copy
