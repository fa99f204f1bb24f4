"""Dynamic INT8: integer weights; the runtime computes the scales of activations.

The weights of MatMul, Gemm, LSTM, Attention and GRU are quantized, because they dominate. A Conv remains
float: ONNX Runtime's ConvInteger spends more time on computing the scale than it saves.

ONNX Runtime has no integer GRU, and its LSTM cannot replace one, as it has no reset gate. Weights of a GRU
are stored as int8 and become float32 when the model is loaded: a smaller file, with the arithmetic and speed
of float. The result counts it as "GRU (weights only)".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.helper import make_node

from ....calibration.qparams import choose_weight_qparams, quantize
from ....core.files import temporary_folder
from ....core.progress import quiet
from ....errors import QuantizationError
from ....model.graph.graph import attribute, opset
from ....model.graph.graph_edits import drop_unused_initializers, refill, set_nodes, sort_nodes, store
from ....model.graph.graph_names import Aliases, Names
from ....model.graph.graph_rules import NONE, SaturatingKernels
from ....model.graph.onnx_file import read_graph
from ....model.sessions.refusals import onnxruntime_words
from ....spec.words import WeightType
from ..prepare import copy_shared_weights
from .pair_limits import product_limits

DYNAMIC_OPERATORS = ("MatMul", "Gemm", "LSTM", "Attention", "GRU")

MICROSOFT = "com.microsoft"
_WEIGHTS_ONLY = "GRU (weights only)"
_INTEGER = ("MatMulInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "QAttention", "ConvInteger")


def quantize_dynamic(
    model: onnx.ModelProto,
    *,
    excluded: Collection[str] = (),
    weight_type: WeightType = "int8",
    kernels: SaturatingKernels = NONE,
) -> tuple[onnx.ModelProto, dict[str, int], dict[str, int]]:
    """Quantize a model dynamically.

    Args:
        excluded: Names of nodes to leave in float.
        weight_type: "int8": symmetric, with a scale per output channel. "uint8": with a zero point, too; x86
            processors without VNNI add two products of uint8 by uint8 in int32, with more instructions. GRU
            weights are always int8, because no integers are multiplied.
        kernels: Kernels that add two products of uint8 by int8 in int16; int8 weights are fitted to them.

    Returns:
        The model, operator to number of nodes planned, and integer operator to number of nodes quantized.
        Quantized GRUs count as "GRU (weights only)".
    """
    nodes = dynamic_nodes(model, excluded)
    planned = Counter(node.op_type for node in nodes)
    names = {node.name for node in nodes}
    if not planned:
        raise QuantizationError(
            f"nothing to quantize: dynamic INT8 takes {', '.join(DYNAMIC_OPERATORS)} with constant "
            "weights, and the model has none",
            hint="convolutions need `mode` static and a ranges file; else keep the model in float",
        )
    weights_only = _store_gru_weights(model.graph, names)
    if planned.keys() - {"LSTM", "GRU"}:
        model = _quantize_products(model, names, weight_type, kernels)
    quantize_lstms(model, names, weight_type=weight_type, kernels=kernels)
    reached = Counter(node.op_type for node in model.graph.node if node.op_type in _INTEGER)
    reached += Counter({_WEIGHTS_ONLY: weights_only})
    if reached.total() < sum(planned.values()):
        raise QuantizationError(
            f"{reached.total()} of {sum(planned.values())} planned nodes were quantized "
            f"(planned {dict(planned)}, reached {dict(reached)})",
            hint="exclude the operator type that was not quantized",
        )
    return model, dict(planned), dict(reached)


def _quantize_products(
    model: onnx.ModelProto, names: set[str], weight_type: WeightType, kernels: SaturatingKernels
) -> onnx.ModelProto:
    """Quantize the named MatMul, Gemm and Attention nodes with ONNX Runtime's quantizer."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as quantize_by_onnxruntime

    copy_shared_weights(model.graph, names)
    _gemms_to_matmuls(model.graph, names)
    aliases = Aliases(model)  # the quantizer derives names without a check for collisions
    names = {aliases.of[name] for name in names}
    stored = {tensor.name: tensor for tensor in model.graph.initializer} if kernels else {}
    operands = {name for node in model.graph.node if node.name in names for name in node.input[1:2]}
    floats = {name: numpy_helper.to_array(stored[name]) for name in operands & stored.keys()}
    excluded = {node.name for node in model.graph.node if node.name not in names}
    excluded |= {f"{name}_MatMul" for name in excluded}  # the quantizer's names for MatMuls from Gemms
    with quiet(), temporary_folder("dynamic") as folder:
        path = folder / "dynamic.onnx"
        try:
            quantize_by_onnxruntime(
                model,
                path,
                op_types_to_quantize=["Attention", "MatMul"],
                per_channel=True,
                weight_type=QuantType.QInt8 if weight_type == "int8" else QuantType.QUInt8,
                nodes_to_exclude=sorted(excluded),
                extra_options={"MatMulConstBOnly": True},
            )
        except Exception as error:  # its internals raise ValueError, TypeError, RuntimeError and others
            message = aliases.text(onnxruntime_words(error))
            raise QuantizationError(f"ONNX Runtime's quantizer failed: {message}") from error
        written = read_graph(path).load()
    sort_nodes(written.graph)  # the quantizer's sort ignores the inputs of subgraphs (1.31.1)
    if weight_type == "int8" and kernels:
        _fit_pairs(written, floats, kernels)
    aliases.undo(written)
    return written


def _fit_pairs(
    model: onnx.ModelProto, floats: Mapping[str, NDArray[Any]], kernels: SaturatingKernels
) -> None:
    """Replace int8 weights so that no two products overflow in kernels that add them in 16 bits: the weight
    NAME [depth, channels], stored as NAME_quantized with NAME_scale [channels]."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node if kernels.dynamic else ():
        name = node.input[1].removesuffix("_quantized") if node.op_type in _INTEGER else ""
        if name not in floats or stored[node.input[1]].data_type != TensorProto.INT8:
            continue
        scales, integers = product_limits(len(floats[name])).quantize(floats[name])
        zeros = np.zeros(scales.shape, np.int8)
        for suffix, array in (("_scale", scales), ("_zero_point", zeros), ("_quantized", integers)):
            tensor = stored[f"{name}{suffix}"]
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def _store_gru_weights(graph: onnx.GraphProto, names: set[str]) -> int:
    """Store W [directions, 3 * hidden, input] and R [directions, 3 * hidden, hidden] of planned GRUs as int8
    with a scale per row, and return the number of these GRUs.

        GRU(x, w, r, ...)      becomes      GRU(x, Mul(Cast(w8), scale), Mul(Cast(r8), scale), ...)

    Not DequantizeLinear: ONNX Runtime executes it in every run and cannot prepack the weights. It folds Cast
    and Mul of constants when it loads the model.
    """
    stored, new = {tensor.name: tensor for tensor in graph.initializer}, Names(graph)
    nodes: list[onnx.NodeProto] = []
    float_names: dict[str, str] = {}
    count = 0
    for node in graph.node:
        planned = node.op_type == "GRU" and node.name in names
        count += planned
        for name in dict.fromkeys(node.input[1:3]) if planned else ():
            if name not in float_names:
                stem = new.stem(name)
                float_names[name] = f"{stem}/widened"
                values = numpy_helper.to_array(stored[name])
                rows = values.reshape(-1, values.shape[-1])
                qparams = choose_weight_qparams(rows, 0)
                store(graph, f"{stem}/int8", quantize(rows, qparams).reshape(values.shape))
                store(graph, f"{stem}/scale", qparams.scale.reshape(*values.shape[:-1], 1))
                factors = [f"{stem}/steps", f"{stem}/scale"]
                nodes.append(make_node("Cast", [f"{stem}/int8"], factors[:1], f"{stem}/cast", to=1))
                nodes.append(make_node("Mul", factors, [float_names[name]], f"{stem}/mul"))
        if planned:
            node.input[1:3] = [float_names[name] for name in node.input[1:3]]
        nodes.append(node)
    set_nodes(graph, nodes)
    drop_unused_initializers(graph)
    return count


def quantize_lstms(
    model: onnx.ModelProto,
    names: Collection[str],
    *,
    weight_type: WeightType = "int8",
    kernels: SaturatingKernels = NONE,
) -> None:
    """Replace each named LSTM by ONNX Runtime's DynamicQuantizeLSTM, in place.

    The operator takes W [directions, 4 * hidden, input] as integers [directions, input, 4 * hidden], with
    scales and zero points [directions, 4 * hidden], and R likewise; it quantizes the activations itself.
    """
    stored, new = {tensor.name: tensor for tensor in model.graph.initializer}, Names(model.graph)
    offset = 128 if weight_type == "uint8" else 0
    lstms = [node for node in model.graph.node if node.op_type == "LSTM" and node.name in names]
    for node in lstms:
        operands, parameters = [], []
        for name in node.input[1:3]:
            matrices = numpy_helper.to_array(stored[name]).transpose(0, 2, 1)
            parts = [_fit_matrix(matrix, fits=not offset and bool(kernels.recurrent)) for matrix in matrices]
            scales, integers = (np.stack(arrays) for arrays in zip(*parts, strict=True))
            kind, prefix = (np.uint8 if offset else np.int8), new.stem(f"{name}/{node.name}")
            operands.append(
                store(model.graph, new.fresh(prefix), (integers.astype(np.int16) + offset).astype(kind))
            )
            parameters.append(store(model.graph, f"{prefix}/scale", scales))
            parameters.append(store(model.graph, f"{prefix}/zero", np.full(scales.shape, offset, kind)))
        optional_inputs = [*node.input[3:], *[""] * (8 - len(node.input))]
        node.op_type, node.domain = "DynamicQuantizeLSTM", MICROSOFT
        refill(node.input, [node.input[0], *operands, *optional_inputs, *parameters])
        refill(node.attribute, [item for item in node.attribute if item.name != "layout"])
    if lstms and not opset(model, MICROSOFT):
        model.opset_import.add(domain=MICROSOFT, version=1)
    drop_unused_initializers(model.graph)


def _fit_matrix(matrix: NDArray[Any], *, fits: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return scales [channels] and int8 [depth, channels]; with `fits`, pairs of products fit 16 bits."""
    if fits:
        return product_limits(len(matrix)).quantize(matrix)
    qparams = choose_weight_qparams(matrix, 1)
    return qparams.scale, quantize(matrix, qparams)


def _gemms_to_matmuls(graph: onnx.GraphProto, names: set[str]) -> None:
    """Replace each planned Gemm by MatMul and Add: the quantizer would transpose a shared weight twice.

    Gemm(x, w, b)      becomes      Add(MatMul(x, w or wᵀ), b)
    """
    stored, new = {tensor.name: tensor for tensor in graph.initializer}, Names(graph)
    nodes, transposed = list[onnx.NodeProto](), dict[str, str]()
    for node in graph.node:
        if node.op_type != "Gemm" or node.name not in names:
            nodes.append(node)
            continue
        weight = node.input[1]
        if attribute(node, "transB", 0):
            if weight not in transposed:
                name = new.fresh(f"{weight}/transposed")
                transposed[weight] = store(graph, name, numpy_helper.to_array(stored[weight]).T)
            weight = transposed[weight]
        has_bias = len(node.input) > 2 and bool(node.input[2])
        product = new.fresh(f"{node.output[0]}/product") if has_bias else node.output[0]
        operands = [node.input[0], weight]
        nodes.append(make_node("MatMul", operands, [product], name=node.name))
        if has_bias:
            operands = [product, node.input[2]]
            nodes.append(make_node("Add", operands, [node.output[0]], new.fresh(f"{node.name}/bias")))
    set_nodes(graph, nodes)
    drop_unused_initializers(graph)


def dynamic_nodes(model: onnx.ModelProto, excluded: Collection[str]) -> list[onnx.NodeProto]:
    """Return the quantizable nodes: stored float32 weights (of two axes in a product, with alpha and beta 1),
    no transposed activation, and the default layout."""
    axes = {t.name: len(t.dims) for t in model.graph.initializer if t.data_type == 1}
    nodes = []
    for node in model.graph.node:
        if node.op_type not in DYNAMIC_OPERATORS or node.name in excluded or len(node.input) < 2:
            continue
        if node.op_type == "Attention" and node.domain != MICROSOFT:
            continue  # ONNX's operator (opset 23 and newer) has no weights
        transposed = attribute(node, "transA", 0) or attribute(node, "layout", 0)
        product = node.op_type in ("MatMul", "Gemm")
        weights = node.input[1:3] if node.op_type in ("LSTM", "GRU") else node.input[1:2]
        is_plain = all(attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
        fits = not product or (is_plain and axes.get(node.input[1]) == 2)
        if fits and not transposed and all(name in axes for name in weights):
            nodes.append(node)
    return nodes
