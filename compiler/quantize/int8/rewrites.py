"""Graph rewrites for integer kernels of ONNX Runtime and OpenVINO, int8 embedding tables, and FP8.

FP8 for TensorRT is its INT8 graph with E4M3 floats in place of integers:

    x ─ Q(s, 0: int8) ─ DQ        becomes    x ─ Q(s', 0: float8) ─ DQ      s' = amax / 448
    w ─ Q(s, 0: int8) ─ DQ        becomes    float8 values ─ DQ

E4M3 has a sign, four bits of exponent, three of mantissa, and no infinity; its largest number is 448
(Micikevicius et al. 2022, arXiv 2209.05433). Weights have a scale per output channel and are stored as
float8: every runtime that reads FP8 also reads quantized weights.

TensorRT builds FP8 for compute capability 8.9 and newer, and refuses older GPUs. Convolutions without an FP8
kernel remain in float: in FP8 their build fails, or they are no faster (NVIDIA Model Optimizer,
modelopt/onnx/quantization/fp8.py; NVIDIA/TensorRT issues 3987 and 4524).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ....calibration.qparams import (
    FLOAT8_E4M3,
    INT8,
    channel_amax,
    choose_weight_qparams,
    per_channel,
    quantize,
    scale_and_zero_point,
)
from ....model.graph.graph import attribute, consumers, infer_shapes, producers, tensor_values
from ....model.graph.graph_edits import drop_unread, drop_unused_initializers, set_nodes, store
from ....model.graph.graph_names import Names
from ....model.graph.onnx_file import Graph


def join_biases(graph: Graph, *, exclude: Collection[str] = ()) -> list[str]:
    """Join each MatMul of two-axis operands and its stored bias in a Gemm; return the names of the Gemms.

        x ─ MatMul(w) ─ Add(b) ─ y      becomes      x ─ Gemm(w, b) ─ y

    Otherwise ONNX Runtime's optimizer joins the two behind Q/DQ, even if the other operand of the Add is an
    activation. That Gemm has a float bias, which no integer kernel takes, and runs in float (ONNX Runtime
    1.31.1). `keep_adds_apart` prevents the join of Adds that do not become part of a Gemm here.
    """
    proto, stored, joined = graph.model.graph, graph.stored, list[str]()
    names = Names(proto)
    for node in list(proto.node):
        readers = graph.consumers.get(node.output[0], []) if node.op_type == "MatMul" else []
        weight = stored.get(node.input[1]) if readers else None
        if weight is None or len(weight.dims) != 2 or len(graph.shapes.get(node.input[0], ())) != 2:
            continue
        if len(readers) != 1 or readers[0].op_type != "Add" or node.output[0] in graph.pinned:
            continue
        add = readers[0]
        name = next((name for name in add.input if name != node.output[0]), "")
        bias = stored.get(name)
        channels = weight.dims[1]
        fits = bias is not None and list(bias.dims) in ([channels], [1, channels], [1], [])
        if bias is None or not fits or {node.name, add.name} & set(exclude):
            continue
        shared = len(graph.consumers[name]) > 1 or name in graph.pinned  # a bias needs a private scale
        if shared or list(bias.dims) != [channels]:
            bias_vector = np.broadcast_to(numpy_helper.to_array(bias).reshape(-1), (channels,)).copy()
            name = store(proto, names.fresh(f"{name}/{node.name}"), bias_vector)
        node.op_type = "Gemm"
        node.input.append(name)
        node.output[0] = add.output[0]
        proto.node.remove(add)
        joined.append(node.name)
    graph.edited()
    return joined


def keep_adds_apart(model: onnx.ModelProto, planned: set[str]) -> None:
    """Write as Sum each Add that ONNX Runtime 1.31.1 would join with a planned product in a float Gemm. Such
    an Add joins two activations of two axes, or a stored bias and an activation of more axes, all fixed."""
    made_by, shapes = producers(model.graph), infer_shapes(model)
    stored = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "Add" or node.name in planned:
            continue
        for name in node.input:
            shape, maker = shapes.get(name, ()), made_by.get(name)
            if maker is None or maker.op_type != "MatMul" or maker.name not in planned:
                continue
            is_fixed = len(shape) > 2 and all(isinstance(extent, int) for extent in shape)
            if is_fixed if stored & {*node.input} else len(shape) == 2:
                node.op_type = "Sum"


def keep_relus_apart(model: onnx.ModelProto, planned: set[str]) -> None:
    """Write each Relu between a planned product and a float consumer as Max(0, x).

    ONNX Runtime 1.31.1 joins a Relu with the quantized product. If no QuantizeLinear follows, it computes
    both in float; it computes a product in front of any other operator in integers.
    """
    graph = model.graph
    made_by, readers, names = producers(graph), consumers(graph), Names(graph)
    for node in graph.node:
        maker = made_by.get(node.input[0]) if node.op_type == "Relu" else None
        if maker is None or maker.op_type not in ("MatMul", "Gemm") or maker.name not in planned:
            continue
        if all(reader.op_type == "QuantizeLinear" for reader in readers.get(node.output[0], [node])):
            continue
        node.op_type = "Max"
        node.input.append(store(graph, names.fresh(f"{node.name}/zero"), np.zeros((), np.float32)))


def gather_by_vectors(model: onnx.ModelProto) -> None:
    """Flatten stored indices of two or more axes in Gathers of activations, in place, for OpenVINO.

        Gather(x, indices[2,12])      becomes      Reshape(Gather(x, indices[24]))

    OpenVINO's low-precision passes move a convolution's scales per channel, [1, C, 1, 1], behind the next
    Gather. If that Gather adds an axis, as for the windows of a halo attention, the scales do not fit, and
    compilation fails with "Argument shapes are inconsistent" (OpenVINO 2026.4). A Gather with more than one
    dynamic extent behind its axis does not change.
    """
    graph = model.graph
    shapes, stored = infer_shapes(model), {tensor.name: tensor for tensor in graph.initializer}
    names = Names(graph)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type != "Gather" or node.input[0] in stored:
            continue
        indices, shape = stored.get(node.input[1]), shapes.get(node.input[0])
        if indices is None or len(indices.dims) < 2 or not shape:
            continue
        axis = attribute(node, "axis", 0) % len(shape)
        trailing = [extent if isinstance(extent, int) else -1 for extent in shape[axis + 1 :]]
        if trailing.count(-1) > 1:
            continue
        full_shape = np.array([0] * axis + [*indices.dims, *trailing], np.int64)  # 0: extent of the input
        stem = names.stem(node.name)
        flat = store(graph, f"{stem}/indices", numpy_helper.to_array(indices).reshape(-1))
        target, result = store(graph, f"{stem}/shape", full_shape), f"{stem}/flat"
        nodes.append(helper.make_node("Reshape", [result, target], [node.output[0]], f"{stem}/reshape"))
        node.input[1], node.output[0] = flat, result
    set_nodes(graph, nodes)
    drop_unused_initializers(graph)


def read_floats(graph: onnx.GraphProto, planned: set[str], *, kernels_write_float: bool = False) -> None:
    """Connect nodes that are not planned to the float value in front of a Q/DQ pair.

    The quantizer connects all consumers of a tensor to the Q/DQ pair. For example, the Add of a residual
    branch behind a LayerNormalization would lose precision and pay a conversion for nothing.

        norm ─ Q ─ DQ ─┬─ MatMul      becomes      norm ─┬─ Q ─ DQ ─ MatMul
                       └─ Add                            └─ Add

    With `kernels_write_float`, integer kernels without a planned consumer write float at no cost.
    """
    made_by, readers, names = producers(graph), consumers(graph), Names(graph)
    outputs = {value.name for value in graph.output}
    inputs = {value.name for value in graph.input}
    for dequantize in [node for node in graph.node if node.op_type == "DequantizeLinear"]:
        quantize = made_by.get(dequantize.input[0])
        if quantize is None or quantize.op_type != "QuantizeLinear":
            continue
        source = made_by.get(quantize.input[0])
        if source is None and quantize.input[0] not in inputs:
            continue  # a stored weight
        consumer_names = {node.name for node in readers.get(dequantize.output[0], ())}
        writes_float = kernels_write_float and not consumer_names & planned
        if source is not None and source.name in planned and not writes_float:
            continue  # its kernel writes integers itself
        value = quantize.input[0]
        if dequantize.output[0] in outputs and source is not None:
            dequantized = names.fresh(f"{dequantize.output[0]}/dequantized")
            value = _restore_output_name(dequantize, quantize, source, readers, dequantized)
        for node in readers.get(dequantize.output[0], ()):
            if node.name not in planned and node.op_type != "QuantizeLinear":
                for index, name in enumerate(node.input):
                    if name == dequantize.output[0]:
                        node.input[index] = value
    drop_unread(graph, ("QuantizeLinear", "DequantizeLinear"))


def _restore_output_name(
    dequantize: onnx.NodeProto,
    quantize: onnx.NodeProto,
    source: onnx.NodeProto,
    readers: dict[str, list[onnx.NodeProto]],
    dequantized: str,
) -> str:
    """Name the float value like a model output, and the dequantized value `dequantized`; return the first."""
    value, name = str(quantize.input[0]), str(dequantize.output[0])
    source.output[list(source.output).index(value)] = name
    readers[dequantized] = readers.pop(name, [])
    for node in readers[dequantized]:
        node.input[:] = [dequantized if operand == name else operand for operand in node.input]
    for node in readers.get(value, ()):
        node.input[:] = [name if operand == value else operand for operand in node.input]
    dequantize.output[0] = dequantized
    return name


def keep_norms_apart(graph: onnx.GraphProto) -> None:
    """Write each Add in front of a LayerNormalization as Sum, which computes the same.

    ONNX Runtime would fuse Add and LayerNormalization into SkipLayerNormalization. Its CPU kernel takes eight
    times as long as the two (ONNX Runtime 1.31.1: 0.20 ms against 0.03 ms for 128 x 768 values).
    """
    normalized = {node.input[0] for node in graph.node if node.op_type == "LayerNormalization"}
    for node in graph.node:
        if node.op_type == "Add" and node.output[0] in normalized:
            node.op_type = "Sum"


BLOCK_SIZE = 128
MIN_TABLE_VALUES = 1 << 16
"""Least number of values of a quantized table; smaller tables hardly add to the file size."""


def is_table(node: onnx.NodeProto, stored: dict[str, onnx.TensorProto]) -> bool:
    """Return whether a node looks up rows of a stored, large float32 table of two axes."""
    table = stored.get(node.input[0]) if node.op_type == "Gather" else None
    axis = attribute(node, "axis", 0)
    if table is None or table.data_type != 1 or len(table.dims) != 2 or axis != 0:
        return False
    return int(np.prod(table.dims)) >= MIN_TABLE_VALUES


def quantize_tables(model: onnx.ModelProto, names: set[str]) -> None:
    """Store the lookup tables of the named nodes (see `is_table`) as int8, in place.

        Gather(table, ids)      becomes      Reshape(Cast(Gather(int8, ids)) * Gather(scales, ids))

    The table is int8 [rows, blocks, block], the scales are float32 [rows, blocks, 1]. Each scale belongs to
    a block of one row, because rows of a vocabulary differ: a scale per column would have to fit the largest
    of tens of thousands of rows. Every CPU runtime has these operators.
    """
    graph = model.graph
    shapes = infer_shapes(model) if names else {}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes, new, tables = list[onnx.NodeProto](), Names(graph), dict[str, str]()
    for node in graph.node:
        nodes.append(node)
        if node.name not in names or node.input[1] not in shapes | stored:
            continue
        table, ids, result, name = node.input[0], node.input[1], node.output[0], new.stem(node.name)
        axes = len(shapes[ids]) if ids in shapes else len(stored[ids].dims)
        if table not in tables:
            tables[table] = stem = new.stem(table)
            values = tensor_values(stored[table])
            rows, columns = values.shape
            blocks = values.reshape(-1, BLOCK_SIZE if columns % BLOCK_SIZE == 0 else columns)
            qparams = choose_weight_qparams(blocks, 0)
            integers = quantize(blocks, qparams).reshape(rows, -1, blocks.shape[1])
            store(graph, f"{stem}/int8", integers)
            store(graph, f"{stem}/scale", qparams.scale.reshape(rows, -1, 1))
        row_shape = f"{name}/shape"
        store(graph, row_shape, np.array([0] * axes + [-1], np.int64))
        stem = new.stem(result)
        node.input[0], node.output[0] = f"{tables[table]}/int8", f"{stem}/int8"
        results = [f"{stem}/{suffix}" for suffix in ("float", "scale", "blocks")]
        nodes += [
            helper.make_node("Cast", [node.output[0]], results[:1], name=f"{name}/float", to=1),
            helper.make_node("Gather", [f"{tables[table]}/scale", ids], results[1:2], name=f"{name}/scale"),
            helper.make_node("Mul", results[:2], results[2:], name=f"{name}/scaled"),
            helper.make_node("Reshape", [results[2], row_shape], [result], name=f"{name}/row"),
        ]
    set_nodes(graph, nodes)
    drop_unused_initializers(graph)


_MULTIPLE = 16  # channel multiple of FP8 convolution kernels
_LARGEST_KERNEL = 32  # elements of one filter and channel


def unfit_for_float8(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto]) -> str | None:
    if node.op_type == "ConvTranspose":
        return "TensorRT has no FP8 kernel for ConvTranspose"
    if node.op_type != "Conv" or node.input[1] not in stored:
        return None
    outputs, inputs, *kernel = stored[node.input[1]].dims
    if attribute(node, "group", 1) != 1:
        return "TensorRT has no FP8 kernel for grouped convolutions"
    if min(inputs, outputs) < _MULTIPLE or inputs % _MULTIPLE != outputs % _MULTIPLE:
        return f"its {inputs} and {outputs} channels fit no FP8 kernel, which takes multiples of {_MULTIPLE}"
    if math.prod(kernel) > _LARGEST_KERNEL:
        return f"its filter of {math.prod(kernel)} elements is above the {_LARGEST_KERNEL} of FP8 kernels"
    return None


def to_float8(model: onnx.ModelProto, *, half_scales: bool = False) -> None:
    """Convert the int8 pairs of a model for TensorRT to float8, in place; opset 19 or newer is required.

    `half_scales` rounds scales up to float16, because they become float16 later. Small scales would then lose
    precision, and weights must be quantized with their final scales.
    """
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for name in dict.fromkeys(n.input[2] for n in graph.node if _is_qdq(n, stored, TensorProto.INT8)):
        dims = list(stored[name].dims)
        zeros = bytes(math.prod(dims))
        stored[name].CopyFrom(helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, dims, zeros, raw=True))
    scaled: set[str] = set()
    for node in [node for node in graph.node if _is_qdq(node, stored, TensorProto.FLOAT8E4M3FN)]:
        values, scale = node.input[0], stored[node.input[1]]
        if node.op_type == "QuantizeLinear" and values in stored:
            weight = numpy_helper.to_array(stored[values])
            axis = attribute(node, "axis", 1) if scale.dims else None
            scales = weight_scales(weight, axis, half=half_scales)
            store(graph, node.output[0], round_to_float8(weight, scales, axis))
            scale.CopyFrom(numpy_helper.from_array(scales, scale.name))
            scaled.add(scale.name)
            graph.node.remove(node)
        elif scale.name not in scaled:
            scales = numpy_helper.to_array(scale).astype(np.float64) * (INT8.qmax / FLOAT8_E4M3.qmax)
            scale.CopyFrom(numpy_helper.from_array(_round_up_scales(scales, half=half_scales), scale.name))
            scaled.add(scale.name)
    del graph.value_info[:]  # the types in it are int8
    drop_unused_initializers(graph)


def weight_scales(weight: NDArray[Any], axis: int | None, *, half: bool = False) -> NDArray[np.float32]:
    """Return `amax / 448` of each channel, or of the whole weight if `axis` is None, as float32.

    A scale is 1 if amax is 0 or the scale would be subnormal. `half` rounds scales up to float16.
    """
    amax = channel_amax(weight, axis)
    scales, _ = scale_and_zero_point(-amax, amax, FLOAT8_E4M3)
    return _round_up_scales(scales, half=half)


def _round_up_scales(scales: NDArray[Any], *, half: bool) -> NDArray[np.float32]:
    if half and (scales <= np.finfo(np.float16).max).all():
        nearest = scales.astype(np.float16)
        scales = np.where(nearest < scales, np.nextafter(nearest, np.float16(np.inf)), nearest)
    return np.asarray(scales, np.float32)


def round_to_float8(weight: NDArray[Any], scales: NDArray[Any], axis: int | None) -> NDArray[Any]:
    """Return `weight / scale` rounded to the nearest E4M3 number, ties to even, and clipped to 448."""
    steps = weight / per_channel(scales, axis, weight.ndim)
    rounded: NDArray[Any] = np.clip(steps, FLOAT8_E4M3.qmin, FLOAT8_E4M3.qmax).astype(ml_dtypes.float8_e4m3fn)
    return rounded


def _is_qdq(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto], kind: int) -> bool:
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or len(node.input) != 3:
        return False
    return node.input[2] in stored and stored[node.input[2]].data_type == kind
