"""Whether the functions in a model end: none calls itself or stands for too many nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .graph_checks import Problem, check_nodes, opsets_of

if TYPE_CHECKING:
    import onnx

MOST_NODES = 1 << 15
"""Nodes that calls of functions in the file may stand for. ONNX Runtime 1.31 puts the nodes in place of the
calls in a time that grows with their square: 5 s for 2**14, minutes for 2**16."""


def check_functions(functions: Sequence[onnx.FunctionProto], graph: onnx.GraphProto) -> Problem | None:
    """Return what is wrong with the functions that a graph may call; None where nothing is.

    A function that calls itself, or doubles its nodes at each of many levels, never ends where a runtime puts
    the nodes of functions in place of their calls.
    """
    by_name: dict[tuple[str, str, str], onnx.FunctionProto] = {}
    for function in functions:
        key = (function.domain, function.name, function.overload)
        if key in by_name:
            return f"function {function.domain}.{function.name} is defined twice", ""
        by_name[key] = function
    sizes: dict[tuple[str, str, str], int] = {}
    for key, function in by_name.items():
        problem = _check_function(function) or _measure(key, by_name, sizes)
        if problem:
            return problem
    calls = [_key(node) for node in _nodes_inside(graph.node)] if sizes else []
    if sum(sizes.get(call, 0) for call in calls) > MOST_NODES:
        return f"its calls of functions {_TOO_MANY}", _INLINE
    return None


_TOO_MANY = f"stand for more than {MOST_NODES} nodes"
_INLINE = "put the nodes in place of the calls: onnx.inliner.inline_local_functions"


def _check_function(function: onnx.FunctionProto) -> Problem | None:
    where = f" in function {function.domain}.{function.name}"
    declared = {*function.attribute, *(one.name for one in function.attribute_proto)}
    own = set(function.input)
    problem = check_nodes(function.node, (own,), opsets_of(function.opset_import), where, declared)
    if problem:
        return problem
    missing = [name for name in function.output if name not in own]
    return (f"output {missing[0]!r}{where}: no node makes it", "") if missing else None


def _measure(
    first: tuple[str, str, str],
    functions: Mapping[tuple[str, str, str], onnx.FunctionProto],
    sizes: dict[tuple[str, str, str], int],
) -> Problem | None:
    """Count the nodes of a function with those of the functions that it calls, without recursion."""
    under_way: list[tuple[str, str, str]] = [first]
    while under_way:
        key = under_way[-1]
        calls = [_key(node) for node in _nodes_inside(functions[key].node)]
        inner = [call for call in dict.fromkeys(calls) if call in functions and call not in sizes]
        for call in inner:
            if call in under_way:
                return f"function {call[0]}.{call[1]} calls itself", ""
        if inner:
            under_way.append(inner[0])
            continue
        sizes[key] = sum(sizes.get(call, 1) for call in calls)
        if sizes[key] > MOST_NODES:
            return f"calls of function {key[0]}.{key[1]} {_TOO_MANY}", _INLINE
        under_way.pop()
    return None


def _key(call: onnx.NodeProto) -> tuple[str, str, str]:
    return call.domain, call.op_type, call.overload


def _nodes_inside(nodes: Any) -> list[onnx.NodeProto]:
    found: list[onnx.NodeProto] = []
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        found.append(node)
        for attribute in node.attribute:
            waiting.extend(attribute.g.node if attribute.HasField("g") else ())
            for graph in attribute.graphs:
                waiting.extend(graph.node)
    return found
