"""In-place edits of an ONNX graph that several rewrites share.

The edits are on protobuf messages, because ONNX Runtime's quantizer, ONNX's converter and its shape inference
run between the rewrites and use this form. CONTRIBUTING.md explains the cost of onnx-ir.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import onnx
from .graph import (
    ONNX_DOMAINS,
    captured_names,
    constant_tensor,
    infer_shapes,
    infer_types,
    producers,
)
from .graph_names import Names, rename_inputs
from .onnx_checks import every_graph


def refill(values: Any, items: Iterable[Any]) -> None:
    """Replace the items of a repeated field; `items` may include old ones."""
    items = list(items)
    del values[:]
    values.extend(items)


def set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace the nodes of a graph, as `refill` does."""
    refill(graph.node, nodes)


def store(graph: onnx.GraphProto, name: str, values: NDArray[Any]) -> str:
    """Add an initializer and return its name."""
    graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values, order="C"), name))
    return name


def set_values(tensor: onnx.TensorProto, values: NDArray[Any]) -> None:
    """Replace the values of an initializer, converted to its dtype."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    array = np.asarray(values, dtype, order="C")
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def drop_attributes(node: onnx.NodeProto, *names: str) -> None:
    for index in reversed(range(len(node.attribute))):
        if node.attribute[index].name in names:
            del node.attribute[index]


def store_constants(graph: onnx.GraphProto, excluded: Container[str] = ()) -> None:
    """Turn numeric Constants into initializers, and remove Identities of initializers, but not `excluded`."""
    stored = []
    for index, node in enumerate(graph.node):
        constant = None if node.name in excluded else constant_tensor(node)
        if constant is not None:
            tensor = graph.initializer.add()
            tensor.CopyFrom(constant)
            tensor.name = node.output[0]
            stored.append(index)
    for index in reversed(stored):
        del graph.node[index]
    fixed = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input}
    outputs, source_of = {value.name for value in graph.output}, dict[str, str]()
    for node in graph.node:
        source = source_of.get(node.input[0], node.input[0]) if node.op_type == "Identity" else ""
        if source in fixed and node.name not in excluded and node.output[0] not in outputs:
            source_of[node.output[0]] = source
    if source_of:
        set_nodes(graph, [node for node in graph.node if not source_of.keys() & set(node.output)])
        rename_inputs(graph, source_of)


def drop_unread(graph: onnx.GraphProto, operators: Container[str] | None = None) -> None:
    """Remove nodes of `operators` (default: of ONNX's domain) with unread outputs, also in subgraphs."""
    removed = True
    while removed:
        removed = False
        graphs = list(every_graph(graph))
        read = {value.name for inner in graphs for value in inner.output}
        read |= {name for inner in graphs for node in inner.node for name in node.input}
        read.discard("")
        for inner in graphs:
            for index in reversed(range(len(inner.node))):
                node = inner.node[index]
                match = node.op_type in operators if operators is not None else node.domain in ONNX_DOMAINS
                if match and not read & set(node.output):
                    del inner.node[index]
                    removed = True


def drop_unused_initializers(graph: onnx.GraphProto) -> None:
    """Remove initializers that are not outputs and not read by a node, including nodes of subgraphs."""
    used = {value.name for value in graph.output}
    used |= {name for inner in every_graph(graph) for node in inner.node for name in node.input}
    for index in reversed(range(len(graph.initializer))):  # in place: `refill` would copy large weights
        if graph.initializer[index].name not in used:
            del graph.initializer[index]


def drop_initializer_inputs(model: onnx.ModelProto) -> None:
    """Remove initializers from the list of inputs, where files before IR version 4 repeat them."""
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    if len(inputs) != len(model.graph.input):
        refill(model.graph.input, inputs)
        model.ir_version = max(model.ir_version, 4)


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort nodes topologically, with few changes of order; tensors read by subgraphs count as inputs."""
    made_by = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    nodes = list(graph.node)
    producers_of = [
        sorted({made_by[name] for name in {*node.input, *captured_names(node)} if name in made_by})
        for node in nodes
    ]
    order: dict[int, None] = {}
    visited: set[int] = set()  # also ends the search in a cyclic graph, which the checker refuses later
    for first in range(len(nodes)):
        stack = [first]
        while stack:
            index = stack[-1]
            visited.add(index)
            missing = next((producer for producer in producers_of[index] if producer not in visited), None)
            if missing is None:
                order[stack.pop()] = None
            else:
                stack.append(missing)
    refill(graph.node, (nodes[index] for index in order))


_AS_OUTPUT = {"float32": "FLOAT", "float16": "FLOAT16"}
"""Output types that runtimes return and NumPy has; tensors of other types are cast to float32."""


def extract_tensors(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, str]:
    """Reduce a model to the nodes that compute these tensors; map each tensor to its output."""
    types, shapes = infer_types(model), infer_shapes(model)
    graph, new = model.graph, Names(model.graph)
    made_by = producers(graph)
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        if name in made_by:
            waiting += [source for source in (*made_by[name].input, *captured_names(made_by[name])) if source]
    set_nodes(graph, [node for node in graph.node if needed & set(node.output)])
    outputs: dict[str, str] = {}
    del graph.output[:]
    for name in names:
        kind, output = types.get(name, "float32"), name
        if kind not in _AS_OUTPUT:
            kind, output = "float32", new.fresh(f"{name}/read")
            to = onnx.TensorProto.FLOAT
            graph.node.append(onnx.helper.make_node("Cast", [name], [output], name=output, to=to))
        elem_type = onnx.TensorProto.DataType.Value(_AS_OUTPUT[kind])
        graph.output.append(onnx.helper.make_tensor_value_info(output, elem_type, shapes.get(name)))
        outputs[name] = output
    # Remove unused inputs, and the `value_info` of removed tensors and of outputs.
    refill(graph.input, (value for value in graph.input if value.name in needed))
    inner = needed - {value.name for value in graph.output}
    refill(graph.value_info, (value for value in graph.value_info if value.name in inner))
    drop_unused_initializers(graph)
    return outputs
