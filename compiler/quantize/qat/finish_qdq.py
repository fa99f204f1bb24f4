"""Finish an exported Q/DQ graph for a target; trained scales stay unchanged.

1. A stored weight is transposed instead of what is dequantized from it.
2. ONNX Runtime and OpenVINO: a mean over height and width is GlobalAveragePool, for which they have integer
   kernels.
3. ONNX Runtime: the bias of Conv and Gemm becomes int32 with scale = input scale * weight scale, without
   which nothing is fused. What stays in float is kept from being quantized there.
4. TensorRT: weights are float behind a pair, which its parsers take from 8.5 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ....calibration.qparams import QParams, dequantize
from ....errors import InvalidOption, QuantizationError
from ....model.graph import attribute, consumers, infer_shapes, producers
from ....model.graph_edits import (
    drop_unread,
    drop_unused_initializers,
    name_nodes,
    store,
    store_constants,
)
from ....model.onnx_file import copy_model
from ....spec.words import GRAPH_TARGETS, GraphTarget
from ...opset.layers_apart import keep_layers_apart

if TYPE_CHECKING:
    import onnx

_LARGEST_INT32 = 2**31 - 1


def finish_qdq(model: onnx.ModelProto, target: GraphTarget) -> onnx.ModelProto:
    """Return a copy of a model that was exported with its Q/DQ, complete for a target.

    Args:
        model: From `torch.onnx.export` of what torchao's `convert_pt2e` returned.
        target: What the result is for.

    Raises:
        InvalidOption: If the target is unknown.
        QuantizationError: If a stored scale is not positive and finite, or a zero point is not 0 where
            TensorRT reads it.
    """
    if target not in GRAPH_TARGETS:
        raise InvalidOption(f"target {target!r} is unknown; known are {', '.join(GRAPH_TARGETS)}")
    model = copy_model(model)
    graph = model.graph
    name_nodes(graph)
    store_constants(graph)
    _check_scales(graph, target)
    _fold_transposes(graph)
    if target != "tensorrt":
        _pool_means(model)
    if target == "onnxruntime":
        _quantize_biases(graph)
        keep_layers_apart(model)
    if target == "tensorrt":
        _unfold_weights(graph)
    drop_unused_initializers(graph)
    return model


def _fold_transposes(graph: onnx.GraphProto) -> None:
    """Transpose stored integers instead of what is dequantized from them."""
    import onnx
    from onnx import numpy_helper

    made_by = producers(graph)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in list(graph.node):
        before = made_by.get(node.input[0]) if node.op_type == "Transpose" else None
        if before is None or before.op_type != "DequantizeLinear" or before.input[0] not in stored:
            continue
        integers = numpy_helper.to_array(stored[before.input[0]])
        order = attribute(node, "perm", list(range(integers.ndim))[::-1])
        name = f"{before.input[0]}/transposed/{node.name}"
        _add(graph, stored, name, np.ascontiguousarray(integers.transpose(order)))
        axis = order.index(attribute(before, "axis", 1) % integers.ndim)
        node.CopyFrom(
            onnx.helper.make_node(
                "DequantizeLinear", [name, *before.input[1:]], list(node.output), node.name, axis=axis
            )
        )
    drop_unread(graph, ("QuantizeLinear", "DequantizeLinear"))


def _pool_means(model: onnx.ModelProto) -> None:
    """Write ReduceMean over height and width, of a value from integers to integers, as GlobalAveragePool.

    DQ ─ ReduceMean (drops axes) ─ Q      becomes      DQ ─ GlobalAveragePool ─ Q ─ DQ ─ Flatten ─ Q
    """
    import onnx
    from onnx import numpy_helper

    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    made_by, readers = producers(graph), consumers(graph)
    extents = {name: len(shape) for name, shape in infer_shapes(model).items()}
    for node in list(graph.node):
        if node.op_type != "ReduceMean" or extents.get(node.input[0]) != 4:
            continue
        axes = attribute(node, "axes", [])
        if len(node.input) > 1 and node.input[1] in stored:
            axes = numpy_helper.to_array(stored[node.input[1]]).tolist()
        keeps = attribute(node, "keepdims", 1)
        before = made_by.get(node.input[0])
        behind = readers.get(node.output[0], [])
        quantized = before is not None and before.op_type == "DequantizeLinear"
        quantized = quantized and bool(behind) and all(n.op_type == "QuantizeLinear" for n in behind)
        if not quantized or sorted(axis % 4 for axis in axes) != [2, 3]:
            continue
        name, mean = node.name, node.output[0]
        pooled = mean if keeps else f"{mean}/pooled"
        operands = [node.input[0]]
        node.CopyFrom(onnx.helper.make_node("GlobalAveragePool", operands, [pooled], name))
        if not keeps:
            points = list(behind[0].input[1:])
            place = list(graph.node).index(node) + 1
            for operator, read, made in (
                ("Flatten", [f"{pooled}/dequantized"], mean),
                ("DequantizeLinear", [f"{pooled}/quantized", *points], f"{pooled}/dequantized"),
                ("QuantizeLinear", [pooled, *points], f"{pooled}/quantized"),
            ):
                graph.node.insert(place, onnx.helper.make_node(operator, read, [made], f"{operator}/{made}"))


def _quantized_operands(graph: onnx.GraphProto) -> Iterator[tuple[Any, Any, Any]]:
    """Yield each Conv and Gemm of integers with the DequantizeLinear of its input, and of its weight."""
    made_by = producers(graph)
    stored = {tensor.name for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type not in ("Conv", "Gemm"):
            continue
        data, weight = (made_by.get(name) for name in node.input[:2])
        if data is None or weight is None:
            continue
        if data.op_type == weight.op_type == "DequantizeLinear" and weight.input[0] in stored:
            yield node, data, weight


def _quantize_biases(graph: onnx.GraphProto) -> None:
    """Store the bias as int32, where it fits."""
    import onnx
    from onnx import numpy_helper

    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node, data, weight in _quantized_operands(graph):
        bias = node.input[2] if len(node.input) > 2 else ""
        plain = all(attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
        needed = [bias, data.input[1], weight.input[1]]
        if not plain or any(name not in stored for name in needed):
            continue
        values, scale, scales = (numpy_helper.to_array(stored[name]).astype(np.float64) for name in needed)
        if values.ndim != 1 or scale.size != 1 or scales.size not in (1, values.size):
            continue
        steps = scale.reshape(()) * np.broadcast_to(scales, values.shape)
        if (np.abs(values) > steps * _LARGEST_INT32).any():
            continue  # of a channel whose weights are almost zero: the layer adds it as a float
        integers = np.rint(values / steps).astype(np.int32)
        name = f"{bias}/{node.name}"
        _add(graph, stored, f"{name}/int32", integers)
        _add(graph, stored, f"{name}/scale", steps.astype(np.float32))
        _add(graph, stored, f"{name}/zero_point", np.zeros(values.shape, np.int32))
        operands = [f"{name}/int32", f"{name}/scale", f"{name}/zero_point"]
        dequantize = onnx.helper.make_node(
            "DequantizeLinear", operands, [f"{name}/dequantized"], f"{name}/dequantize", axis=0
        )
        graph.node.insert(list(graph.node).index(node), dequantize)
        node.input[2] = dequantize.output[0]


def _unfold_weights(graph: onnx.GraphProto) -> None:
    """Store weights as floats in front of a QuantizeLinear: they are rounded to the very same integers."""
    import onnx
    from onnx import numpy_helper

    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in [n for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] in stored]:
        integers = numpy_helper.to_array(stored[node.input[0]])
        scale = numpy_helper.to_array(stored[node.input[1]])
        limits = np.iinfo(integers.dtype)
        qparams = QParams(
            scale, np.zeros(scale.shape, integers.dtype), limits.min, limits.max, attribute(node, "axis", 1)
        )
        floats = dequantize(integers, qparams)
        name = f"{node.output[0]}/float"
        _add(graph, stored, name, floats)
        operands = [name, *node.input[1:]]
        quantized = f"{node.output[0]}/quantized"
        quantize = onnx.helper.make_node(
            "QuantizeLinear", operands, [quantized], quantized, axis=attribute(node, "axis", 1)
        )
        graph.node.insert(list(graph.node).index(node), quantize)
        node.input[0] = quantized


def _check_scales(graph: onnx.GraphProto, target: GraphTarget) -> None:
    from onnx import numpy_helper

    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        name = node.output[0] if node.op_type == "DequantizeLinear" else node.input[0]
        scale = numpy_helper.to_array(stored[node.input[1]]) if node.input[1] in stored else np.ones(1)
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            raise QuantizationError(
                f"tensor {name!r} has a scale of {scale.min()}; above zero and finite is required",
                hint="its values were constant or diverged in training",
                tensor=name,
            )
        zero = stored.get(node.input[2]) if len(node.input) > 2 else None
        if target == "tensorrt" and zero is not None and numpy_helper.to_array(zero).any():
            zero_point = numpy_helper.to_array(zero).max()
            raise QuantizationError(
                f"tensor {name!r} has a zero point of {zero_point}; TensorRT requires 0",
                hint='train with qcompile.qat.prepare(..., target="tensorrt")',
                tensor=name,
            )


def _add(graph: onnx.GraphProto, stored: dict[str, Any], name: str, array: NDArray[Any]) -> None:
    store(graph, name, array)
    stored[name] = graph.initializer[-1]
