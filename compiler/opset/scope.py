"""Tools for rewrites: the graph around a node (values, types, shapes, names), and the nodes in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ...errors import UnsupportedOperator
from ...model.graph.graph import (
    ONNX_DOMAINS,
    constant_names,
    constant_tensor,
    consumers,
    every_graph,
    infer_shapes,
    opset,
    producers,
    stored_tensors,
    subgraphs,
    tensor_values,
    with_inferred,
    without_weights,
)
from ...model.graph.graph_edits import drop_unread, drop_unused_initializers, set_nodes
from ...model.graph.graph_names import Names

NodeQuery = Callable[["onnx.ModelProto"], "list[str]"]
"""Returns the names of the matching nodes; changes nothing."""
ModelRewrite = Callable[["onnx.ModelProto"], "list[str]"]
"""Rewrites nodes in place, and returns their names."""
Fits = Callable[["onnx.NodeProto", "Links"], object]
Rewrite = Callable[["onnx.NodeProto", "Scope"], "list[onnx.NodeProto]"]
Replace = Callable[["onnx.NodeProto", "Scope"], "list[onnx.NodeProto] | None"]
"""Returns the nodes that replace a node; None to leave it."""


SAME = ("Identity", "Cast")  # operators that return the values of their operand
PLACES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze")  # operators that move values to other positions


class Scope:
    """One graph of a model, `typed` by shape inference, inside `outer`; new nodes are for opset `target`."""

    def __init__(
        self, graph: onnx.GraphProto, typed: onnx.GraphProto, target: int, outer: Scope | None = None
    ) -> None:
        self.graph, self.typed, self.target, self.outer = graph, typed, target, outer
        fed = {value.name for value in graph.input}  # for an input, a stored tensor is only the default value
        self._stored = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in fed}
        self._producers = {name: node for node in graph.node for name in node.output if name}
        values = (*typed.input, *typed.value_info, *typed.output)
        self._types = {value.name: value.type for value in values if value.type.WhichOneof("value")}
        self._types |= {
            item.name: helper.make_tensor_type_proto(item.data_type, item.dims) for item in graph.initializer
        }
        self.names: Names = outer.names if outer else Names(graph)

    def constant(self, name: str) -> NDArray[Any] | None:
        """Return the values of a stored tensor or of a Constant's result; None for any other tensor."""
        if name in self._stored:
            return tensor_values(self._stored[name])
        node = self._producers.get(name)
        if node is not None and node.op_type == "Identity":
            return self.constant(node.input[0])
        if node is not None:
            tensor = constant_tensor(node)
            return None if tensor is None else tensor_values(tensor)
        return None if name in self._types or self.outer is None else self.outer.constant(name)

    def type(self, name: str) -> str:
        """Return a type as ONNX's schemas spell it ("tensor(float)"); empty if it is unknown."""
        proto = self._type(name)
        return format_type(proto) if proto is not None else ""

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """Return the shape of a tensor, with None for an unknown extent; None if the rank is unknown."""
        extents = self.extents(name)
        if extents is None:
            return None
        return tuple(extent if isinstance(extent, int) else None for extent in extents)

    def extents(self, name: str) -> tuple[int | str | None, ...] | None:
        """Return the shape of a tensor, with the names of its dynamic extents."""
        proto = self._type(name)
        if proto is None or not proto.tensor_type.HasField("shape"):
            return None
        dims = proto.tensor_type.shape.dim
        return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in dims)

    def expanded(self, name: str) -> str:
        """Return the operand of an Expand that repeats axes of one element; otherwise the tensor itself."""
        node = self._producers.get(name)
        if node is None or node.op_type != "Expand":
            return name
        operand_shape, shape = self.shape(node.input[0]), self.shape(name)
        return node.input[0] if operand_shape and shape and len(operand_shape) == len(shape) else name

    def producer_of(self, name: str, operator: str) -> onnx.NodeProto | None:
        """Return the producer of a tensor if it is of this operator, otherwise None."""
        node = self._producers.get(name)
        return node if node is not None and node.op_type == operator else None

    def cast_from(self, name: str) -> str:
        """Return the operand of the Cast that makes a tensor; without a Cast, the tensor itself."""
        node = self._producers.get(name)
        return node.input[0] if node is not None and node.op_type == "Cast" else name

    def _type(self, name: str) -> onnx.TypeProto | None:
        if name in self._types:
            return self._types[name]
        return self.outer._type(name) if self.outer and name not in self._producers else None

    def rank(self, node: onnx.NodeProto, name: str) -> int:
        """Return the rank of an input of a node; raise UnsupportedOperator if it cannot be inferred."""
        shape = self.shape(name)
        if shape is None:
            raise self.unsupported(node, f"the rank of {name!r} cannot be inferred")
        return len(shape)

    def elem_type(self, node: onnx.NodeProto, name: str) -> int:
        """Return the element type of an input of a node, a TensorProto.DataType; raise if it is unknown."""
        proto = self._type(name)
        if proto is None or not proto.tensor_type.elem_type:
            raise self.unsupported(node, f"the type of {name!r} cannot be inferred")
        return int(proto.tensor_type.elem_type)

    def fresh(self, base: str) -> str:
        """Return a name that begins with `base` and is unique in the model."""
        return self.names.fresh(base)

    def store(self, values: NDArray[Any], base: str) -> str:
        """Store a constant; return its name."""
        tensor = numpy_helper.from_array(np.asarray(values), self.fresh(base))
        self.graph.initializer.append(tensor)
        self._stored[tensor.name] = tensor
        self._types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        return str(tensor.name)

    def unsupported(self, node: onnx.NodeProto, why: str, hint: str = "") -> UnsupportedOperator:
        """Return the error for a node that cannot be written in the target opset."""
        name = node.name or f"making {', '.join(node.output)}"
        return UnsupportedOperator(
            f"{node.op_type} {name!r}: {why}; opset {self.target} is required",
            hint=hint or "simplify first, which folds constants and shapes; or export to that opset",
            operator=node.op_type,
            node=node.name,
        )


class Links:
    """One graph of a model, with the producers, consumers and constants of its tensors."""

    def __init__(self, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
        self.model, self.graph = model, graph

    @cached_property
    def producers(self) -> dict[str, onnx.NodeProto]:
        """Tensor to its producer."""
        return producers(self.graph)

    @cached_property
    def consumers(self) -> dict[str, list[onnx.NodeProto]]:
        """Tensor to its consumers in the graph."""
        return consumers(self.graph)

    @cached_property
    def stored(self) -> dict[str, onnx.TensorProto]:
        """Name to tensor, of initializers and Constants."""
        return stored_tensors(self.graph)

    @cached_property
    def constants(self) -> set[str]:
        """Tensors that do not depend on an input."""
        return constant_names(self.model) | self.stored.keys()

    @cached_property
    def shapes(self) -> Mapping[str, Sequence[int | str]]:
        """Tensor to extents in the main graph, as far as shape inference succeeds."""
        return infer_shapes(self.model)


class Chain:
    """A sequence of nodes that replaces one node, with names derived from that node's."""

    def __init__(self, node: onnx.NodeProto, scope: Scope) -> None:
        self.name, self.output, self.scope = node_name(node), node.output[0], scope
        self.nodes: list[onnx.NodeProto] = []

    def result(self, name: str) -> list[onnx.NodeProto]:
        """Return the nodes; tensor `name` becomes the output of the replaced node."""
        producer = next(node for node in self.nodes if node.output[0] == name)
        producer.output[0] = self.output
        return self.nodes

    def add(self, operator: str, operands: Sequence[str], **attributes: Any) -> str:
        """Append a node; return the name of its output."""
        result = self.scope.fresh(f"{self.output}/{operator.lower()}")
        name = self.scope.fresh(f"{self.name}/{operator}")
        self.nodes.append(helper.make_node(operator, operands, [result], name, **attributes))
        return str(result)

    def cast(self, name: str, kind: int, to: int) -> str:
        """Return a tensor of element type `kind` as type `to`, with a Cast if they differ."""
        return name if to == kind else self.add("Cast", [name], to=to)

    def ints(self, values: int | Sequence[int] | NDArray[Any]) -> str:
        """Store an integer, or a vector of integers, as int64."""
        return self.scope.store(np.array(values, np.int64), f"{self.output}/ints")

    def scalar(self, value: float, kind: int) -> str:
        """Store a number of an element type."""
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        return self.scope.store(np.array(value, dtype), f"{self.output}/constant")

    def column(self, name: str, axes: int) -> str:
        """Return a vector reshaped to have this number of trailing axes of extent 1."""
        values = self.scope.constant(name)
        if values is not None:
            return self.scope.store(values.reshape(-1, *[1] * axes), f"{name}/column")
        return self.add("Reshape", [name, self.ints([-1] + [1] * axes)])

    def over_axes(self, operator: str, name: str, axes: list[int], **options: Any) -> str:
        """Append a node over axes: an operand from opset 18 on, of ReduceSum, Squeeze, Unsqueeze from 13."""
        if self.scope.target < (13 if operator in ("ReduceSum", "Squeeze", "Unsqueeze") else 18):
            return self.add(operator, [name], axes=axes, **options)
        return self.add(operator, [name, self.ints(axes)], **options)


def rewriting_each(operators: str) -> Callable[[Replace], ModelRewrite]:
    """Decorator: apply a rewrite to all nodes of these operators in a model, and remove unused nodes."""

    def of_model(rewrite: Replace) -> ModelRewrite:
        def rewrite_model(model: onnx.ModelProto) -> list[str]:
            if not find_nodes(model, operators):
                return []
            names = replace_nodes(
                model, opset(model), lambda node, scope: rewrite(node, scope) if is_one(node) else None
            )
            if names:
                drop_unread(model.graph)
                drop_unused_initializers(model.graph)
            return names

        return rewrite_model

    def is_one(node: onnx.NodeProto) -> bool:
        return node.op_type in operators.split() and node.domain in ONNX_DOMAINS

    return of_model


def replace_nodes(model: onnx.ModelProto, target: int, replace: Replace) -> list[str]:
    """Replace nodes of a model, those of subgraphs first; return the names of the replaced nodes."""
    names: list[str] = []
    for scope in reversed([*every_scope(model, target)]):
        nodes: list[onnx.NodeProto] = []
        for node in scope.graph.node:
            replaced = replace(node, scope)
            names += [node_name(node)] * (replaced is not None)
            nodes += [node] if replaced is None else replaced
        set_nodes(scope.graph, [type(node).FromString(node.SerializeToString()) for node in nodes])
    return names


def every_scope(model: onnx.ModelProto, target: int) -> Iterator[Scope]:
    """Yield the scope of the main graph and those of all subgraphs."""
    typed = with_inferred(without_weights(model), data_prop=True)  # a rewrite that needs more refuses
    pending = [Scope(model.graph, typed.graph, target)]
    while pending:
        scope = pending.pop()
        yield scope
        for nodes in zip(scope.graph.node, scope.typed.node, strict=True):
            graphs = zip(*map(subgraphs, nodes), strict=True)
            pending += [Scope(inner, inner_typed, target, scope) for inner, inner_typed in graphs]


def format_type(proto: onnx.TypeProto) -> str:
    """Return a type as ONNX's schemas spell it: "tensor(float)", "seq(tensor(int64))"."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        number = proto.tensor_type.elem_type
        return f"tensor({onnx.TensorProto.DataType.Name(number).lower()})" if number else ""
    if kind in ("sequence_type", "optional_type"):
        inner = format_type(getattr(proto, kind).elem_type)
        return f"{'seq' if kind == 'sequence_type' else 'optional'}({inner})" if inner else ""
    return ""


def find_nodes(model: onnx.ModelProto, operators: str, fits: Fits = lambda *_: True) -> list[str]:
    """Return the names of the nodes of these ONNX operators that meet `fits`, in all graphs of a model."""
    names = operators.split()
    return [
        node_name(node)
        for links in (Links(model, graph) for graph in every_graph(model.graph))
        for node in links.graph.node
        if node.op_type in names and node.domain in ONNX_DOMAINS and fits(node, links)
    ]


def node_query(operators: str) -> Callable[[Fits], NodeQuery]:
    """Decorator: turn a predicate on a node into a function that lists the matching nodes."""
    return lambda fits: lambda model: find_nodes(model, operators, fits)


def iterate_consumers(
    tensor: str, read_by: Mapping[str, Sequence[onnx.NodeProto]], passed: Collection[str]
) -> Iterator[onnx.NodeProto]:
    """Yield the consumers of a tensor, directly or through operators in `passed`."""
    pending, seen = [tensor], {tensor}
    while pending:
        for reader in read_by.get(pending.pop(), ()):
            yield reader
            if reader.op_type in passed:
                pending += [name for name in reader.output if name not in seen]
                seen.update(reader.output)


def nearest_producer(
    name: str, made_by: dict[str, onnx.NodeProto], passed: tuple[str, ...], constants: Collection[str] = ()
) -> onnx.NodeProto | None:
    """Return the nearest producer not in `passed`; None if a node between has several varying operands."""
    while (node := made_by.get(name)) is not None and node.op_type in passed:
        varying = [operand for operand in node.input if operand not in constants]
        if node.op_type in PLACES:  # a shape may be computed
            varying = varying[:1]
        if len(varying) != 1:
            return None
        name = varying[0]
    return node


def find_producer_chain(
    name: str, made_by: dict[str, onnx.NodeProto], *operators: str
) -> onnx.NodeProto | None:
    """Return the last node of the chain of producers `operators`, nearest first, skipping `SAME`; or None."""
    node = None
    for operator in operators:
        node = nearest_producer(name, made_by, SAME)
        if node is None or node.op_type != operator:
            return None
        name = node.input[0]
    return node


def drop_trailing(node: onnx.NodeProto) -> None:
    """Remove empty operands from the end of a node."""
    while node.input and not node.input[-1]:
        node.input.pop()


def node_name(node: onnx.NodeProto) -> str:
    """Return the name of a node, or of its first output."""
    return str(node.name or node.output[0])
