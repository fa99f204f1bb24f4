"""Changes to an ONNX graph that several rewrites make; all are in place.

They work on protobuf messages, as do ONNX Runtime's quantizer, ONNX's converter and its shape inference,
which the rewrites alternate with. CONTRIBUTING.md says what onnx-ir would cost.
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
    """Give a repeated field other items; those that stay may be among them."""
    items = list(items)
    del values[:]
    values.extend(items)


def set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Give a graph other nodes; those that stay may be among them."""
    refill(graph.node, nodes)


def store(graph: onnx.GraphProto, name: str, values: NDArray[Any]) -> str:
    """Add an initializer, and return its name."""
    graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values, order="C"), name))
    return name


def set_values(tensor: onnx.TensorProto, values: NDArray[Any]) -> None:
    """Give an initializer other values; its name and its dtype stay."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    array = np.asarray(values, dtype, order="C")
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def drop_attributes(node: onnx.NodeProto, *names: str) -> None:
    """Remove attributes by name, where the node has them."""
    for index in reversed(range(len(node.attribute))):
        if node.attribute[index].name in names:
            del node.attribute[index]


def store_constants(graph: onnx.GraphProto, excluded: Container[str] = ()) -> None:
    """Turn Constant nodes of numbers into initializers, and read them and others without an Identity between.

    Nodes that are excluded by name stay.
    """
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
    """Remove nodes of ONNX's own operators, or of these, that nothing reads, here and in subgraphs."""
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
                known = node.op_type in operators if operators is not None else node.domain in ONNX_DOMAINS
                if known and not read & set(node.output):
                    del inner.node[index]
                    removed = True


def drop_unused_initializers(graph: onnx.GraphProto) -> None:
    """Remove initializers that no node, subgraph or output reads."""
    used = {value.name for value in graph.output}
    used |= {name for inner in every_graph(graph) for node in inner.node for name in node.input}
    for index in reversed(range(len(graph.initializer))):  # those that stay are not copied
        if graph.initializer[index].name not in used:
            del graph.initializer[index]


def fix_initializers(model: onnx.ModelProto) -> None:
    """Take initializers off the list of inputs, where files older than IR version 4 have them."""
    stored = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in stored]
    if len(kept) != len(model.graph.input):
        refill(model.graph.input, kept)
        model.ir_version = max(model.ir_version, 4)


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
    refill(graph.node, (nodes[index] for index in order))


_AS_OUTPUT = {"float32": "FLOAT", "float16": "FLOAT16"}
"""Types that an engine returns and numpy has; other floats are cast to float32, exactly."""


def cut(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, str]:
    """Leave of a model what tensors of its outermost graph need, as its outputs; return tensor to output."""
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
            waiting += [one for one in (*made_by[name].input, *captured_names(made_by[name])) if one]
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
    # The inputs and the noted types of tensors that are gone go, and the types of outputs.
    refill(graph.input, (value for value in graph.input if value.name in needed))
    inner = needed - {value.name for value in graph.output}
    refill(graph.value_info, (value for value in graph.value_info if value.name in inner))
    drop_unused_initializers(graph)
    return outputs
