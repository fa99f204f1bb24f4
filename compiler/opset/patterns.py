"""Find patterns of nodes that a runtime is known to compute wrongly, and that have no rewrite here.

Resize ← Transpose ← If
MatMul ─ (Mul, Add, ...) ─ Softmax ─ MatMul     an attention; an operand may be a transposed input
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.graph import ONNX_DOMAINS, attribute, consumers, every_graph, producers

if TYPE_CHECKING:
    import onnx

_SAME = ("Identity", "Cast")
_SCALING = frozenset("Mul Div Add Sub Where Cast Identity".split())
_TO_VALUES = frozenset("Cast Identity Dropout Where".split())


def find_reducing_scatters(model: onnx.ModelProto) -> list[str]:
    """Return ScatterElements and ScatterND nodes that combine what is there with what comes."""
    return [
        _name(node)
        for graph in every_graph(model.graph)
        for node in graph.node
        if node.op_type in ("ScatterElements", "ScatterND")
        and node.domain in ONNX_DOMAINS
        and attribute(node, "reduction", "none") != "none"
    ]


def find_resizes_behind_if(model: onnx.ModelProto) -> list[str]:
    """Return Resizes of a transposed result of an If."""
    names = []
    for graph in every_graph(model.graph):
        made_by = producers(graph)
        for node in graph.node:
            if node.op_type == "Resize":
                turned = _behind(made_by.get(node.input[0]), made_by, _SAME)
                if turned is not None and turned.op_type == "Transpose":
                    source = _behind(made_by.get(turned.input[0]), made_by, _SAME)
                    names += [_name(node)] * (source is not None and source.op_type == "If")
    return names


def find_attention(model: onnx.ModelProto) -> list[str]:
    """Return the first MatMul of each attention."""
    return [_name(first) for first, _ in _attentions(model)]


def find_attention_of_transposed_inputs(model: onnx.ModelProto) -> list[str]:
    """Return MatMuls of an attention of which an operand is a transposed input of the model."""
    made_by, fed = producers(model.graph), {value.name for value in model.graph.input}
    stored = {tensor.name for tensor in model.graph.initializer}
    names = []
    for pair in _attentions(model):
        for node in pair:
            for operand in node.input:
                turned = _behind(made_by.get(operand), made_by, _SAME)
                if turned is not None and turned.op_type == "Transpose" and turned.input[0] in fed - stored:
                    names.append(_name(node))
    return list(dict.fromkeys(names))


def _attentions(model: onnx.ModelProto) -> list[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """The two MatMuls of each attention of the model's own graph."""
    made_by, read_by = producers(model.graph), consumers(model.graph)
    pairs = []
    for node in model.graph.node:
        if node.op_type != "Softmax":
            continue
        first = _upwards(node.input[0], made_by)
        second = _downwards(node.output[0], read_by)
        if first is not None and second is not None:
            pairs.append((first, second))
    return pairs


def _upwards(name: str, made_by: dict[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    waiting = [name]
    while waiting:
        node = made_by.get(waiting.pop())
        if node is not None and node.op_type == "MatMul":
            return node
        if node is not None and node.op_type in _SCALING:
            waiting.extend(reversed(node.input))
    return None


def _downwards(name: str, read_by: dict[str, list[onnx.NodeProto]]) -> onnx.NodeProto | None:
    waiting = [name]
    while waiting:
        for node in read_by.get(waiting.pop(), ()):
            if node.op_type == "MatMul":
                return node
            if node.op_type in _TO_VALUES:
                waiting.extend(node.output)
    return None


def _behind(
    node: onnx.NodeProto | None, made_by: dict[str, onnx.NodeProto], skipped: tuple[str, ...]
) -> onnx.NodeProto | None:
    """The nearest node above that is none of the skipped operators."""
    while node is not None and node.op_type in skipped:
        node = made_by.get(node.input[0])
    return node


def _name(node: onnx.NodeProto) -> str:
    return str(node.name or node.output[0])
