"""Whether the nodes of a graph fit together: names, order, numbers of inputs and outputs, attributes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")

Problem = tuple[str, str]
"""What is wrong, and the way out; empty where the common one serves."""
Scopes = tuple[set[str], ...]
"""Names of the tensors of a graph and of those around it, the outermost first."""


def opsets_of(imports: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return domain to version, ONNX's own domain under its short name."""
    return {"" if item.domain == "ai.onnx" else item.domain: item.version for item in imports}


@dataclass(frozen=True)
class _Operator:
    """What ONNX says of an operator.

    Attributes:
        inputs, outputs: Least and largest number.
        required: Whether each of the inputs that it names must be given.
        repeats: Whether the last of them repeats; an empty name among these crashes ONNX Runtime's Einsum.
        attributes: Name to (type, whether it is required).
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    required: tuple[bool, ...]
    repeats: bool
    attributes: Mapping[str, tuple[int, bool]]


def check_graph(
    graph: onnx.GraphProto,
    opsets: Mapping[str, int],
    outer: Scopes = (),
    where: str = "",
    declared: Collection[str] = (),
) -> Problem | None:
    """Return what is wrong with a graph and those inside of it; None where nothing is.

    Args:
        graph: The graph.
        opsets: Domain to version, as `opsets_of` gives them.
        outer: Tensors of each graph around it.
        where: How messages name the graph, where it is not the model's own.
        declared: Attributes of the function around it.
    """
    own: set[str] = set()
    for value in graph.input:
        if value.name in own:
            return f"input {value.name!r}{where} is declared twice", ""
        own.add(value.name)
    stored: set[str] = set()
    for name in (*(t.name for t in graph.initializer), *(t.values.name for t in graph.sparse_initializer)):
        if not name:
            return f"a stored tensor{where} has no name", ""
        if name in stored:
            return f"tensor {name!r}{where} is stored twice", ""
        stored.add(name)
    own |= stored
    scopes = (*outer, own)
    problem = check_nodes(graph.node, scopes, opsets, where, declared)
    if problem:
        return problem
    outputs: set[str] = set()
    for value in graph.output:
        if not any(value.name in scope for scope in scopes):
            return f"output {value.name!r}{where}: no node makes it", ""
        if value.name in outputs and not where:
            return f"output {value.name!r} is declared twice", ""
        outputs.add(value.name)
    return None


def check_nodes(
    nodes: Sequence[onnx.NodeProto],
    scopes: Scopes,
    opsets: Mapping[str, int],
    where: str,
    declared: Collection[str],
) -> Problem | None:
    """Go through nodes in their order; the last scope grows by what they make."""
    own = scopes[-1]
    for node in nodes:
        for name in node.input:
            if name and not any(name in scope for scope in scopes):
                later = any(name in other.output for other in nodes)
                found = (
                    "which only a later node makes: the nodes are out of order, or form a cycle"
                    if later
                    else "which nothing makes"
                )
                return f"{named(node)}{where} reads {name!r}, {found}", ""
        problem = _check_node(node, opsets, where, declared)
        if problem:
            return problem
        for attribute in node.attribute:
            graphs = [attribute.g] if attribute.HasField("g") else []
            for inner in (*graphs, *attribute.graphs):
                inside = f" in {attribute.name!r} of {named(node)}"
                problem = check_graph(inner, opsets, scopes, inside, declared)
                if problem:
                    return problem
        for name in node.output:
            if name and name in own:
                return f"{named(node)}{where} makes {name!r}, which is there already", ""
            if name:
                own.add(name)
    return None


def named(node: onnx.NodeProto) -> str:
    """Return how messages name a node: operator, and its name or what it makes."""
    made = node.name or (f"making {node.output[0]}" if node.output else "without a name")
    return f"{node.op_type or 'a node'} {made!r}"


def _check_node(
    node: onnx.NodeProto, opsets: Mapping[str, int], where: str, declared: Collection[str]
) -> Problem | None:
    subject = f"{named(node)}{where}"
    if not node.op_type:
        return f"{subject} has no operator", ""
    if not any(node.output):
        return f"{subject} has no output", ""
    given: set[str] = set()
    for attribute in node.attribute:
        problem = _check_attribute(attribute, declared, given)
        if problem:
            return f"{subject}: attribute {attribute.name!r} {problem}", ""
        given.add(attribute.name)
    if node.domain not in _OWN_DOMAINS:
        return None
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain not in opsets:
        return f"{subject}: no opset of domain {node.domain!r} is imported", ""
    operator = _operator(node.op_type, opsets[domain], domain)
    return _check_use(node, operator, given, subject) if operator is not None else None


def _check_attribute(
    attribute: onnx.AttributeProto, declared: Collection[str], given: Collection[str]
) -> str:
    import onnx

    if not attribute.name:
        return "has no name"
    if attribute.name in given:
        return "is given twice"
    if attribute.ref_attr_name:
        known = attribute.ref_attr_name in declared
        return "" if known else f"refers to {attribute.ref_attr_name!r}, which no function declares"
    if not attribute.type or attribute.type not in onnx.AttributeProto.AttributeType.values():
        return f"has the unknown type {attribute.type}"
    field = _FIELDS[attribute.type]
    if field in _SINGLE and not attribute.HasField(field):
        return f"has no value of its type {_type_name(attribute.type)}"
    return ""


_FIELDS = {
    1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors", 10: "graphs",
    11: "sparse_tensor", 12: "sparse_tensors", 13: "tp", 14: "type_protos",
}  # fmt: skip
"""AttributeProto's field of values for each of its types, as onnx.proto numbers them."""
_FLAGS = {"Gemm": ("transA", "transB")}
"""Operator to attributes that are yes or no; quantizers take any other number for one or the other."""
_SINGLE = ("f", "i", "s", "t", "g", "sparse_tensor", "tp")


def _check_use(
    node: onnx.NodeProto, operator: _Operator, given: Collection[str], subject: str
) -> Problem | None:
    import onnx

    for kind, names, (least, most) in (
        ("inputs", node.input, operator.inputs),
        ("outputs", node.output, operator.outputs),
    ):
        if not least <= len(names) <= most:
            required = (
                str(least) if least == most else f"{least} to {most}" if most < 1000 else f"{least} or more"
            )
            return f"{subject} has {len(names)} {kind}; {required} are required", ""
    many = [operator.repeats] * (len(node.input) - len(operator.required))
    for index, (name, must) in enumerate(zip(node.input, [*operator.required, *many], strict=False)):
        if must and not name:
            return f"{subject}: input {index} is left out, but required", ""
    for name, (_, must) in operator.attributes.items():
        if must and name not in given:
            return f"{subject} lacks the attribute {name!r}, which is required", ""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.STRING and not _is_text(attribute.s):
            return f"{subject}: attribute {attribute.name!r} is no UTF-8", ""
        if attribute.name in _FLAGS.get(node.op_type, ()) and attribute.i not in (0, 1):
            return f"{subject}: attribute {attribute.name!r} is {attribute.i}; 0 or 1 is required", ""
        expected = operator.attributes.get(attribute.name, (attribute.type, False))[0]
        if attribute.type and attribute.type != expected:
            return (
                f"{subject}: attribute {attribute.name!r} is of type {_type_name(attribute.type)}; "
                f"{_type_name(expected)} is required",
                "",
            )
    return None


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _type_name(kind: int) -> str:
    import onnx

    return str(onnx.AttributeProto.AttributeType.Name(kind))


@functools.lru_cache(maxsize=4096)
def _operator(name: str, version: int, domain: str) -> _Operator | None:
    """What ONNX says of an operator; None of those it does not know: TensorRT's plugins are in its domain."""
    import onnx

    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None
    options = onnx.defs.OpSchema.FormalParameterOption
    return _Operator(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(one.option != options.Optional for one in schema.inputs),
        any(one.option == options.Variadic for one in schema.inputs),
        {key: (int(one.type.value), one.required) for key, one in schema.attributes.items()},
    )
