"""The two placements of Q/DQ before a residual add. The quantizer's is the first:

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
        makers = [made_by.get(name) for name in node.input] if node.op_type == "Add" else []
        for index, maker in enumerate(makers):
            if maker is not None and maker.op_type == "Conv":
                yield node, index, maker
                break


def with_two(model: onnx.ModelProto, amax: Mapping[str, float]) -> onnx.ModelProto:
    """Return a graph that has Q/DQ on the residual branches with Q/DQ on both inputs of each residual add.

    Args:
        model: As the quantizer makes it.
        amax: Conv to the largest magnitude of its output.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    for add, index, conv in list(residual_convolutions(changed)):
        scale, zero, stored, back = (f"second.{conv.name}.{end}" for end in ("scale", "zero", "q", "dq"))
        graph.initializer.append(numpy_helper.from_array(np.float32(amax[conv.name] / 127), scale))
        graph.initializer.append(numpy_helper.from_array(np.int8(0), zero))
        quantize = helper.make_node("QuantizeLinear", [conv.output[0], scale, zero], [stored], stored)
        dequantize = helper.make_node("DequantizeLinear", [stored, scale, zero], [back], back)
        position = next(place for place, node in enumerate(graph.node) if node.name == add.name)
        graph.node[position].input[index] = back
        graph.node.insert(position, dequantize)
        graph.node.insert(position, quantize)
    return changed


def pairs(model: onnx.ModelProto) -> int:
    """Return how many pairs of Q/DQ are on activations."""
    constants = {item.name for item in model.graph.initializer}
    return sum(n.op_type == "QuantizeLinear" and n.input[0] not in constants for n in model.graph.node)
