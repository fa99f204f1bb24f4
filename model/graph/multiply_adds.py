"""Count the multiply-adds of each node: the weight of a layer in a precision proof.

Extents come from ONNX's shape inference, with the inputs as the file's notes say (`input_notes`) and every
other dynamic axis 1. One multiply-add is one product added to a sum.

`tensor_core_advice` names sizes that do not fit Tensor Cores, for `inspect --nodes`: channels of a
convolution, and K and N of a product of M x K by K x N, should be multiples of 16 bytes (NVIDIA, "Matrix
Multiplication Background User's Guide"; TensorRT's "Best Practices" ask for 32 of INT8, and pad others
implicitly). It is computed, not measured: cuBLAS 11 and later run other sizes too, less efficiently.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from .. import onnx
from .graph import attribute, infer_shapes, model_io, without_weights
from .graph_edits import refill
from .input_notes import read_notes

Shape = tuple[int, ...]

ALLOWED_SHARE = 0.10
"""Share of the planned multiply-adds that may miss the precision."""
_SHOWN = 8
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
"""What exporters write in a dynamic extent."""


def multiply_adds(model: onnx.ModelProto) -> dict[str, int]:
    """Return node name to its multiply-adds, for the nodes of the main graph that multiply.

    A node whose extents cannot be inferred is left out; so is one inside a subgraph. Weights are not needed.
    """
    shapes = known_shapes(model)
    counts = [(node.name, _count(node, shapes)) for node in model.graph.node]
    return {name: total for name, total in counts if total is not None}


def named(layers: Mapping[str, str], share: Mapping[str, float]) -> str:
    """Return layers with their shares and reasons, the largest first."""
    ordered = sorted(layers, key=lambda name: -share.get(name, 0.0))
    texts = [f"{name} ({share.get(name, 0.0):.1%}: {layers[name]})" for name in ordered[:_SHOWN]]
    more = f" and {len(layers) - _SHOWN} more" if len(layers) > _SHOWN else ""
    return ", ".join(texts) + more


def shares(names: Sequence[str], multiply_adds: Mapping[str, int]) -> tuple[dict[str, float], str]:
    """Return the share of each layer, and what was counted: "multiply-adds", or "layers"."""
    counted = all(name in multiply_adds for name in names)
    total = sum(multiply_adds[name] for name in names) if counted else 0
    if not total:
        return dict.fromkeys(names, 1 / max(len(names), 1)), "layers"
    return {name: multiply_adds[name] / total for name in names}, "multiply-adds"


def known_shapes(model: onnx.ModelProto, inputs: Mapping[str, Shape] | None = None) -> dict[str, Shape]:
    """Return tensor name to its extents, where all are known, for shapes of the inputs, or the example's."""
    light = without_weights(model)
    notes = read_notes(model)
    examples = dict(inputs or {})
    for tensor in () if inputs else model_io(model).inputs:
        noted = notes[tensor.name].example if tensor.name in notes else ()
        extents = noted if len(noted) == len(tensor.shape) else [1] * len(tensor.shape)
        dims = zip(tensor.shape, extents, strict=True)
        examples[tensor.name] = tuple(dim if isinstance(dim, int) else extent for dim, extent in dims)
    symbols: dict[str, int] = {}
    for value in light.graph.input:
        dimensions = value.type.tensor_type.shape.dim
        for dimension, extent in zip(dimensions, examples.get(value.name, ()), strict=False):
            if dimension.dim_param:
                symbols[dimension.dim_param] = extent
            dimension.dim_value = extent
    _bind(light, symbols)
    inferred = {
        name: cast("Shape", shape)
        for name, shape in infer_shapes(light).items()
        if all(isinstance(extent, int) for extent in shape)
    }
    return inferred | {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}


def _bind(model: onnx.ModelProto, symbols: Mapping[str, int]) -> None:
    """Give the exporter's notes of shapes, such as `2*batch`, their extents; drop those that have none."""
    bound = []
    for value in model.graph.value_info:
        dims = value.type.tensor_type.shape.dim
        extents = [_extent(dim.dim_param, symbols) if dim.dim_param else dim.dim_value for dim in dims]
        if all(extents):
            for dim, extent in zip(dims, extents, strict=True):
                dim.dim_value = extent or 0
            bound.append(value)
    refill(model.graph.value_info, bound)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def _extent(text: str, symbols: Mapping[str, int]) -> int | None:
    """The extent that an expression of symbols stands for; None where it is another kind of expression."""

    def value_of(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return symbols[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](value_of(node.left), value_of(node.right))
        raise KeyError(text)

    try:
        return value_of(ast.parse(text, mode="eval").body)
    except (KeyError, SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _count(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int | None:
    """The multiply-adds of a node; None where it multiplies nothing, or extents are not known."""
    names = (*node.input[:3], "", "", "")
    read, weight, state = (shapes.get(name) for name in names[:3])
    result = shapes.get(node.output[0])
    if node.op_type in ("Conv", "ConvInteger", "ConvTranspose"):
        outer = read if node.op_type == "ConvTranspose" else result
        return None if weight is None or outer is None else math.prod(outer) * math.prod(weight[1:])
    if node.op_type in ("MatMul", "MatMulInteger", "Gemm") and read and result is not None:
        is_transposed = node.op_type == "Gemm" and attribute(node, "transA", 0)
        return math.prod(result) * (read[0] if is_transposed else read[-1])
    recurrent = node.op_type in ("LSTM", "DynamicQuantizeLSTM", "GRU", "RNN")
    if not recurrent or read is None or weight is None or state is None:
        return None
    return read[0] * read[1] * (math.prod(weight) + math.prod(state)) if len(read) == 3 else None


ALIGNMENT: Mapping[str, int] = {
    "tf32": 4, "fp16": 8, "bf16": 8, "int8": 16, "fp8": 16, "mxfp8": 16, "int4": 32, "nvfp4": 32,
}  # fmt: skip
"""Precision to the multiple that sizes should be: 16 bytes."""

Shapes = Mapping[str, tuple[int | str, ...]]


def tensor_core_advice(model: onnx.ModelProto, precision: str = "fp16") -> dict[str, str]:
    """Return the name of each node that multiplies, to what padding its sizes would take.

    "fits"; "depthwise", where padding gains nothing; or "K 3 -> 8, 62.5% zeros": the next multiples of a
    group's sizes, and the share of zeros in the padded multiply-adds.
    """
    stored = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    shapes: Shapes = {**infer_shapes(without_weights(model)), **stored}
    advice = {}
    for node in model.graph.node:
        sizes = _sizes(node, shapes)
        if sizes is not None:
            is_depthwise = attribute(node, "group", 1) > 1 and sizes["K"] == 1
            multiple, whole = ALIGNMENT[precision], {n: s for n, s in sizes.items() if isinstance(s, int)}
            padded = {name: -(-size // multiple) * multiple for name, size in whole.items()}
            odd = [f"{name} {whole[name]} -> {size}" for name, size in padded.items() if size != whole[name]]
            share = math.prod(whole.values()) / math.prod(padded.values())
            needed = f"{', '.join(odd)}, {1 - share:.1%} zeros" if odd else "fits"
            advice[node.name] = "depthwise" if is_depthwise else needed
    return advice


def _sizes(node: onnx.NodeProto, shapes: Shapes) -> dict[str, int | str] | None:
    """K and N of a node, a text where an axis is dynamic; None where it multiplies no matrices."""
    data, weight = (shapes.get(name, ()) for name in (*node.input[:2], "", "")[:2])
    if node.op_type in ("Conv", "ConvInteger") and len(weight) > 2 and isinstance(weight[0], int):
        return {"K": weight[1], "N": weight[0] // attribute(node, "group", 1)}
    if node.op_type == "ConvTranspose" and len(weight) > 2 and isinstance(weight[0], int):
        return {"K": weight[0] // attribute(node, "group", 1), "N": weight[1]}
    if node.op_type == "Gemm" and len(weight) == 2:
        k, n = weight[::-1] if attribute(node, "transB", 0) else weight
        return {"K": k, "N": n}
    if node.op_type in ("MatMul", "MatMulInteger") and len(data) > 1 and len(weight) > 1:
        return {"K": weight[-2] if isinstance(weight[-2], int) else data[-1], "N": weight[-1]}
    return None
