"""Expand an operator into its ONNX function body (Attention, Mish, ...)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...model.graph import subgraphs
from ...model.graph_edits import set_nodes
from .compatible_ops import COMPATIBLE
from .scope import Scope

if TYPE_CHECKING:
    import onnx


def write_out(node: onnx.NodeProto, scope: Scope, version: int) -> list[onnx.NodeProto]:
    """Return the nodes of an operator's body, wired to what the node reads and makes; empty without a body.

    Args:
        node: A node of ONNX's own domain.
        scope: The graph it is in.
        version: The opset of the model; the nodes returned are of it.

    Raises:
        UnsupportedOperator: If the body depends on a type that cannot be inferred.
    """
    import onnx

    schema = onnx.defs.get_schema(node.op_type, version, "")
    body = _body(node, scope, schema, version)
    if body is None:
        return []
    base = node.name or node.output[0]
    actual = dict.fromkeys(body.input, "") | dict(zip(body.input, node.input, strict=False))
    actual |= dict.fromkeys(body.output, "") | dict(zip(body.output, node.output, strict=False))
    actual = {name: given or (scope.fresh(f"{base}/{name}") if name in body.output else "")
              for name, given in actual.items()}  # fmt: skip
    given = {attribute.name: attribute for attribute in schema_defaults(schema)}
    given |= {attribute.name: attribute for attribute in node.attribute}
    return [_copied(inner, base, actual, given, scope) for inner in body.node]


def schema_defaults(schema: Any) -> list[onnx.AttributeProto]:
    """Return the attributes that a node has without giving them."""
    return [item.default_value for item in schema.attributes.values() if item.default_value.type]


def _body(node: onnx.NodeProto, scope: Scope, schema: Any, version: int) -> onnx.FunctionProto | None:
    import onnx

    depends = schema.has_context_dependent_function
    if not depends and not schema.has_function:
        return None
    offered = schema.context_dependent_function_opset_versions if depends else schema.function_opset_versions
    for offer in sorted((item for item in offered if item <= version), reverse=True):
        if depends:
            types = [_type(node, name, scope) for name in node.input]
            content = schema.get_context_dependent_function_with_opset_version(
                offer, node.SerializeToString(), [item.SerializeToString() for item in types]
            )
        else:
            content = schema.get_function_with_opset_version(offer)
        body = onnx.FunctionProto.FromString(content)
        if all(_means_the_same(inner.op_type, offer, version) for inner in body.node):
            return body
    return None


def _type(node: onnx.NodeProto, name: str, scope: Scope) -> onnx.TypeProto:
    import onnx

    if not name:
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(scope.elem_type(node, name), scope.shape(name))


def _means_the_same(operator: str, offer: int, version: int) -> bool:
    import onnx

    old, new = (onnx.defs.get_schema(operator, at, "") for at in (offer, version))
    return operator in COMPATIBLE or bool(old.since_version == new.since_version)


def _copied(
    node: onnx.NodeProto, base: str, actual: dict[str, str], given: Mapping[str, Any], scope: Scope
) -> onnx.NodeProto:
    """A node of a body, with the names and attributes of the node that the body stands for."""
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = scope.fresh(f"{base}/{node.op_type}")
    copy.input[:] = [actual.get(name, name) for name in node.input]
    for name in node.output:
        if name and name not in actual:
            actual[name] = scope.fresh(f"{base}/{name}")
    copy.output[:] = [actual.get(name, name) for name in node.output]
    while copy.input and not copy.input[-1]:
        copy.input.pop()
    kept = []
    for attribute in copy.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in given:
                continue
            name = attribute.name
            attribute.CopyFrom(given[attribute.ref_attr_name])
            attribute.name = name
        kept.append(attribute)
    attributes = [onnx.AttributeProto.FromString(item.SerializeToString()) for item in kept]
    del copy.attribute[:]
    copy.attribute.extend(attributes)
    for graph in subgraphs(copy):
        for value in graph.input:
            actual[value.name] = scope.fresh(f"{base}/{value.name}")
        set_nodes(graph, [_copied(item, base, actual, given, scope) for item in graph.node])
        for value in (*graph.input, *graph.output):
            value.name = actual.get(value.name, value.name)
    return copy
