"""Dynamic INT8: weights are stored as int8, activations get their scale while the model runs.

Only operators whose weights dominate are quantized: MatMul, Gemm, LSTM, Attention. A Conv is left alone:
ONNX Runtime's ConvInteger spends more on finding the scale than it saves. A GRU has no integer form there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import QuantizationError, first_line
from ..model.graph import drop_unused_initializers
from ..progress import quiet
from .placement import matching

if TYPE_CHECKING:
    import onnx

DYNAMIC_OPERATORS = ("MatMul", "Gemm", "LSTM", "Attention")

_INTEGER = (
    "MatMulInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "QAttention",
    "ConvInteger",
)


def quantize_dynamic(
    model: onnx.ModelProto, path: Path, *, exclude: tuple[str, ...] = ()
) -> tuple[dict[str, int], dict[str, int]]:
    """Write the dynamically quantized model to `path`.

    Args:
        model: From `prepare.prepared`.
        path: File to write, inside `artifact.writing`.
        exclude: Names, globs or operator types that stay in float.

    Returns:
        Operator to number of nodes planned, and integer operator to number of nodes reached.

    Raises:
        QuantizationError: If the model has nothing to quantize this way, or less was reached.
    """
    import onnx
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as quantize_by_onnxruntime

    excluded = matching(model.graph, exclude)
    nodes = _planned(model, set(excluded))
    planned = Counter(node.op_type for node in nodes)
    names = {node.name for node in nodes}
    _gemms_to_matmuls(model.graph, names)
    if not planned:
        raise QuantizationError(
            f"nothing to quantize: dynamic INT8 takes {', '.join(DYNAMIC_OPERATORS)} with constant "
            "weights, and the model has none",
            hint="quantize it with --mode static and a ranges file",
        )
    try:
        with quiet():
            quantize_by_onnxruntime(
                model,
                path,
                op_types_to_quantize=sorted({*planned, "MatMul"} - {"Gemm"}),
                per_channel=True,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=sorted(n.name for n in model.graph.node if n.name not in names),
                extra_options={"MatMulConstBOnly": True},
            )
    except Exception as error:  # its internals raise ValueError, TypeError, RuntimeError and others
        raise QuantizationError(f"ONNX Runtime's quantizer failed: {first_line(error)}") from error
    written = onnx.load(path, load_external_data=False)
    reached = Counter(node.op_type for node in written.graph.node if node.op_type in _INTEGER)
    if reached.total() < sum(planned.values()):
        raise QuantizationError(
            f"{reached.total()} of {sum(planned.values())} planned nodes were quantized "
            f"(planned {dict(planned)}, reached {dict(reached)})",
            hint="exclude the operator type that the quantizer passes over",
        )
    return dict(planned), dict(reached)


def _gemms_to_matmuls(graph: onnx.GraphProto, names: set[str]) -> None:
    """Turn each planned Gemm into MatMul and Add. The quantizer would do it, and go wrong where two Gemms
    share a weight: it transposes it twice.

        Gemm(x, w, b)      becomes      Add(MatMul(x, w or wᵀ), b)
    """
    import onnx
    from onnx import numpy_helper

    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Gemm" or node.name not in names:
            nodes.append(node)
            continue
        weight = node.input[1]
        if any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
            weight = f"{weight}/transposed"
            if weight not in stored:
                array = np.ascontiguousarray(numpy_helper.to_array(stored[node.input[1]]).T)
                stored[weight] = numpy_helper.from_array(array, weight)
                graph.initializer.append(stored[weight])
        has_bias = len(node.input) > 2 and bool(node.input[2])
        product = f"{node.output[0]}/product" if has_bias else node.output[0]
        operands = [node.input[0], weight]
        nodes.append(onnx.helper.make_node("MatMul", operands, [product], name=node.name))
        if has_bias:
            operands = [product, node.input[2]]
            name = f"{node.name}/bias"
            nodes.append(onnx.helper.make_node("Add", operands, [node.output[0]], name=name))
    del graph.node[:]
    graph.node.extend(nodes)
    drop_unused_initializers(graph)


def _planned(model: onnx.ModelProto, excluded: set[str]) -> list[onnx.NodeProto]:
    """The nodes that the quantizer can take: a stored weight of two axes, no transposed activation."""
    axes = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if node.op_type not in DYNAMIC_OPERATORS or node.name in excluded or len(node.input) < 2:
            continue
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        product = node.op_type in ("MatMul", "Gemm")
        if node.input[1] in axes and not transposed and (not product or axes[node.input[1]] == 2):
            found.append(node)
    return found
