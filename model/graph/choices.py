"""Where a graph chooses how many elements it returns: boxes by NonMaxSuppression, places that are not zero.

The least error changes what is chosen, and how much: outputs of two artifacts have other extents then, and
no element of one belongs to an element of the other. What is chosen from can be compared: the float tensors
that the choice and all behind it read. Where a layer with weights is behind a choice, as the second stage of
a detector, that would leave it out, and outputs are compared as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .. import onnx
from .graph import (
    WEIGHTED,
    captured_names,
    constant_names,
    dtype_name,
    infer_types,
    producers,
    subgraphs,
)
from .graph_edits import cut, refill
from .onnx_file import copy_model

CHOICES = frozenset(["Compress", "NonMaxSuppression", "NonZero", "Unique"])
_PICKS = frozenset(["TopK"])
_BY_VALUES = CHOICES | {"ImageDecoder", "Loop", "StringNormalizer", "StringSplit"}
_BY_OPERAND: Mapping[str, Sequence[int]] = {
    "AffineGrid": (1,), "CenterCropPad": (1,), "ConstantOfShape": (0,), "Expand": (1,), "If": (0,),
    "MaxUnpool": (2,), "OneHot": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "Reshape": (1,), "Resize": (2, 3),
    "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Unsqueeze": (1,),
    "Upsample": (1,),
}  # fmt: skip
"""Operator to its operands that decide extents."""
_EXTENTS = ("Shape", "Size")
_MOVES = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_FLOATS = ("float16", "float32")


@dataclass(frozen=True)
class Place:
    """An input of a node, which its first result names, as quantization keeps it; or a result itself.

    `tensor` is what is read there, but for its form and its precision; `operator` is the node's.
    """

    tensor: str
    reader: str
    index: int
    operator: str = ""

    def read_in(self, made_by: Mapping[str, onnx.NodeProto]) -> str:
        """Return the tensor at this place; an output that became half is made in front of a Cast."""
        if self.index < 0:
            return self.reader
        node = made_by[self.reader]
        while node.op_type == "Cast" != self.operator:
            node = made_by[node.input[0]]
        return str(node.input[self.index])


def before_choices(model: onnx.ModelProto) -> list[Place]:
    """Return where a graph reads what it chooses from, and its other outputs; empty where it does not choose.

    Of a tensor that is read at several places, or in other shapes, the first is returned.
    """
    # What picks the best before it suppresses others is a choice, too, where no layer is behind it.
    for operators in (CHOICES | _PICKS, CHOICES):
        chosen, followers = behind(model, operators)
        if followers and not any(node.op_type in WEIGHTED for node in followers):
            break
    else:
        return []
    outputs = [value.name for value in model.graph.output]
    if not chosen & {*outputs} or not any(node.op_type in CHOICES for node in followers):
        return []
    made_by, types = producers(model.graph), infer_types(model)
    known = constant_names(model) | chosen | {"", *(value.name for value in model.graph.input)}
    places: dict[str, Place] = {}
    waiting, seen = followers[::-1], {id(node) for node in followers}
    while waiting:
        node = waiting.pop()
        for index, tensor in enumerate(node.input):
            source, maker = tensor, made_by.get(tensor)
            if tensor in known or maker is None:
                continue
            if types.get(tensor, "float32") in _FLOATS:
                while maker is not None and maker.op_type in _MOVES:
                    if types.get(maker.input[0], "float32") not in _FLOATS:
                        break
                    source, maker = maker.input[0], made_by.get(maker.input[0])
                if source not in known:
                    places.setdefault(source, Place(source, node.output[0], index, node.op_type))
            elif maker.op_type not in _EXTENTS and id(maker) not in seen:  # such as a comparison
                seen.add(id(maker))
                waiting.append(maker)
    rest = [Place(name, name, -1) for name in outputs if name not in chosen | places.keys()]
    return [*places.values(), *rest] if places else []


def behind(model: onnx.ModelProto, operators: frozenset[str]) -> tuple[set[str], list[onnx.NodeProto]]:
    """Return the tensors that depend on nodes of some operators, and the nodes that make them."""
    chosen: set[str] = set()
    nodes = []
    for node in model.graph.node:  # in the order of the graph
        if node.op_type in operators or chosen & {*node.input}:
            chosen |= {*node.output}
            nodes.append(node)
    return chosen - {""}, nodes


def part_before(model: onnx.ModelProto, places: list[Place]) -> onnx.ModelProto:
    """Return the part of a graph, or of one that was quantized from it, that computes places, in their order.

    Its outputs are those tensors; it has all inputs of the graph.
    """
    part = copy_model(model)
    made_by = producers(part.graph)
    cut(part, [place.read_in(made_by) for place in places])
    refill(part.graph.input, model.graph.input)
    return part


def chosen_by(model: onnx.ModelProto) -> str:
    """Return the operators of a graph that choose, in words."""
    return ", ".join(sorted({node.op_type for node in model.graph.node} & CHOICES))


def value_dependent(model: onnx.ModelProto) -> dict[str, str]:
    """Return the tensors whose extents may depend on computed values, each with the operator that decides.

    Constants, extents (Shape, Size) and inputs that are no floats are the same in every runtime, and so is
    what is computed of them alone: an operator that decides by these does not count.
    """
    exact = constant_names(model) | {
        value.name
        for value in model.graph.input
        if "float" not in dtype_name(value.type.tensor_type.elem_type)
    }
    deciders: dict[str, str] = {}
    _look_for_deciders(model.graph, exact | {""}, deciders)
    return deciders


def _look_for_deciders(graph: onnx.GraphProto, exact: set[str], deciders: dict[str, str]) -> str:
    """Add the tensors that the nodes of a graph make; return the first operator that decides, or nothing."""
    exact |= {tensor.name for tensor in graph.initializer}
    first = ""
    for node in graph.node:  # in the order of the graph
        read = {*node.input, *captured_names(node)}
        places = _BY_OPERAND.get(node.op_type, ())
        deciding = (
            read if node.op_type in _BY_VALUES else {name for i, name in enumerate(node.input) if i in places}
        )
        inside = [_look_for_deciders(inner, exact, deciders) for inner in subgraphs(node)]
        earlier = next((deciders[name] for name in sorted(read) if name in deciders), "")
        own = node.op_type if not exact.issuperset(deciding) else next(filter(None, inside), "")
        if decider := earlier or own:
            deciders |= dict.fromkeys(node.output, decider)
            first = first or own
        elif node.op_type in _EXTENTS or (exact.issuperset(read) and not node.op_type.startswith("Random")):
            exact |= {*node.output}
    return first
