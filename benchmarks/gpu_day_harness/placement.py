"""The two placements of Q/DQ before a residual add, of one quantized graph.

    one:  conv ──────────▶ Add ◀── Q/DQ ── residual        the convolution can take the add into its kernel
    two:  conv ── Q/DQ ──▶ Add ◀── Q/DQ ── residual

Source: NVIDIA/TensorRT main:tools/tensorflow-quantization/docs/source/notebooks, "Add custom Q/DQ cases", and
pytorch-quantization's ResNet, which quantize the residual branch alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


def residual_convolutions(model: onnx.ModelProto) -> Iterator[tuple[Any, int, Any]]:
    """Yield each Add of a residual, the index of its input that a convolution makes alone, and that Conv.

    Where both inputs come from convolutions, as in the first block of a stage, the first counts.
    """
    made_by = {output: node for node in model.graph.node for output in node.output}
    for node in model.graph.node:
        if node.op_type != "Add":
            continue
        for index, name in enumerate(node.input):
            source = _behind(made_by, name)
            if source is not None and source.op_type == "Conv":
                yield node, index, source
                break


def with_one(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph without Q/DQ between a convolution and its residual add."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for add, index, conv in list(residual_convolutions(found)):
        add.input[index] = conv.output[0]
    _drop_unused(found)
    return found


def with_two(model: onnx.ModelProto, amax: Mapping[str, float]) -> onnx.ModelProto:
    """Return the graph with Q/DQ on both inputs of each residual add.

    Args:
        model: With Q/DQ on the residual branches.
        amax: Conv to the largest magnitude of its output.
    """
    found = with_one(model)
    nodes = list(found.graph.node)
    for add, index, conv in list(residual_convolutions(found)):
        scale, zero, stored, back = (f"second.{conv.name}.{end}" for end in ("scale", "zero", "q", "dq"))
        found.graph.initializer.append(numpy_helper.from_array(np.float32(amax[conv.name] / 127), scale))
        found.graph.initializer.append(numpy_helper.from_array(np.int8(0), zero))
        pair = [
            helper.make_node("QuantizeLinear", [conv.output[0], scale, zero], [stored], stored),
            helper.make_node("DequantizeLinear", [stored, scale, zero], [back], back),
        ]
        position = next(place for place, node in enumerate(nodes) if node.name == add.name)
        nodes[position].input[index] = back
        nodes[position:position] = pair
    del found.graph.node[:]
    found.graph.node.extend(nodes)
    return found


def pairs(model: onnx.ModelProto) -> int:
    """Return how many pairs of Q/DQ are on activations."""
    constants = {item.name for item in model.graph.initializer}
    return sum(n.op_type == "QuantizeLinear" and n.input[0] not in constants for n in model.graph.node)


def _behind(made_by: Mapping[str, Any], name: str) -> Any:
    """What makes a tensor, looking through one pair of Q/DQ."""
    node = made_by.get(name)
    for kind in ("DequantizeLinear", "QuantizeLinear"):
        if node is not None and node.op_type == kind:
            node = made_by.get(node.input[0])
    return node


def _drop_unused(model: onnx.ModelProto) -> None:
    outputs = {value.name for value in model.graph.output}
    while True:
        used = outputs | {name for node in model.graph.node for name in node.input}
        dead = [node for node in model.graph.node if not used & set(node.output)]
        for node in dead:
            model.graph.node.remove(node)
        if not dead:
            break
    for item in [item for item in model.graph.initializer if item.name not in used]:
        model.graph.initializer.remove(item)
