"""Write QuantizeLinear and DequantizeLinear nodes, and store quantized tensors as integers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ..calibration.qparams import QParams, quantize
from ..model.graph.graph import attribute
from ..model.graph.graph_edits import set_nodes, store


def make_qdq_pair(
    value: str, result: str, parameters: Sequence[str], **settings: int
) -> list[onnx.NodeProto]:
    """Return a Q/DQ pair from `value` to `result`; `parameters` are the names of scale and zero_point."""
    quantized = f"{result}/quantized"
    return [
        helper.make_node("QuantizeLinear", [value, *parameters], [quantized], name=quantized, **settings),
        helper.make_node("DequantizeLinear", [quantized, *parameters], [result], name=result, **settings),
    ]


def store_qparams(graph: onnx.GraphProto, base: str, qparams: QParams) -> list[str]:
    """Store scale and zero_point as `BASEscale` and `BASEzero_point`; return their names."""
    return [
        store(graph, f"{base}scale", qparams.scale),
        store(graph, f"{base}zero_point", qparams.zero_point),
    ]


def stored_qparams(node: onnx.NodeProto, stored: Mapping[str, NDArray[Any]]) -> QParams:
    """Return the parameters of a QuantizeLinear or DequantizeLinear with stored scale and zero_point."""
    scale, zero_point = (stored[name] for name in node.input[1:])
    limits = np.iinfo(zero_point.dtype)
    axis = attribute(node, "axis", 1) if scale.ndim else None
    return QParams(scale, zero_point, limits.min, limits.max, axis)


def store_integers(
    graph: onnx.GraphProto, integers: Mapping[str, NDArray[Any]], *, kept: Container[str] = ()
) -> None:
    """Replace each stored float tensor and its QuantizeLinear by the stored integers.

        weight ─ Q ─ DQ ─ Conv      becomes      weight_quantized ─ DQ ─ Conv

    Args:
        integers: Name of a float tensor to its integers; other tensors are rounded here.
        kept: Outputs of QuantizeLinear nodes that must not change: those of the user's model.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    positions = {name: place for place, name in enumerate(stored)}
    quantized_names: dict[str, str] = {}
    tensors: dict[int, onnx.TensorProto] = {}
    for node in graph.node:
        is_stored = node.op_type == "QuantizeLinear" and node.input[0] in stored
        if is_stored and node.output[0] not in kept:
            name = node.input[0]
            values = integers.get(name)
            if values is None:
                arrays = {name: numpy_helper.to_array(stored[name]) for name in node.input}
                values = quantize(arrays[name], stored_qparams(node, arrays))
            quantized_names[node.output[0]] = f"{name}_quantized"
            tensors[max(positions[name] for name in node.input[1:])] = numpy_helper.from_array(
                values, quantized_names[node.output[0]]
            )
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            node.input[0] = quantized_names.get(node.input[0], node.input[0])
    set_nodes(graph, [node for node in graph.node if not quantized_names.keys() & set(node.output)])
    for place in sorted(tensors, reverse=True):  # insert after its scale and zero_point
        graph.initializer.insert(place + 1, tensors[place])
