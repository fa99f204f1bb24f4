"""Find the layers that ONNX Runtime's optimizer quantizes further than their Q/DQ graph says.

    x ─ DQ ─ Conv(w, b) ─ Q        becomes        x ─ DQ ─ Conv(DQ(int8 w), DQ(int32 b)) ─ Q

Its transformer WeightBiasQuantization (from 1.21 on, microsoft/onnxruntime 22889 and 22969; of Conv,
ConvTranspose and Gemm) goes wrong where

1. the weight is float32 on purpose, as the layer is to stay in float: it becomes int8, with one scale for
   all channels;
2. the bias is of 16 bits: `b / (scale of x * scale of w)` is computed in its type, and is infinite from 65504
   on in float16;
3. that quotient is above the largest int32.

It takes layers right behind a DequantizeLinear of one scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .graph import ONNX_DOMAINS, constant_tensor, every_graph, producers, tensor_values

if TYPE_CHECKING:
    import onnx

OPTIMIZER = "WeightBiasQuantization"
"""Its name among the optimizers that a session can leave out."""

_FLOAT, _FLOAT16, _BFLOAT16 = 1, 10, 16
_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_FOLDED = ("Constant", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_LARGEST_INT32 = 2.0**31 - 1


def requantized(model: onnx.ModelProto) -> list[tuple[onnx.GraphProto, onnx.NodeProto]]:
    """Return the layers, each with the graph that holds it.

    Args:
        model: With or without Q/DQ. A bias whose values are not loaded counts as one that fits int32.
    """
    stored: dict[str, onnx.TensorProto] = {}
    graphs = list(every_graph(model.graph))
    for graph in graphs:
        stored |= {tensor.name: tensor for tensor in graph.initializer}
        stored |= _constants(graph)
    return [(graph, node) for graph in graphs for node in _of(graph, stored)]


def _of(graph: onnx.GraphProto, stored: Mapping[str, onnx.TensorProto]) -> Iterator[onnx.NodeProto]:
    made_by = producers(graph)
    for node in graph.node:
        if node.op_type not in _LAYERS or node.domain not in ONNX_DOMAINS:
            continue
        activation, weight = made_by.get(node.input[0]), made_by.get(node.input[1])
        if activation is None or not _dequantizes(activation) or _extent(activation.input[1], stored) != 1:
            continue
        if weight is None or weight.op_type in _FOLDED:
            if _is_stored_float(node.input[1], made_by, stored):
                yield node
        elif _dequantizes(weight):
            bias = stored.get(node.input[2]) if len(node.input) > 2 else None
            if bias is not None and _overflows(bias, activation, weight, stored):
                yield node


def _is_stored_float(
    name: str, made_by: Mapping[str, onnx.NodeProto], stored: Mapping[str, onnx.TensorProto]
) -> bool:
    """Whether a tensor is stored as float32, or folded to one that is."""
    while name not in stored and name in made_by and made_by[name].op_type in _FOLDED:
        name = made_by[name].input[0]
    return name in stored and stored[name].data_type == _FLOAT


def _overflows(
    bias: onnx.TensorProto, activation: Any, weight: Any, stored: Mapping[str, onnx.TensorProto]
) -> bool:
    """Whether a bias cannot be stored as int32 in the scale of its products."""
    if bias.data_type in (_FLOAT16, _BFLOAT16):
        return True
    scales = [stored.get(node.input[1]) for node in (activation, weight)]
    values = [_values(tensor) for tensor in (bias, *scales)]
    if any(one is None for one in values):
        return False
    b, x, w = values
    with np.errstate(divide="ignore", invalid="ignore"):
        try:
            quotient = np.abs(b) / (x * w)
        except ValueError:  # scales of blocks, which it passes over
            return False
    return bool(np.any(quotient > _LARGEST_INT32))


def _values(tensor: onnx.TensorProto | None) -> Any:
    """Values as float64, one axis at most; None where they are not loaded."""
    if tensor is None or tensor.data_type != _FLOAT or tensor.external_data:
        return None
    return tensor_values(tensor).astype(np.float64).reshape(-1)


def _dequantizes(node: Any) -> bool:
    return node is not None and node.op_type == "DequantizeLinear" and node.domain in ONNX_DOMAINS


def _extent(name: str, stored: Mapping[str, onnx.TensorProto]) -> int:
    """How many values a stored tensor has; 1 where it is not stored, as most scales are one."""
    return math.prod(stored[name].dims) if name in stored else 1


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    tensors = {node.output[0]: constant_tensor(node) for node in graph.node if node.op_type == "Constant"}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}
