"""What an ONNX graph holds as weights: how many values, and how many bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .graph import attribute, constant_tensor, every_graph
from .onnx_file import dtype_name, tensor_bytes

if TYPE_CHECKING:
    import onnx

_SCALES = {
    "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "QLinearAdd": (1, 2, 4, 5, 6, 7),
    "QLinearMul": (1, 2, 4, 5, 6, 7),
    "QGemm": (1, 2, 4, 5, 7, 8),
    "MatMulIntegerToFloat": (2, 3, 4, 5),
    "DynamicQuantizeMatMul": (2, 3),
    "MatMulNBits": (2, 3),
    "MatMulInteger": (2, 3),
    "ConvInteger": (2, 3),
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
}
"""Operator to the inputs that are scales and zero points, as ONNX and ONNX Runtime define them."""
_NO_WEIGHTS = ("bool", "string", "undefined", "int64")  # shapes, axes and indices


@dataclass(frozen=True)
class WeightsHeld:
    """The weights of an artifact or a module.

    Attributes:
        parameters: Number of values, without scales, zero points, shapes and indices; 0 where none is known.
        bytes: What all stored tensors take, scales and buffers included.
        precision: "int8", "fp16" or "bf16" where the weights say it; empty otherwise.
    """

    parameters: int
    bytes: int
    precision: str = ""


def weights_of_graph(model: onnx.ModelProto) -> WeightsHeld:
    """Return the weights of a graph: its initializers and constants, of every subgraph."""
    parameters, size = 0, 0
    for graph in every_graph(model.graph):
        packed = {
            node.input[1]: attribute(node, "K", 0) * attribute(node, "N", 0)
            for node in graph.node
            if node.op_type == "MatMulNBits"
        }
        scales = {
            node.input[index]
            for node in graph.node
            for index in _SCALES.get(node.op_type, ())
            if index < len(node.input)
        }
        stored = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            tensor = constant_tensor(node)
            if tensor is not None:
                stored[node.output[0]] = tensor
        for name, tensor in stored.items():
            size += tensor_bytes(tensor)
            if name not in scales and dtype_name(tensor.data_type) not in _NO_WEIGHTS:
                parameters += packed.get(name) or math.prod(tensor.dims)
    return WeightsHeld(parameters, size)
