"""Questions about an ONNX graph that several stages ask."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .onnx_file import dtype_name, tensor_bytes

if TYPE_CHECKING:
    import onnx

WEIGHTED = frozenset(["Conv", "ConvTranspose", "MatMul", "Gemm"])
"""Operators that do the arithmetic: where their precision is not reached, the intent is not."""

_INTEGER = frozenset(
    """
    QLinearConv ConvInteger QLinearMatMul MatMulInteger MatMulIntegerToFloat
    DynamicQuantizeMatMul QGemm QAttention DynamicQuantizeLSTM
    """.split()
)
_RECURRENT = frozenset(["LSTM", "GRU", "RNN"])
_FUSED = _RECURRENT | {"FusedConv", "FusedGemm", "FusedMatMul", "GemmFloat8", "Attention"}
_HALVES = {"float16": "fp16", "bfloat16": "bf16"}


def infer_types(model: onnx.ModelProto) -> dict[str, str]:
    """Return tensor name to numpy dtype name for every tensor whose type can be inferred."""
    import onnx

    light = without_weights(model)
    # Where it fails, what is declared in the file remains; the rest is reported as "cannot be inferred".
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError):
        light = onnx.shape_inference.infer_shapes(light)
    values = (*light.graph.input, *light.graph.value_info, *light.graph.output)
    types = {value.name: dtype_name(value.type.tensor_type.elem_type) for value in values}
    return {name: dtype for name, dtype in types.items() if dtype != "undefined"}


def infer_shapes(model: onnx.ModelProto) -> dict[str, tuple[int | str, ...]]:
    """Return tensor name to shape, for every tensor whose shape can be inferred; "" for an unknown extent."""
    import onnx

    light = without_weights(model)
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError):
        light = onnx.shape_inference.infer_shapes(light, data_prop=True)
    values = (*light.graph.input, *light.graph.value_info, *light.graph.output)
    shapes = {v.name: v.type.tensor_type.shape for v in values if v.type.tensor_type.HasField("shape")}
    return {
        name: tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in shape.dim)
        for name, shape in shapes.items()
    }


def without_weights(model: onnx.ModelProto, keep_bytes: int = 4096) -> onnx.ModelProto:
    """Return the model with large initializers turned into inputs: cheap to infer shapes on."""
    import onnx

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
    for tensor in source.initializer:
        if tensor_bytes(tensor) <= keep_bytes:
            graph.initializer.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return light


def constant_names(model: onnx.ModelProto) -> set[str]:
    """Return names of tensors that do not depend on any input."""
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    for node in model.graph.node:  # in topological order, as ONNX requires
        has_subgraph = any(attribute.HasField("g") for attribute in node.attribute)
        random = node.op_type.startswith("Random") or node.op_type in ("Multinomial", "Bernoulli")
        if not has_subgraph and not random and all(not i or i in constants for i in node.input):
            constants.update(node.output)
    return constants


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return tensor name to the node that makes it."""
    return {name: node for node in graph.node for name in node.output if name}


def consumers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    """Return tensor name to the nodes of this graph that read it."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    return readers


def int_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """Return a node's attribute that is a whole number, or its default."""
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


def set_values(tensor: onnx.TensorProto, values: NDArray[Any]) -> None:
    """Give an initializer other values; its name and its dtype stay."""
    from onnx import helper, numpy_helper

    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    array = np.asarray(values, dtype, order="C")
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node's attributes (If, Loop, Scan)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node without a name, or with one already taken, a unique one."""
    taken: set[str] = set()
    for node in graph.node:
        base = node.name or f"{node.op_type}_{node.output[0] if node.output else len(taken)}"
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        node.name = name
        taken.add(name)


def fix_initializers(model: onnx.ModelProto) -> None:
    """Take initializers off the list of inputs, where files older than IR version 4 have them."""
    stored = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in stored]
    if len(kept) != len(model.graph.input):
        del model.graph.input[:]
        model.graph.input.extend(kept)
        model.ir_version = max(model.ir_version, 4)


def drop_unused_initializers(graph: onnx.GraphProto) -> None:
    """Remove initializers that no node, subgraph or output reads."""
    used = {value.name for value in graph.output}
    graphs = [graph]
    while graphs:
        for node in graphs.pop().node:
            used.update(node.input)
            graphs.extend(subgraphs(node))
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    if len(kept) != len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)


def rename_inputs(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Let every node of a graph and of its subgraphs read other names."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = names[name]
        for inner in subgraphs(node):
            rename_inputs(inner, names)


def captured_names(node: onnx.NodeProto) -> set[str]:
    """Return names from outside that the subgraphs of a node read."""
    found: set[str] = set()
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        own |= {name for inner in graph.node for name in inner.output}
        for inner in graph.node:
            found |= (set(inner.input) | captured_names(inner)) - own
        found |= {value.name for value in graph.output} - own
    return found - {""}


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Bring nodes into an order of execution, near to their own; what subgraphs read counts, too."""
    made_by = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    nodes = list(graph.node)
    needs = [
        sorted({made_by[name] for name in {*node.input, *captured_names(node)} if name in made_by})
        for node in nodes
    ]
    order: dict[int, None] = {}
    begun: set[int] = set()  # a circle, which is no model, is left for the checker to refuse
    for first in range(len(nodes)):
        waiting = [first]
        while waiting:
            index = waiting[-1]
            begun.add(index)
            missing = next((other for other in needs[index] if other not in begun), None)
            if missing is None:
                order[waiting.pop()] = None
            else:
                waiting.append(missing)
    del graph.node[:]
    graph.node.extend(nodes[index] for index in order)


def weighted_nodes(model: onnx.ModelProto, *, as_executed: bool = False) -> dict[str, list[onnx.NodeProto]]:
    """Return the nodes that do the arithmetic, by the precision they compute in.

    "int8": an integer operator, or both operands come from DequantizeLinear, of whatever float type.
    "fp8": both operands come from DequantizeLinear of float8; the key is there only where there are such.
    "int4", or "int8" for MatMulNBits of 8 bits: weights alone are stored so, and multiplied as floats; the
    key is there only where there are such nodes.
    "fp16", "bf16" and "fp32": by the type of an operand. A recurrent layer has no integer form but its own
    integer operator: behind DequantizeLinear it computes in float.

    Args:
        model: A graph before or after ONNX Runtime's optimizer.
        as_executed: The graph is what runs: a DequantizeLinear left in it is carried out, and the node
            behind it computes in float.
    """
    made_by = producers(model.graph)
    types = infer_types(model)
    types.update({t.name: dtype_name(t.data_type) for t in model.graph.initializer})
    found: dict[str, list[onnx.NodeProto]] = {"int8": [], "fp16": [], "bf16": [], "fp32": []}
    for node in model.graph.node:
        if node.op_type in _INTEGER:
            found["int8"].append(node)
        elif node.op_type == "MatMulNBits" or (not as_executed and _reads_int4(node, made_by, types)):
            bits = next((a.i for a in node.attribute if a.name == "bits"), 4)
            found.setdefault("int8" if bits == 8 else "int4", []).append(node)
        elif node.op_type in WEIGHTED or node.op_type in _FUSED:
            operands = [made_by.get(name) for name in node.input[:2]]
            dequantized = all(m is not None and m.op_type == "DequantizeLinear" for m in operands)
            if dequantized and not as_executed and node.op_type not in _RECURRENT:
                stored = {types.get(m.input[0], "") for m in operands if m is not None}
                found.setdefault("fp8" if stored == {"float8_e4m3fn"} else "int8", []).append(node)
            else:
                halves = [_HALVES[types[name]] for name in node.input[:2] if types.get(name) in _HALVES]
                found[halves[0] if halves else "fp32"].append(node)
    return found


def _reads_int4(
    node: onnx.NodeProto, made_by: Mapping[str, onnx.NodeProto], types: Mapping[str, str]
) -> bool:
    """Whether the weight of a product or convolution is dequantized from 4 bits, and perhaps reshaped."""
    maker = made_by.get(node.input[1]) if node.op_type in WEIGHTED else None
    while maker is not None and maker.op_type in ("Reshape", "Transpose"):
        maker = made_by.get(maker.input[0])
    if maker is None or maker.op_type != "DequantizeLinear":
        return False
    return types.get(maker.input[0], "") in ("int4", "uint4")


def count_weighted(model: onnx.ModelProto, *, as_executed: bool = False) -> dict[str, dict[str, int]]:
    """Return precision to operator to number of nodes, for the manifest."""
    return {
        precision: dict(Counter(node.op_type for node in nodes))
        for precision, nodes in weighted_nodes(model, as_executed=as_executed).items()
    }


def holds_half(model: onnx.ModelProto) -> bool:
    """Return whether any stored tensor is, or any node makes, float16: beside INT8 it is not what counts."""
    if any(dtype_name(tensor.data_type) == "float16" for tensor in model.graph.initializer):
        return True
    return any(
        attribute.name == "to" and dtype_name(attribute.i) == "float16"
        for node in model.graph.node
        for attribute in node.attribute
    )


def graph_precision(model: onnx.ModelProto) -> str:
    """Return the first of "int8", "fp8", "int4", "fp16", "bf16" that any weighted node is in, else "fp32"."""
    nodes = weighted_nodes(model)
    ordered = ("int8", "fp8", "int4", "fp16", "bf16")
    return next((precision for precision in ordered if nodes.get(precision)), "fp32")
