"""Queries on an ONNX graph that several stages need: types, shapes, precisions, weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...spec.tensors import ModelIO, TensorInfo
from .. import onnx
from .input_notes import InputNote, read_notes
from .onnx_checks import every_graph as every_graph
from .onnx_checks import hide_group_normalizations
from .onnx_checks import subgraphs as subgraphs

_FLOATS = (1, 10, 11, 16)  # float, float16, double, bfloat16
_NEVER_POSITIONS = ("ConstantOfShape", "If", "Loop", "Scan")
_PASS_THROUGH = ("Cast", "Transpose", "Reshape", "Identity")


def _block_format(name: str, made_by: Mapping[str, onnx.NodeProto], types: Mapping[str, str]) -> str:
    """Return the block format of an operand, "nvfp4" or "mxfp8", or "" for other operands."""
    node = _origin(name, made_by, _PASS_THROUGH)
    if node is None:
        return ""
    if node.op_type == "TRT_MXFP8DequantizeLinear":
        return "mxfp8"
    maker = made_by.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
    dynamic = maker is not None and maker.op_type == "TRT_FP4DynamicQuantize"
    stored = node.op_type == "DequantizeLinear" and types.get(node.input[0]) == "float4_e2m1fn"
    return "nvfp4" if dynamic or stored else ""


def _origin(name: str, made_by: Mapping[str, onnx.NodeProto], skip: Iterable[str]) -> onnx.NodeProto | None:
    """Return the node that produces a tensor, or None; nodes of the types `skip` are passed over."""
    node = made_by.get(name)
    while node is not None and node.op_type in skip:
        node = made_by.get(node.input[0])
    return node


WEIGHTED = frozenset(["Conv", "ConvTranspose", "MatMul", "Gemm"])
"""Operators with most of the arithmetic; their precision counts as the precision of the graph."""

ONNX_DOMAINS = ("", "ai.onnx")
"""How files spell the domain of ONNX's standard operators."""

_SMALL_BYTES = 4096
_CONSTANT_TYPES = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}
_INTEGER = frozenset(
    """
    QLinearConv ConvInteger QLinearMatMul MatMulInteger MatMulIntegerToFloat
    DynamicQuantizeMatMul QGemm QAttention DynamicQuantizeLSTM
    """.split()
)
_RECURRENT = frozenset(["LSTM", "GRU", "RNN"])
_FUSED = _RECURRENT | {"FusedConv", "FusedGemm", "FusedMatMul", "GemmFloat8", "Attention"}
_DEQUANTIZERS = {
    "DequantizeLinear": "",
    "TRT_FP8DequantizeLinear": "float8_e4m3fn",
    "TRT_INT4DequantizeLinear": "int4",
}
"""For each dequantizing operator, the type that it reads, if its name states the type (TensorRT)."""
_HALVES = {"float16": "fp16", "bfloat16": "bf16"}


def infer_types(model: onnx.ModelProto) -> dict[str, str]:
    """Map each tensor with an inferable type to the name of its NumPy dtype."""
    values = _inferred(model, data_prop=False)
    types = {value.name: dtype_name(value.type.tensor_type.elem_type) for value in values}
    return {name: dtype for name, dtype in types.items() if dtype != "undefined"}


def infer_shapes(model: onnx.ModelProto) -> dict[str, tuple[int | str, ...]]:
    """Map each tensor with an inferable rank to its shape; see `declared_shape`."""
    values = _inferred(model, data_prop=True)
    return {value.name: declared_shape(value) for value in values if value.type.tensor_type.HasField("shape")}


def declared_shape(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    """Return the declared extents (sizes of axes) of a tensor: numbers, symbols, or "" if unknown."""
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in dims)


def _inferred(model: onnx.ModelProto, *, data_prop: bool) -> list[onnx.ValueInfoProto]:
    """Return inputs, intermediate tensors and outputs, with inferred types and shapes."""
    light = with_inferred(without_weights(model), data_prop=data_prop)
    return [*light.graph.input, *light.graph.value_info, *light.graph.output]


def with_inferred(
    light: onnx.ModelProto, *, data_prop: bool = False, strict: bool = False
) -> onnx.ModelProto:
    """Return a model with inferred types and shapes; edits `light`, which must be a private copy.

    If inference fails, the declarations remain. With `strict`, failures and contradictions are raised.
    """
    hide_group_normalizations(light)
    try:
        return onnx.shape_inference.infer_shapes(
            light, check_type=strict, strict_mode=strict, data_prop=data_prop
        )
    except (onnx.shape_inference.InferenceError, RuntimeError):
        if strict:
            raise
        return light


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with large initializers as inputs, so that shape inference is cheap."""
    light = onnx.ModelProto()
    light.ir_version = max(model.ir_version, 4)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph, source = light.graph, model.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    declared = {value.name for value in source.input}
    graph.input.extend(source.input)
    graph.sparse_initializer.extend(source.sparse_initializer)
    for tensor in source.initializer:
        if tensor_bytes(tensor) <= _SMALL_BYTES:
            graph.initializer.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return light


def position_tensors(graph: onnx.GraphProto) -> set[str]:
    """Return the float tensors computed only from shapes and stored numbers: positions, and their angles.

    An input can be longer than every sample; half precision cannot distinguish its later positions. Values
    that Gather or Expand take from a stored table are not positions.
    """
    stored = {tensor.name: tensor.data_type in _FLOATS for tensor in graph.initializer}
    counts, positions = set[str](), set[str]()
    for node in graph.node:
        if node.op_type in ("Shape", "Size"):
            counts.update(node.output)
            continue
        computed = {name for name in node.input if name} - stored.keys()
        is_derived = computed <= counts | positions and (computed or node.op_type == "Range")
        if not is_derived or node.op_type in _NEVER_POSITIONS:
            continue
        values = node.input
        if "Gather" in node.op_type or node.op_type == "Where":
            values = node.input[1:] if node.op_type == "Where" else node.input[:1]
        to_float = node.op_type == "Cast" and attribute(node, "to") in _FLOATS
        if to_float or positions.intersection(values):
            positions.update(node.output)
        elif not any(stored.get(name) for name in values):
            counts.update(node.output)
    return positions


def constant_names(model: onnx.ModelProto) -> set[str]:
    """Return the names of tensors that do not depend on any input."""
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    for node in model.graph.node:  # in topological order, as ONNX requires
        has_subgraph = any(True for _ in subgraphs(node))
        random = node.op_type.startswith("Random") or node.op_type in ("Multinomial", "Bernoulli")
        if not has_subgraph and not random and all(not i or i in constants for i in node.input):
            constants.update(node.output)
    return constants


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Map each tensor to the node that produces it."""
    return {name: node for node in graph.node for name in node.output if name}


def consumers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    """Map each tensor to its consumers in this graph, without those in subgraphs."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    return readers


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of an attribute, strings as str; `default` if the attribute is absent."""
    for item in node.attribute:
        if item.name == name:
            value = onnx.helper.get_attribute_value(item)
            return value.decode(errors="replace") if isinstance(value, bytes) else value
    return default


def tensor_values(tensor: onnx.TensorProto) -> NDArray[Any]:
    values: NDArray[Any] = onnx.numpy_helper.to_array(tensor)
    return values


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor of a Constant node; None for a string, a sparse tensor or another operator."""
    if node.op_type != "Constant" or node.domain not in ONNX_DOMAINS:
        return None
    tensor: onnx.TensorProto | None = attribute(node, "value")
    if tensor is not None:
        return tensor
    for name, dtype in _CONSTANT_TYPES.items():
        value = attribute(node, name)
        if value is not None:
            return onnx.numpy_helper.from_array(np.asarray(value, dtype))
    return None


def stored_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Map names to tensors, for the initializers and the Constant nodes of a graph."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        tensor = constant_tensor(node)
        if tensor is not None:
            stored[node.output[0]] = tensor
    return stored


def captured_names(node: onnx.NodeProto) -> set[str]:
    """Return the tensors of outer graphs that the subgraphs of a node read."""
    names: set[str] = set()
    for graph in subgraphs(node):
        inner_names = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        inner_names |= {name for inner in graph.node for name in inner.output}
        for inner in graph.node:
            names |= (set(inner.input) | captured_names(inner)) - inner_names
        names |= {value.name for value in graph.output} - inner_names
    return names - {""}


def pinned_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the outputs of a graph and of the tensors that its subgraphs read."""
    return {value.name for value in graph.output}.union(*map(captured_names, graph.node))


def weighted_nodes(model: onnx.ModelProto, *, as_executed: bool = False) -> dict[str, list[onnx.NodeProto]]:
    """Return the nodes with most of the arithmetic, by the precision in which they compute.

    "int8": an integer operator, or both operands come from DequantizeLinear, whatever the float type.
    "fp8": both operands come from DequantizeLinear of float8.
    "int4": the weight is stored in 4 bits; products are in floating point. MatMulNBits of 8 bits is "int8".
    "nvfp4", "mxfp8": both operands are in this format, perhaps after a Cast and a Transpose.
    "fp16", "bf16", "fp32": by the types of the operands; also recurrent layers after DequantizeLinear.
    The keys "int8", "fp16", "bf16" and "fp32" are always present.

    Args:
        model: A graph before or after ONNX Runtime's optimizer.
        as_executed: Whether no optimizer will change it; nodes after DequantizeLinear then compute in float.
    """
    made_by = producers(model.graph)
    types = infer_types(model)
    types.update({t.name: dtype_name(t.data_type) for t in model.graph.initializer})
    by_precision: dict[str, list[onnx.NodeProto]] = {"int8": [], "fp16": [], "bf16": [], "fp32": []}
    for node in model.graph.node:
        if node.op_type in _INTEGER:
            by_precision["int8"].append(node)
            continue
        # The producer of a weight, which may be dequantized from 4 bits and then reshaped.
        may_read_int4 = node.op_type in WEIGHTED and not as_executed
        maker = _origin(node.input[1], made_by, ("Reshape", "Transpose")) if may_read_int4 else None
        weight = ""
        if maker is not None and maker.op_type in _DEQUANTIZERS:
            weight = _DEQUANTIZERS[maker.op_type] or types.get(maker.input[0], "")
        if node.op_type == "MatMulNBits" or weight in ("int4", "uint4"):
            bits = attribute(node, "bits", 4)
            by_precision.setdefault("int8" if bits == 8 else "int4", []).append(node)
        elif node.op_type in WEIGHTED or node.op_type in _FUSED:
            operands = [made_by.get(name) for name in node.input[:2]]
            dequantized = all(m is not None and m.op_type in _DEQUANTIZERS for m in operands)
            blocks = {_block_format(name, made_by, types) for name in node.input[:2]}
            if len(blocks) == 1 and blocks != {""}:
                by_precision.setdefault(blocks.pop(), []).append(node)
            elif dequantized and not as_executed and node.op_type not in _RECURRENT:
                stored = {
                    _DEQUANTIZERS[m.op_type] or types.get(m.input[0], "") for m in operands if m is not None
                }
                by_precision.setdefault("fp8" if stored == {"float8_e4m3fn"} else "int8", []).append(node)
            else:
                halves = [_HALVES[types[name]] for name in node.input[:2] if types.get(name) in _HALVES]
                by_precision[halves[0] if halves else "fp32"].append(node)
    return by_precision


def count_weighted(model: onnx.ModelProto, *, as_executed: bool = False) -> dict[str, dict[str, int]]:
    """Count the nodes with most of the arithmetic by precision and operator, for the manifest."""
    return {
        precision: dict(Counter(node.op_type for node in nodes))
        for precision, nodes in weighted_nodes(model, as_executed=as_executed).items()
    }


def has_float16(model: onnx.ModelProto) -> bool:
    """Return whether an initializer or a Cast is float16; `graph_precision` shows "int8" beside it."""
    if any(dtype_name(tensor.data_type) == "float16" for tensor in model.graph.initializer):
        return True
    casts = (node for node in model.graph.node if node.op_type == "Cast")
    return any(dtype_name(attribute(node, "to", 0)) == "float16" for node in casts)


def graph_precision(model: onnx.ModelProto) -> str:
    """Return the first of int8, fp8, nvfp4, mxfp8, int4, fp16, bf16 that a weighted node has, else fp32."""
    nodes = weighted_nodes(model)
    ordered = ("int8", "fp8", "nvfp4", "mxfp8", "int4", "fp16", "bf16")
    return next((precision for precision in ordered if nodes.get(precision)), "fp32")


_SCALES = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), (1, 2, 4, 5, 6, 7)),
    **dict.fromkeys(("DynamicQuantizeMatMul", "MatMulNBits", "MatMulInteger", "ConvInteger"), (2, 3)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (1, 2)),
    "QGemm": (1, 2, 4, 5, 7, 8),
    "MatMulIntegerToFloat": (2, 3, 4, 5),
}
"""For each operator, the indices of its scales and zero points, as ONNX and ONNX Runtime define them."""
_NO_WEIGHTS = ("bool", "string", "undefined", "int64")  # shapes, axes and indices


@dataclass(frozen=True)
class WeightStats:
    """The weights of an artifact or a module: how many values, and the bytes of all stored tensors.

    `parameters` excludes scales, zero points, shapes and indices; `precision` may be empty.
    """

    parameters: int
    bytes: int
    precision: str = ""


def weights_of_graph(model: onnx.ModelProto) -> WeightStats:
    """Return the statistics of a graph's weights: initializers and Constants, also of subgraphs."""
    parameters, size = 0, 0
    for graph in every_graph(model.graph):
        packed = {
            node.input[1]: attribute(node, "K", 0) * attribute(node, "N", 0)
            for node in graph.node
            if node.op_type == "MatMulNBits"
        }
        scales = {
            node.input[index]
            for node in graph.node
            for index in _SCALES.get(node.op_type, ())
            if index < len(node.input)
        }
        for name, tensor in stored_tensors(graph).items():
            size += tensor_bytes(tensor)
            if name not in scales and dtype_name(tensor.data_type) not in _NO_WEIGHTS:
                parameters += packed.get(name) or math.prod(tensor.dims)
    return WeightStats(parameters, size)


def model_io(model: onnx.ModelProto) -> ModelIO:
    """Return the outputs, and the inputs with noted preprocessing; initializers do not count as inputs."""
    stored, notes = {tensor.name for tensor in model.graph.initializer}, read_notes(model)
    return ModelIO(
        tuple(
            _tensor(value, notes.get(value.name)) for value in model.graph.input if value.name not in stored
        ),
        tuple(map(_tensor, model.graph.output)),
    )


def _tensor(value: onnx.ValueInfoProto, note: InputNote | None = None) -> TensorInfo:
    dtype = dtype_name(value.type.tensor_type.elem_type)
    shape = tuple("?" if extent == "" else extent for extent in declared_shape(value))
    return TensorInfo(value.name, dtype, shape, preprocessing=note.preprocessing if note else None)


def opset(model: onnx.ModelProto, domain: str = "") -> int:
    """Return the imported opset of a domain, or 0."""
    names = ONNX_DOMAINS if domain in ONNX_DOMAINS else (domain,)
    return max((item.version for item in model.opset_import if item.domain in names), default=0)


def count_operators(model: onnx.ModelProto) -> dict[str, int]:
    """Count the nodes of each operator, most frequent first, subgraphs included."""
    nodes = (node for graph in every_graph(model.graph) for node in graph.node)
    counts = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def dtype_name(elem_type: int) -> str:
    """Return NumPy's name of an ONNX element type ("float32", "bfloat16"), "string" or "undefined"."""
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError:  # undefined, or unknown to this version of onnx
        return "undefined"


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor's values, from its shape and type; 0 for strings."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return 0
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return int(math.prod(tensor.dims) * dtype.itemsize)
