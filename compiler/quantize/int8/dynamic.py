"""Dynamic INT8: integer weights; the runtime computes the scales of activations.

Only operators whose weights dominate are quantized: MatMul, Gemm, LSTM, Attention. A Conv is left alone:
ONNX Runtime's ConvInteger spends more on finding the scale than it saves.

A GRU has no integer form in ONNX Runtime, and none can be made of its LSTM, which has no reset gate. Its
weights are stored as int8 and become float32 when the model is loaded: a smaller file, the arithmetic and
speed of float. What is reached says so: "GRU (weights only)".
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
from ..prepare import give_own_weights
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
        excluded: Names of nodes that stay in float.
        weight_type: "int8": symmetric, with a scale per output channel. "uint8": with a zero point too;
            x86 processors without VNNI add two products of uint8 by uint8 in int32, in more instructions. A
            GRU's weights are int8 in both, as no integers are multiplied.
        kernels: What adds two products of uint8 by int8 in int16: int8 weights are fitted to it.

    Returns:
        The model, operator to number of nodes planned, and integer operator to number of nodes reached. A
        GRU is reached as "GRU (weights only)".
    """
    nodes = dynamic_nodes(model, excluded)
    planned = Counter(node.op_type for node in nodes)
    names = {node.name for node in nodes}
    if not planned:
        raise QuantizationError(
            f"nothing to quantize: dynamic INT8 takes {', '.join(DYNAMIC_OPERATORS)} with constant "
            "weights, and the model has none",
            hint="convolutions are for `mode` static and a ranges file; otherwise keep it in float",
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
            hint="exclude the operator type that the quantizer passes over",
        )
    return model, dict(planned), dict(reached)


def _quantize_products(
    model: onnx.ModelProto, names: set[str], weight_type: WeightType, kernels: SaturatingKernels
) -> onnx.ModelProto:
    """Quantize the named MatMul, Gemm and Attention by ONNX Runtime's quantizer."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as quantize_by_onnxruntime

    give_own_weights(model.graph, names)
    _gemms_to_matmuls(model.graph, names)
    aliases = Aliases(model)  # the quantizer makes names of those that are there, without a look at them
    names = {aliases.of[name] for name in names}
    stored = {tensor.name: tensor for tensor in model.graph.initializer} if kernels else {}
    operands = {name for node in model.graph.node if node.name in names for name in node.input[1:2]}
    floats = {name: numpy_helper.to_array(stored[name]) for name in operands & stored.keys()}
    left = {node.name for node in model.graph.node if node.name not in names}
    left |= {f"{name}_MatMul" for name in left}  # as the quantizer calls what it makes of a Gemm
    with quiet(), temporary_folder("dynamic") as folder:
        path = folder / "dynamic.onnx"
        try:
            quantize_by_onnxruntime(
                model,
                path,
                op_types_to_quantize=["Attention", "MatMul"],
                per_channel=True,
                weight_type=QuantType.QInt8 if weight_type == "int8" else QuantType.QUInt8,
                nodes_to_exclude=sorted(left),
                extra_options={"MatMulConstBOnly": True},
            )
        except Exception as error:  # its internals raise ValueError, TypeError, RuntimeError and others
            words = aliases.text(onnxruntime_words(error))
            raise QuantizationError(f"ONNX Runtime's quantizer failed: {words}") from error
        written = read_graph(path).load()
    sort_nodes(written.graph)  # the quantizer's own order leaves out what subgraphs read (1.31.1)
    if weight_type == "int8" and kernels:
        _fit_pairs(written, floats, kernels)
    aliases.undo(written)
    return written


def _fit_pairs(
    model: onnx.ModelProto, floats: Mapping[str, NDArray[Any]], kernels: SaturatingKernels
) -> None:
    """Store weights anew, so that no two products overflow where kernels add them in 16 bits.

    The quantizer stores the weight NAME [depth, channels] as NAME_quantized with NAME_scale [channels].
    """
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node if kernels.dynamic else ():
        name = node.input[1].removesuffix("_quantized") if node.op_type in _INTEGER else ""
        if name not in floats or stored[node.input[1]].data_type != TensorProto.INT8:
            continue
        scales, integers = product_limits(len(floats[name])).fitted(floats[name])
        zeros = np.zeros(scales.shape, np.int8)
        for suffix, array in (("_scale", scales), ("_zero_point", zeros), ("_quantized", integers)):
            tensor = stored[f"{name}{suffix}"]
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def _store_gru_weights(graph: onnx.GraphProto, names: set[str]) -> int:
    """Store W [directions, 3 * hidden, input] and R [directions, 3 * hidden, hidden] of planned GRUs as int8
    with a scale per row, and return the number of these GRUs.

        GRU(x, w, r, ...)      becomes      GRU(x, Mul(Cast(w8), scale), Mul(Cast(r8), scale), ...)

    Not DequantizeLinear: ONNX Runtime carries that out in every run, and cannot pack the weights before.
    Cast and Mul of constants it folds when it loads the model.
    """
    stored, new = {tensor.name: tensor for tensor in graph.initializer}, Names(graph)
    nodes: list[onnx.NodeProto] = []
    widened: dict[str, str] = {}
    count = 0
    for node in graph.node:
        planned = node.op_type == "GRU" and node.name in names
        count += planned
        for name in dict.fromkeys(node.input[1:3]) if planned else ():
            if name not in widened:
                stem = new.stem(name)
                widened[name] = f"{stem}/widened"
                values = numpy_helper.to_array(stored[name])
                rows = values.reshape(-1, values.shape[-1])
                qparams = choose_weight_qparams(rows, 0)
                store(graph, f"{stem}/int8", quantize(rows, qparams).reshape(values.shape))
                store(graph, f"{stem}/scale", qparams.scale.reshape(*values.shape[:-1], 1))
                factors = [f"{stem}/steps", f"{stem}/scale"]
                nodes.append(make_node("Cast", [f"{stem}/int8"], factors[:1], f"{stem}/cast", to=1))
                nodes.append(make_node("Mul", factors, [widened[name]], f"{stem}/mul"))
        if planned:
            node.input[1:3] = [widened[name] for name in node.input[1:3]]
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
    """Make each named LSTM a DynamicQuantizeLSTM of ONNX Runtime, in place.

    It takes W [directions, 4 * hidden, input] as integers [directions, input, 4 * hidden], with scales and
    zero points [directions, 4 * hidden], and R in the same way; it quantizes the activations.
    """
    stored, new = {tensor.name: tensor for tensor in model.graph.initializer}, Names(model.graph)
    offset = 128 if weight_type == "uint8" else 0
    lstms = [node for node in model.graph.node if node.op_type == "LSTM" and node.name in names]
    for node in lstms:
        operands, parameters = [], []
        for name in node.input[1:3]:
            matrices = numpy_helper.to_array(stored[name]).transpose(0, 2, 1)
            made = [_rounded(matrix, fits=not offset and bool(kernels.recurrent)) for matrix in matrices]
            scales, integers = (np.stack(parts) for parts in zip(*made, strict=True))
            kind, prefix = (np.uint8 if offset else np.int8), new.stem(f"{name}/{node.name}")
            operands.append(
                store(model.graph, new.fresh(prefix), (integers.astype(np.int16) + offset).astype(kind))
            )
            parameters.append(store(model.graph, f"{prefix}/scale", scales))
            parameters.append(store(model.graph, f"{prefix}/zero", np.full(scales.shape, offset, kind)))
        rest = [*node.input[3:], *[""] * (8 - len(node.input))]
        node.op_type, node.domain = "DynamicQuantizeLSTM", MICROSOFT
        refill(node.input, [node.input[0], *operands, *rest, *parameters])
        refill(node.attribute, [one for one in node.attribute if one.name != "layout"])
    if lstms and not opset(model, MICROSOFT):
        model.opset_import.add(domain=MICROSOFT, version=1)
    drop_unused_initializers(model.graph)


def _rounded(matrix: NDArray[Any], *, fits: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scales [channels] and int8 [depth, channels] of a matrix [depth, channels].

    Where it `fits`, no two products overflow when kernels add them in 16 bits.
    """
    if fits:
        return product_limits(len(matrix)).fitted(matrix)
    qparams = choose_weight_qparams(matrix, 1)
    return qparams.scale, quantize(matrix, qparams)


def _gemms_to_matmuls(graph: onnx.GraphProto, names: set[str]) -> None:
    """Turn each planned Gemm into MatMul and Add. The quantizer would do it, and go wrong where two Gemms
    share a weight: it transposes it twice.

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
    """The nodes that can be taken: stored weights, of two axes in a product, no transposed activation, no
    other layout."""
    axes = {t.name: len(t.dims) for t in model.graph.initializer if t.data_type == 1}
    nodes = []
    for node in model.graph.node:
        if node.op_type not in DYNAMIC_OPERATORS or node.name in excluded or len(node.input) < 2:
            continue
        if node.op_type == "Attention" and node.domain != MICROSOFT:
            continue  # ONNX's own, from opset 23 on, has no weights
        transposed = attribute(node, "transA", 0) or attribute(node, "layout", 0)
        product = node.op_type in ("MatMul", "Gemm")
        weights = node.input[1:3] if node.op_type in ("LSTM", "GRU") else node.input[1:2]
        plain = all(attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
        fits = not product or (plain and axes.get(node.input[1]) == 2)
        if fits and not transposed and all(name in axes for name in weights):
            nodes.append(node)
    return nodes
