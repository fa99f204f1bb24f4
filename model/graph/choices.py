"""Find selections: nodes that decide how many elements a graph returns (NonMaxSuppression, NonZero).

A small error can change which elements are selected, and how many. The outputs of two artifacts then differ
in shape, and their elements do not correspond. Instead, the float tensors that selections and nodes after
them read are compared. If a layer with weights follows a selection, as in the second stage of a detector,
these tensors would not show its errors, and outputs are compared.
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
from .graph_edits import extract_tensors, refill
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
"""For each operator, the indices of the operands that decide the shape of its outputs."""
_EXTENTS = ("Shape", "Size")
_MOVES = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_FLOATS = ("float16", "float32")


@dataclass(frozen=True)
class Place:
    """An input of a node, identified by the node's first output because quantization preserves that name.

    `tensor` is read there, perhaps through Casts and reshapes. If `index` is negative, the place is the
    graph's output `reader`.
    """

    tensor: str
    reader: str
    index: int
    operator: str = ""

    def read_in(self, made_by: Mapping[str, onnx.NodeProto]) -> str:
        """Return the tensor at this place; skip Casts that conversion to half precision added."""
        if self.index < 0:
            return self.reader
        node = made_by[self.reader]
        while node.op_type == "Cast" != self.operator:
            node = made_by[node.input[0]]
        return str(node.input[self.index])


def selection_inputs(model: onnx.ModelProto) -> list[Place]:
    """List where selections and nodes after them read float tensors; then outputs that do not depend on them.

    The list is empty if no output depends on a selection, or a layer with weights depends on one.
    A tensor that is read at several places, perhaps in other shapes, is listed once.
    """
    # A TopK counts as a selection, too, unless a layer with weights depends on it.
    # A TopK in front of NonMaxSuppression is a selection, too, unless a layer with weights lies behind it.
    for operators in (CHOICES | _PICKS, CHOICES):
        dependent, followers = dependent_nodes(model, operators)
        if followers and not any(node.op_type in WEIGHTED for node in followers):
            break
    else:
        return []
    outputs = [value.name for value in model.graph.output]
    if not dependent & {*outputs} or not any(node.op_type in CHOICES for node in followers):
        return []
    made_by, types = producers(model.graph), infer_types(model)
    excluded = constant_names(model) | dependent | {"", *(value.name for value in model.graph.input)}
    places: dict[str, Place] = {}
    pending, seen = followers[::-1], {id(node) for node in followers}
    while pending:
        node = pending.pop()
        for index, tensor in enumerate(node.input):
            source, maker = tensor, made_by.get(tensor)
            if tensor in excluded or maker is None:
                continue
            if types.get(tensor, "float32") in _FLOATS:
                while maker is not None and maker.op_type in _MOVES:
                    if types.get(maker.input[0], "float32") not in _FLOATS:
                        break
                    source, maker = maker.input[0], made_by.get(maker.input[0])
                if source not in excluded:
                    places.setdefault(source, Place(source, node.output[0], index, node.op_type))
            elif maker.op_type not in _EXTENTS and id(maker) not in seen:  # for example a comparison
                seen.add(id(maker))
                pending.append(maker)
    other_outputs = [Place(name, name, -1) for name in outputs if name not in dependent | places.keys()]
    return [*places.values(), *other_outputs] if places else []


def dependent_nodes(
    model: onnx.ModelProto, operators: frozenset[str]
) -> tuple[set[str], list[onnx.NodeProto]]:
    """Return the tensors that depend on nodes of these operators, and the nodes that compute them."""
    dependent: set[str] = set()
    nodes = []
    for node in model.graph.node:  # in topological order
        if node.op_type in operators or dependent & {*node.input}:
            dependent |= {*node.output}
            nodes.append(node)
    return dependent - {""}, nodes


def part_before(model: onnx.ModelProto, places: list[Place]) -> onnx.ModelProto:
    """Return the part of a graph, quantized or not, that computes `places`; all inputs remain."""
    part = copy_model(model)
    made_by = producers(part.graph)
    extract_tensors(part, [place.read_in(made_by) for place in places])
    refill(part.graph.input, model.graph.input)
    return part


def selecting_operators(model: onnx.ModelProto) -> str:
    """Return the selecting operators of a graph, separated by commas."""
    return ", ".join(sorted({node.op_type for node in model.graph.node} & CHOICES))


def extent_deciders(model: onnx.ModelProto) -> dict[str, str]:
    """Map each tensor with a shape that may depend on computed values to the operator that decides it.

    Constants, Shape, Size, inputs of other types than float, and values computed only from these are equal in
    every runtime. An operator that reads only these decides nothing.
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
    """Add the tensors of a graph to `exact` or `deciders`; return the first deciding operator, or ""."""
    exact |= {tensor.name for tensor in graph.initializer}
    first_decider = ""
    for node in graph.node:  # in topological order
        read = {*node.input, *captured_names(node)}
        places = _BY_OPERAND.get(node.op_type, ())
        deciding = (
            read if node.op_type in _BY_VALUES else {name for i, name in enumerate(node.input) if i in places}
        )
        inside = [_look_for_deciders(inner, exact, deciders) for inner in subgraphs(node)]
        earlier = next((deciders[name] for name in sorted(read) if name in deciders), "")
        new_decider = node.op_type if not exact.issuperset(deciding) else next(filter(None, inside), "")
        if decider := earlier or new_decider:
            deciders |= dict.fromkeys(node.output, decider)
            first_decider = first_decider or new_decider
        elif node.op_type in _EXTENTS or (exact.issuperset(read) and not node.op_type.startswith("Random")):
            exact |= {*node.output}
    return first_decider
