"""Keep ONNX Runtime's optimizer from quantizing layers further than the graph says (`model/requantized`).

    x ─ DQ ─ Conv        becomes        x ─ DQ ─ Sum ─ Conv

A Sum of one operand is that operand. The optimizer only looks at layers right behind a DequantizeLinear, and
removes an Identity, but not a Sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.graph_edits import set_nodes
from ...model.requantized import requantized

if TYPE_CHECKING:
    import onnx


def find_requantized(model: onnx.ModelProto) -> list[str]:
    """Return the names of the layers that the optimizer would quantize further, and wrongly."""
    return [node.name or node.output[0] for _, node in requantized(model)]


def keep_layers_apart(model: onnx.ModelProto) -> list[str]:
    """Write a Sum in front of each such layer, in place; return their names."""
    from onnx import helper

    found = requantized(model)
    names = [node.name or node.output[0] for _, node in found]
    for graph, layer in found:
        made, apart = layer.output[0], f"{layer.output[0]}/apart"
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if made in node.output:
                nodes.append(helper.make_node("Sum", [node.input[0]], [apart], name=apart))
                node.input[0] = apart
            nodes.append(node)
        set_nodes(graph, nodes)
    return names
