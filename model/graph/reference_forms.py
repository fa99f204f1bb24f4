"""Rewritten copies of a quantized graph: with exact integers, without rounding, or in half precision.

`without_saturation` returns a graph with the results that ONNX defines. Kernels for AVX2 add two products of
uint8 and int8 in 16 bits, which overflow; they add products of uint8 and uint8 exactly. Q/DQ pairs remain,
because a session without integer kernels computes them in floats (`session_options(integers=False)`).

    MatMulInteger(x, int8 w, zx, zw)        becomes     MatMulInteger(x, uint8 w + 128, zx, zw + 128)

`without_roundings` returns a graph with activations that are clipped to their ranges, but not rounded.
Weights retain their quantized values.

    x ─ QuantizeLinear ─ DequantizeLinear ─    becomes    x ─ Max(low) ─ Min(high) ─
    x ─ DynamicQuantizeLinear ─ MatMulInteger(w)  becomes  x ─ MatMul(float w - zw), with scale 1 of x
    DynamicQuantizeLSTM(x, w, r)            becomes     LSTM(x, (w - zw) * sw, (r - zr) * sr)

`with_halves` imitates a runtime that computes in half precision in place of float32: the graph rounds outputs
of nodes, and weights of products.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import onnx
from .graph import (
    WEIGHTED,
    attribute,
    constant_names,
    consumers,
    dtype_name,
    every_graph,
    infer_types,
    opset,
    producers,
    tensor_values,
)
from .graph_edits import (
    drop_unread,
    drop_unused_initializers,
    set_nodes,
    set_values,
    store,
    store_constants,
)
from .graph_names import Names
from .onnx_file import copy_model

_CAST_TO_BFLOAT16 = 13  # the first opset with this Cast
_ABSENT = 1 << 30  # an input index that no node has
_LSTM = "DynamicQuantizeLSTM"
_FLOAT_FORMS: Mapping[str, tuple[str, Mapping[int, tuple[int, int]], Sequence[int]]] = {
    "MatMulInteger": ("MatMul", {1: (_ABSENT, 3)}, (0, 1)),
    "ConvInteger": ("Conv", {1: (_ABSENT, 3)}, (0, 1)),
    "QAttention": ("Attention", {1: (4, 7)}, (0, 1, 2, 5, 8)),
    _LSTM: ("LSTM", {1: (8, 9), 2: (10, 11)}, range(8)),
}
"""For each operator: its float operator; indices of each weight, with its scale and zero point; operands."""
_SATURATING = {
    operator: [(weight, zero_point) for weight, (_, zero_point) in weights.items()]
    for operator, (_, weights, _) in _FLOAT_FORMS.items()
} | {"DynamicQuantizeMatMul": [(1, 3)]}
"""For each operator, the indices of each weight and its zero point."""
_RANDOM = frozenset(["Multinomial", "Bernoulli"])

_HALVES = {"fp16": 10, "bf16": 16}
_LARGEST_FP16 = 65504

Stored = Mapping[str, "onnx.TensorProto"]


def rounds_activations(model: onnx.ModelProto) -> bool:
    rounding = ("QuantizeLinear", "DynamicQuantizeLinear", *_SATURATING)
    return any(node.op_type in rounding for graph in every_graph(model.graph) for node in graph.node)


def is_random(model: onnx.ModelProto) -> bool:
    """Return whether a graph draws random numbers, so that its results may differ between runs."""
    graphs = list(every_graph(model.graph))
    stored = [tensor for graph in graphs for tensor in graph.initializer]
    bools = (tensor for tensor in stored if dtype_name(tensor.data_type) == "bool")
    off = {"", *(tensor.name for tensor in bools if not tensor_values(tensor).any())}
    return any(
        node.op_type.startswith("Random")
        or node.op_type in _RANDOM
        or (node.op_type == "Dropout" and _input(node, 2) not in off)
        for graph in graphs
        for node in graph.node
    )


def without_saturation(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with uint8 in place of int8 weights; if no operator saturates, the model itself."""
    if not any(node.op_type in _SATURATING for node in model.graph.node):
        return model
    result = copy_model(model)
    graph = result.graph
    store_constants(graph)
    stored, names = {tensor.name: tensor for tensor in graph.initializer}, Names(graph)
    shifted: dict[str, str] = {}
    for node in graph.node:
        for weight, zero_point in _SATURATING.get(node.op_type, ()):
            tensor = stored.get(_input(node, weight))
            if tensor is not None and dtype_name(tensor.data_type) == "int8":
                node.input.extend([""] * (zero_point + 1 - len(node.input)))
                for place in (weight, zero_point):
                    name = node.input[place]
                    shifted[name] = shifted.get(name) or _shifted(graph, stored, name, names)
                    node.input[place] = shifted[name]
    drop_unused_initializers(graph)
    return result


def _shifted(graph: onnx.GraphProto, stored: Stored, name: str, names: Names) -> str:
    """Store int8 values plus 128 as uint8, and return the name; an absent zero point is 0."""
    values = tensor_values(stored[name]) if name else np.zeros((), np.int8)
    return store(graph, names.fresh(f"{name}/shifted"), (values.astype(np.int16) + 128).astype(np.uint8))


def with_halves(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    """Return a copy that rounds float32 to "fp16" or "bf16" (see above); Q/DQ pairs are unchanged."""
    result = copy_model(model)
    graph = result.graph
    store_constants(graph)
    types, constants, readers = infer_types(result), constant_names(result), consumers(graph)
    names = Names(graph)
    weights = {name for node in graph.node if node.op_type in WEIGHTED for name in node.input}
    half = onnx.helper.tensor_dtype_to_np_dtype(_HALVES[precision])
    for tensor in graph.initializer:
        if tensor.name in weights and tensor.data_type == onnx.TensorProto.FLOAT:
            set_values(tensor, tensor_values(tensor).astype(half).astype(np.float32))
    limit = np.float32(_LARGEST_FP16 if precision == "fp16" else np.inf)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            users = readers.get(name)
            integer = node.op_type == "DequantizeLinear" or (
                users and all(reader.op_type == "QuantizeLinear" for reader in users)
            )
            if types.get(name) == "float32" and name not in constants and not integer:
                stem = names.stem(name)
                exact = node.output[place] = f"{stem}/exact"
                if precision == "bf16" and opset(model) < _CAST_TO_BFLOAT16:
                    nodes += _split(graph, exact, name, stem)
                    continue
                nodes += _clipped(graph, exact, f"{stem}/within", (-limit, limit), f"{stem}/within")
                for operand, output, to in ((f"{stem}/within", f"{stem}/half", _HALVES[precision]),
                                            (f"{stem}/half", name, onnx.TensorProto.FLOAT)):  # fmt: skip
                    nodes.append(_node("Cast", [operand], output))
                    nodes[-1].attribute.append(onnx.helper.make_attribute("to", to))
    set_nodes(graph, nodes)
    return result


def _split(graph: onnx.GraphProto, value: str, output: str, stem: str) -> list[onnx.NodeProto]:
    """Round x to bfloat16 without a Cast (Veltkamp's split): w − (w − y) has 8 bits of y, where w = 65537 y.

    Because y = x / 2^17, no product overflows. Infinities are clipped, and become infinite again.
    """
    scaled, y, w, error, split = (f"{stem}/{part}" for part in ("scaled", "within", "wide", "rest", "split"))
    factors = [
        store(graph, f"{stem}/factor{place}", np.float32(factor))
        for place, factor in enumerate((2.0**-17, 65537.0, 2.0**17))
    ]
    return [
        _node("Mul", [value, factors[0]], scaled),
        *_clipped(graph, scaled, y, (-np.float32(2.0**111), np.float32(2.0**111)), y),
        _node("Mul", [y, factors[1]], w),
        _node("Sub", [w, y], error),
        _node("Sub", [w, error], split),
        _node("Mul", [split, factors[2]], output),
    ]


def without_roundings(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that does not round activations; pairs without a stored scale of one value remain."""
    result = copy_model(model)
    graph = result.graph
    store_constants(graph)
    constants = constant_names(result)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    made_by, readers, names = producers(graph), consumers(graph), Names(graph)
    dequantized: dict[tuple[str, ...], str] = {}
    dynamic = {
        node.output[0]
        for node in graph.node
        if node.op_type == "DynamicQuantizeLinear"
        and all(
            reader.op_type in _FLOAT_FORMS and reader.input[1] in stored
            for reader in readers.get(node.output[0], ())
        )
    }
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        maker = made_by.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if maker is not None and maker.input[0] not in constants and (limits := _limits(maker, node, stored)):
            nodes += _clipped(graph, maker.input[0], node.output[0], limits, names.stem(node.output[0]))
        elif node.op_type == "DynamicQuantizeLinear" and node.output[0] in dynamic:
            nodes.append(_node("Identity", [node.input[0]], node.output[0]))
            store(graph, node.output[1], np.float32(1))
            store(graph, node.output[2], np.uint8(0))
        elif node.op_type == _LSTM or (node.op_type in _FLOAT_FORMS and node.input[0] in dynamic):
            nodes.append(_float_form(graph, node, stored, names, dequantized))
        else:
            nodes.append(node)
    set_nodes(graph, nodes)
    drop_unread(graph, ("QuantizeLinear",))
    drop_unused_initializers(graph)
    del graph.value_info[:]  # integers became floats
    return result


def _limits(
    quantize: onnx.NodeProto, dequantize: onnx.NodeProto, stored: Stored
) -> tuple[NDArray[Any], ...] | None:
    """Return the least and largest value of a Q/DQ pair; None if the pair must remain."""
    if quantize.op_type != "QuantizeLinear":
        return None
    names = [[name for name in node.input[1:3] if name] for node in (quantize, dequantize)]
    if any(name not in stored for pair in names for name in pair):
        return None
    written, read = ([tensor_values(stored[name]) for name in pair] for pair in names)
    if len(written) != len(read) or any(a.size != 1 or a != b for a, b in zip(written, read, strict=True)):
        return None
    kind = int(attribute(quantize, "output_dtype", 0)) or int(onnx.TensorProto.UINT8)
    dtype = written[1].dtype if len(written) > 1 else onnx.helper.tensor_dtype_to_np_dtype(kind)
    if dtype.kind not in "iu":  # float8, or 4 bits, which NumPy lacks: not clipped
        return np.float32(-np.inf).astype(written[0].dtype), np.float32(np.inf).astype(written[0].dtype)
    scale, zero = written[0].reshape(()), int(written[1].item()) if len(written) > 1 else 0
    ends = (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return tuple((scale * (int(end) - zero)).astype(scale.dtype) for end in ends)


def _clipped(
    graph: onnx.GraphProto, value: str, output: str, limits: tuple[NDArray[Any], ...], stem: str
) -> list[onnx.NodeProto]:
    low, high = (
        store(graph, f"{stem}/{end}", limit) for end, limit in zip(("low", "high"), limits, strict=True)
    )
    return [_node("Max", [value, low], f"{stem}/above"), _node("Min", [f"{stem}/above", high], output)]


def _float_form(
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    stored: Stored,
    new: Names,
    dequantized: dict[tuple[str, ...], str],
) -> onnx.NodeProto:
    """Return the float operator with dequantized weights; the scale of x is 1."""
    operator, weights, operands = _FLOAT_FORMS[node.op_type]
    names = {}
    for place, points in weights.items():
        read = (node.op_type, *(_input(node, operand) for operand in (place, *points)))
        if read not in dequantized:
            values = _dequantized(stored, node, read[1:])
            dequantized[read] = store(graph, new.fresh(f"{read[1]}/float"), values)
        names[place] = dequantized[read]
    result = copy.deepcopy(node)
    result.op_type = operator
    result.input[:] = [names.get(place) or _input(node, place) for place in operands]
    result.domain = node.domain if operator == "Attention" else ""
    return result


def _dequantized(stored: Stored, node: onnx.NodeProto, names: Sequence[str]) -> NDArray[Any]:
    """Return (w - zero point) * scale as float32; `names` are those of w, the scale and the zero point.

    The scale and the zero point are scalars or vary along one axis. For an LSTM, they are [directions] or
    [directions, 4 * hidden]; the last two axes of its weights [directions, inputs, 4 * hidden] are swapped.
    """
    name, scale, zero_point = names
    weight, is_lstm = tensor_values(stored[name]).astype(np.float32), node.op_type == _LSTM

    def spread(name_of: str, default: float) -> NDArray[Any]:
        values = tensor_values(stored[name_of]).astype(np.float32) if name_of else np.float32(default)
        if is_lstm:
            return values.reshape(weight.shape[0], 1, -1) if np.ndim(values) else np.asarray(values)
        shape = [1] * weight.ndim
        shape[0 if node.op_type == "ConvInteger" else -1] = -1
        return values.reshape(shape) if np.ndim(values) == 1 else np.asarray(values)

    weight = (weight - spread(zero_point, 0)) * spread(scale, 1)
    return np.asarray(weight.swapaxes(1, 2) if is_lstm else weight)


def _input(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if len(node.input) > place else ""


def _node(operator: str, operands: list[str], output: str) -> onnx.NodeProto:
    return onnx.helper.make_node(operator, operands, [output], name=output)
