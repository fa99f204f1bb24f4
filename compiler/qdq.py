"""Write QuantizeLinear and DequantizeLinear where ONNX Runtime's quantizer does not."""

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


def pair(value: str, result: str, parameters: Sequence[str], **settings: int) -> list[onnx.NodeProto]:
    """Return a pair from `value` to `result`; `parameters` name scale and zero_point, settings the axis."""
    middle = f"{result}/quantized"
    return [
        helper.make_node("QuantizeLinear", [value, *parameters], [middle], name=middle, **settings),
        helper.make_node("DequantizeLinear", [middle, *parameters], [result], name=result, **settings),
    ]


def store_qparams(graph: onnx.GraphProto, base: str, qparams: QParams) -> list[str]:
    """Store scale and zero_point as `BASEscale` and `BASEzero_point`; return their names."""
    return [
        store(graph, f"{base}scale", qparams.scale),
        store(graph, f"{base}zero_point", qparams.zero_point),
    ]


def stored_qparams(node: onnx.NodeProto, stored: Mapping[str, NDArray[Any]]) -> QParams:
    """Return the parameters of a node of a pair whose scale and zero_point are stored."""
    scale, zero_point = (stored[name] for name in node.input[1:])
    limits = np.iinfo(zero_point.dtype)
    axis = attribute(node, "axis", 1) if scale.ndim else None
    return QParams(scale, zero_point, limits.min, limits.max, axis)


def store_integers(
    graph: onnx.GraphProto, integers: Mapping[str, NDArray[Any]], *, kept: Container[str] = ()
) -> None:
    """Store what each QuantizeLinear makes of a stored tensor, in place of both.

        weight ─ Q ─ DQ ─ Conv      becomes      weight_quantized ─ DQ ─ Conv

    Args:
        integers: Tensor to what it is stored as; all others are rounded quotients.
        kept: Outputs of the pairs that stay as they are: those of the model itself.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    places = {name: place for place, name in enumerate(stored)}
    made: dict[str, str] = {}
    tensors: dict[int, onnx.TensorProto] = {}
    for node in graph.node:
        is_stored = node.op_type == "QuantizeLinear" and node.input[0] in stored
        if is_stored and node.output[0] not in kept:
            name = node.input[0]
            values = integers.get(name)
            if values is None:
                arrays = {name: numpy_helper.to_array(stored[name]) for name in node.input}
                values = quantize(arrays[name], stored_qparams(node, arrays))
            made[node.output[0]] = f"{name}_quantized"
            tensors[max(places[name] for name in node.input[1:])] = numpy_helper.from_array(
                values, made[node.output[0]]
            )
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            node.input[0] = made.get(node.input[0], node.input[0])
    set_nodes(graph, [node for node in graph.node if not made.keys() & set(node.output)])
    for place in sorted(tensors, reverse=True):  # behind its scale and zero_point
        graph.initializer.insert(place + 1, tensors[place])
