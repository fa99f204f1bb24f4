"""Store the weights of a quantized graph in 8 bits on the way: a quarter of the size.

TensorRT 8 wants weights in float with Q/DQ after them. Float weights that are multiples of their scale give
the same integers again, so `unpacked(packed(model))` computes what the model does, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper


def packed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with integers in place of the float weights that it quantizes; no tool reads it."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for weight, scale in _quantized_weights(found):
        array = np.clip(np.rint(numpy_helper.to_array(weight) / scale), -128, 127).astype(np.int8)
        weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    return found


def unpacked(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with float weights again."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for weight, scale in _quantized_weights(found):
        if weight.data_type == TensorProto.INT8:
            array = numpy_helper.to_array(weight).astype(np.float32) * scale
            weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    return found


def _quantized_weights(model: onnx.ModelProto) -> Iterator[tuple[Any, Any]]:
    """Yield each initializer that is quantized, and its scale in a shape to divide by."""
    constants = {item.name: item for item in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in constants:
            weight, scale = constants[node.input[0]], numpy_helper.to_array(constants[node.input[1]])
            axis = next((item.i for item in node.attribute if item.name == "axis"), 1)
            shape = [1] * len(weight.dims)
            if scale.size > 1:
                shape[axis] = scale.size
            yield weight, scale.reshape(shape if scale.size > 1 else ())
