"""Complete the Q/DQ of an exported model for a target; trained scales do not change.

1. A Transpose of a dequantized weight is folded into the stored weight.
2. ONNX Runtime and OpenVINO: a mean over height and width becomes GlobalAveragePool, which has integer
   kernels.
3. ONNX Runtime: the bias of Conv and Gemm becomes int32 with scale = input scale * weight scale; fusion
   requires it. ONNX Runtime would also quantize some float layers beside Q/DQ: `keep_layers_apart` prevents
   it.
4. TensorRT: weights are stored in float in front of a Q/DQ pair; all parsers from 8.5 on read this form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_node

from ....calibration.qparams import QParams, dequantize
from ....errors import QuantizationError
from ....model.graph.graph import attribute, consumers, infer_shapes, producers, tensor_values
from ....model.graph.graph_edits import drop_unread, drop_unused_initializers, store, store_constants
from ....model.graph.graph_names import Names, name_nodes
from ....model.graph.graph_rules import graph_rules
from ....model.graph.onnx_file import copy_model
from ....spec.words import GraphTarget
from ...opset.exact_forms import keep_layers_apart

_PAIR = ("QuantizeLinear", "DequantizeLinear")
_LARGEST_INT32 = 2**31 - 1
_Arrays = dict[str, NDArray[Any]]


def finish_qdq(model: onnx.ModelProto, target: GraphTarget) -> onnx.ModelProto:
    """Return a copy of an exported `convert_pt2e` model of torchao, with its Q/DQ completed for a target."""
    rules = graph_rules(target)
    model = copy_model(model)
    graph = model.graph
    name_nodes(graph)
    store_constants(graph)
    stored = {tensor.name: tensor_values(tensor) for tensor in graph.initializer}
    _fold_transposes(graph, stored)
    if not rules.quantizes_chains:
        _require_zero_points(graph, stored)
        _unfold_weights(graph, stored)
    else:
        _pool_means(model, stored)
    if rules.quantizes_bias:
        _quantize_biases(graph, stored)
    if rules.by_onnxruntime:
        keep_layers_apart(model)
    drop_unused_initializers(graph)
    return model


def _fold_transposes(graph: onnx.GraphProto, stored: _Arrays) -> None:
    made_by, names = producers(graph), Names(graph)
    for node in graph.node:
        before = made_by.get(node.input[0]) if node.op_type == "Transpose" else None
        if before is None or before.op_type != "DequantizeLinear" or before.input[0] not in stored:
            continue
        integers = stored[before.input[0]]
        order = attribute(node, "perm", list(range(integers.ndim))[::-1])
        name = names.fresh(f"{before.input[0]}/transposed/{node.name}")
        stored[name] = np.ascontiguousarray(integers.transpose(order))
        axis = order.index(attribute(before, "axis", 1) % integers.ndim)
        operands = [store(graph, name, stored[name]), *before.input[1:]]
        node.CopyFrom(make_node("DequantizeLinear", operands, node.output, node.name, axis=axis))
    drop_unread(graph, _PAIR)


def _pool_means(model: onnx.ModelProto, stored: _Arrays) -> None:
    """Replace ReduceMean over height and width, between DQ and Q, by GlobalAveragePool.

    DQ ─ ReduceMean (drops axes) ─ Q      becomes      DQ ─ GlobalAveragePool ─ Q ─ DQ ─ Flatten ─ Q
    """
    graph = model.graph
    made_by, readers, names = producers(graph), consumers(graph), Names(graph)
    extents = {name: len(shape) for name, shape in infer_shapes(model).items()}
    for index, node in reversed(list(enumerate(graph.node))):
        if node.op_type != "ReduceMean" or extents.get(node.input[0]) != 4:
            continue
        axes = stored.get("".join(node.input[1:]), attribute(node, "axes"))
        before, behind = made_by.get(node.input[0]), readers.get(node.output[0], [])
        neighbors = [before.op_type if before is not None else "", *{reader.op_type for reader in behind}]
        over_plane = axes is not None and sorted(axis % 4 for axis in axes) == [2, 3]
        if neighbors != ["DequantizeLinear", "QuantizeLinear"] or not over_plane:
            continue
        name, mean, keepdims = node.name, node.output[0], attribute(node, "keepdims", 1)
        pooled = mean if keepdims else f"{names.stem(mean)}/pooled"
        node.CopyFrom(make_node("GlobalAveragePool", node.input[:1], [pooled], name))
        points = list(behind[0].input[1:])
        flattened = (
            ("Flatten", [f"{pooled}/dequantized"], mean),
            ("DequantizeLinear", [f"{pooled}/quantized", *points], f"{pooled}/dequantized"),
            ("QuantizeLinear", [pooled, *points], f"{pooled}/quantized"),
        )
        for operator, operands, output in () if keepdims else flattened:
            name = names.fresh(f"{operator}/{output}")
            graph.node.insert(index + 1, make_node(operator, operands, [output], name))


def _quantize_biases(graph: onnx.GraphProto, stored: _Arrays) -> None:
    """Store the bias of Conv and Gemm as int32, if it fits."""
    made_by, unique_names = producers(graph), Names(graph)
    for index, node in reversed(list(enumerate(graph.node))):
        if node.op_type not in ("Conv", "Gemm") or len(node.input) < 3:
            continue
        data, weight = (made_by.get(name) for name in node.input[:2])
        if data is None or weight is None or {data.op_type, weight.op_type} != {"DequantizeLinear"}:
            continue
        names = (node.input[2], data.input[1], weight.input[1])
        plain = all(attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
        if not plain or any(name not in stored for name in (*names, weight.input[0])):
            continue
        values, scale, scales = (stored[name].astype(np.float64) for name in names)
        if values.ndim != 1 or scale.size != 1 or scales.size not in (1, values.size):
            continue
        steps = scale.reshape(()) * np.broadcast_to(scales, values.shape)
        if (np.abs(values) > steps * _LARGEST_INT32).any():
            continue  # weights near zero: their scale is so small that the bias overflows int32
        name = unique_names.fresh(unique_names.stem(f"{names[0]}/{node.name}"))
        operands = [
            store(graph, f"{name}/int32", np.rint(values / steps).astype(np.int32)),
            store(graph, f"{name}/scale", steps.astype(np.float32)),
            store(graph, f"{name}/zero_point", np.zeros(values.shape, np.int32)),
        ]
        node.input[2] = f"{name}/dequantized"
        graph.node.insert(index, make_node("DequantizeLinear", operands, node.input[2:3], name, axis=0))


def _unfold_weights(graph: onnx.GraphProto, stored: _Arrays) -> None:
    """Store weights as floats in front of a QuantizeLinear, which rounds them to the same integers."""
    names = Names(graph)
    for index, node in reversed(list(enumerate(graph.node))):
        if node.op_type != "DequantizeLinear" or node.input[0] not in stored:
            continue
        integers, scale = stored[node.input[0]], stored[node.input[1]]
        limits, axis = np.iinfo(integers.dtype), attribute(node, "axis", 1)
        qparams = QParams(scale, np.zeros(scale.shape, integers.dtype), limits.min, limits.max, axis)
        floats = store(graph, names.fresh(f"{node.output[0]}/float"), dequantize(integers, qparams))
        integers_name = names.fresh(f"{node.output[0]}/quantized")
        node.input[0] = integers_name
        operands = [floats, *node.input[1:]]
        quantize = make_node("QuantizeLinear", operands, [integers_name], integers_name, axis=axis)
        graph.node.insert(index, quantize)


def _require_zero_points(graph: onnx.GraphProto, stored: _Arrays) -> None:
    for node in graph.node:
        zero = stored.get(node.input[2]) if node.op_type in _PAIR and len(node.input) > 2 else None
        if zero is not None and zero.any():
            name = node.output[0] if node.op_type == "DequantizeLinear" else node.input[0]
            raise QuantizationError(
                f"tensor {name!r} has a zero point of {zero.max()}; TensorRT requires 0",
                hint='train with qcompile.qat.prepare(..., target="tensorrt")',
                tensor=name,
            )
