"""Count the multiply-adds of each node, which measure a layer's share when precisions are verified.

Shapes come from ONNX's shape inference. Inputs have the shapes in the file's notes (`input_notes`), or else 1
for each dynamic axis. One multiply-add is one product added to a sum.

`tensor_core_advice` lists sizes that do not fit Tensor Cores, for `inspect --nodes`. Channels of a Conv,
and K and N of products of M x K by K x N, should be multiples of 16 bytes (NVIDIA, "Matrix Multiplication
Background User's Guide"). TensorRT's "Best Practices" recommend multiples of 32 for INT8; TensorRT pads other
sizes. The advice is computed, not measured: cuBLAS 11 and later run other sizes too, less efficiently.
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
"""Share of the planned multiply-adds that may run in another precision."""
_SHOWN = 8
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
"""Operators in the expressions that exporters write for dynamic extents."""


def multiply_adds(model: onnx.ModelProto) -> dict[str, int]:
    """Return the multiply-adds of the nodes of the main graph that multiply, by name.

    Nodes without an inferable shape are left out. Weights need not be loaded.
    """
    shapes = known_shapes(model)
    counts = [(node.name, _count(node, shapes)) for node in model.graph.node]
    return {name: total for name, total in counts if total is not None}


def format_layers(layers: Mapping[str, str], share: Mapping[str, float]) -> str:
    """Return up to 8 layers with their shares and reasons as text, the largest share first."""
    ordered = sorted(layers, key=lambda name: -share.get(name, 0.0))
    texts = [f"{name} ({share.get(name, 0.0):.1%}: {layers[name]})" for name in ordered[:_SHOWN]]
    more = f" and {len(layers) - _SHOWN} more" if len(layers) > _SHOWN else ""
    return ", ".join(texts) + more


def shares(names: Sequence[str], multiply_adds: Mapping[str, int]) -> tuple[dict[str, float], str]:
    """Return the share of each layer, and the unit; layers have equal shares if a count is missing."""
    counted = all(name in multiply_adds for name in names)
    total = sum(multiply_adds[name] for name in names) if counted else 0
    if not total:
        return dict.fromkeys(names, 1 / max(len(names), 1)), "layers"
    return {name: multiply_adds[name] / total for name in names}, "multiply-adds"


def known_shapes(model: onnx.ModelProto, inputs: Mapping[str, Shape] | None = None) -> dict[str, Shape]:
    """Map each tensor with known extents to its shape, for inputs of the shapes `inputs`, or as noted."""
    light = without_weights(model)
    notes = read_notes(model)
    examples = dict(inputs or {})
    for tensor in () if inputs else model_io(model).inputs:
        example = notes[tensor.name].example if tensor.name in notes else ()
        extents = example if len(example) == len(tensor.shape) else [1] * len(tensor.shape)
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
    """Evaluate extents such as `2*batch` in `value_info`; remove unknown ones, and output shapes."""
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
    """Return the value of an expression of symbols; None for other expressions or unknown symbols."""

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
    """Return the multiply-adds of a node; None if it multiplies nothing or an extent is unknown."""
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
"""For each precision, the number of values in 16 bytes; sizes should be multiples of this number."""

Shapes = Mapping[str, tuple[int | str, ...]]


def tensor_core_advice(model: onnx.ModelProto, precision: str = "fp16") -> dict[str, str]:
    """Map each node that multiplies to a text on padding its sizes K and N (in one group of a Conv).

    The text is "fits"; "depthwise" (padding gains nothing); or for example "K 3 -> 8, 62.5% zeros": the next
    multiple, and the share of zeros in the padded multiply-adds.
    """
    stored = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    shapes: Shapes = {**infer_shapes(without_weights(model)), **stored}
    advice = {}
    for node in model.graph.node:
        sizes = _sizes(node, shapes)
        if sizes is not None:
            is_depthwise = attribute(node, "group", 1) > 1 and sizes["K"] == 1
            multiple, fixed = ALIGNMENT[precision], {n: s for n, s in sizes.items() if isinstance(s, int)}
            padded = {name: -(-size // multiple) * multiple for name, size in fixed.items()}
            pads = [f"{name} {fixed[name]} -> {size}" for name, size in padded.items() if size != fixed[name]]
            share = math.prod(fixed.values()) / math.prod(padded.values())
            padding = f"{', '.join(pads)}, {1 - share:.1%} zeros" if pads else "fits"
            advice[node.name] = "depthwise" if is_depthwise else padding
    return advice


def _sizes(node: onnx.NodeProto, shapes: Shapes) -> dict[str, int | str] | None:
    """Return K and N of a node (a text for a dynamic axis); None for other operators and unknown shapes."""
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
