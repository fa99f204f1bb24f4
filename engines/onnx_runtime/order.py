"""One order and one numbering of the nodes that ONNX Runtime's optimizer makes.

It orders and numbers the nodes that change the layout (`graph.GenerateNodeName("ReorderOutput")`,
onnxruntime/core/optimizer/nchwc_transformer.cc) differently in each process: four builds of ShuffleNet had
four digests (seen with 1.31.1, which does not say why). The nodes were the same.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from ...model.graph import captured_names

if TYPE_CHECKING:
    import onnx

_NUMBERED = re.compile(r"(.*)_token_\d+", re.S)
"""A name that `Graph::GenerateNodeName` or `GenerateNodeArgName` made; the first of a kind has no number."""


def put_in_order(optimized: onnx.ModelProto, model: onnx.ModelProto) -> bool:
    """Sort the nodes, each behind what it reads, and number those of the optimizer in that order, in place.

    Args:
        optimized: What the optimizer made of the model.
        model: Its names stay as they are.

    Returns:
        Whether the optimizer has numbered anything; else nothing is changed.
    """
    graph = optimized.graph
    given = {name for node in model.graph.node for name in (node.name, *node.output)}
    given |= {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    made = {name for node in graph.node for name in (node.name, *node.output)} - given
    kinds = {match[1] for name in made if (match := _NUMBERED.fullmatch(name))}
    if not kinds:
        return False
    ordered = _ordered(graph)
    names = (name for node in ordered for name in (node.name, *node.output) if name in made)
    renamed: dict[str, str] = {}
    numbers = itertools.count()
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        kind = match[1] if match else name
        if kind in kinds:
            spelled = (f"{kind}_token_{number}" for number in numbers)
            renamed[name] = next(new for new in spelled if new not in given)  # weights are numbered, too
    for node in ordered:
        node.name = renamed.get(node.name, node.name)
        for tensors in (node.input, node.output):
            tensors[:] = [renamed.get(name, name) for name in tensors]
    for value in graph.value_info:
        value.name = renamed.get(value.name, value.name)
    values = sorted(graph.value_info, key=lambda value: value.name)
    for field, items in ((graph.node, ordered), (graph.value_info, values)):
        copies = [type(item).FromString(item.SerializeToString()) for item in items]
        del field[:]
        field.extend(copies)
    return True


def _ordered(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes, each behind those whose outputs it reads, beginning with what the first output needs."""
    made_by = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    read = [
        [made_by[name] for name in (*node.input, *captured_names(node)) if name in made_by]
        for node in graph.node
    ]
    ordered: dict[int, onnx.NodeProto] = {}
    waiting = [made_by[value.name] for value in reversed(graph.output) if value.name in made_by]
    while waiting:
        index = waiting[-1]
        missing = [other for other in read[index] if other not in ordered]
        if missing and index not in ordered:
            waiting.extend(reversed(missing))
            continue
        waiting.pop()
        ordered.setdefault(index, graph.node[index])
    return list(ordered.values())
