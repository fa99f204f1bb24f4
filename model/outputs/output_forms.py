"""What a graph says of its outputs: which of their channels come from different heads, which axis is free.

The decibels of an output that holds boxes in pixels and scores below 1 are those of the boxes. A graph tells
which channels belong together: what `Concat` joins along the channels of convolutions and products, or behind
different operators, are parts (`cat(boxes, scores.sigmoid())`); what it joins along positions, made alike, is
one part (the scales of a detector). `OutputSums` takes parts of like magnitude together, by their values.

The walk goes from an output backwards through operators that move values or change each by itself. At every
other operator it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...errors import InvalidOption
from .. import onnx
from ..graph.choices import value_dependent
from ..graph.graph import attribute, infer_shapes, producers, stored_tensors

Rule = Literal["classes", "embedding", "labels", "signal"]
RULES: tuple[Rule, ...] = ("classes", "embedding", "labels", "signal")

BOUNDED = ("Sigmoid", "Softmax", "HardSigmoid")
"""Operators whose results lie between 0 and 1."""

_CHANNELS = {"Conv": 1, "ConvTranspose": 1, "QLinearConv": 1, "MatMul": -1, "Gemm": -1, "FusedConv": 1}
_SAME = ("Cast", "DequantizeLinear", "Identity", "QuantizeLinear")
_RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_BY_ELEMENT = frozenset(
    """
    Add Clip Div Elu Exp HardSigmoid HardSwish LeakyRelu Log Max Min Mul Neg Pow Relu Sigmoid Softmax Softplus
    Sqrt Sub Tanh
    """.split()
)
_MOST_PARTS, _DEEPEST = 64, 100

Shape = Sequence[int | str]


@dataclass(frozen=True)
class Parts:
    """Which channels of an output belong together: those up to each end along the axis, with their maker."""

    axis: int
    ends: tuple[int, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class OutputForm:
    """What is known of an output beforehand.

    Attributes:
        rule: What the user says that it is.
        is_free: Whether its last axis varies with the input: no classes then.
        parts: Its channels where different heads make them.
        decider: The operator by which its extents depend on values; empty where they do not.
    """

    rule: Rule | None = None
    is_free: bool = False
    parts: Parts | None = None
    decider: str = ""


UNKNOWN = OutputForm()


def parse_rules(texts: Sequence[str]) -> dict[str, Rule]:
    """Read `OUTPUT:RULE` or `RULE`, what the user says of an output; the name "" is every other output."""
    rules: dict[str, Rule] = {}
    for text in texts:
        name, _, rule = text.rpartition(":")
        if rule not in RULES:
            raise InvalidOption(
                f"`rules` {text!r}: {', '.join(RULES)}, or OUTPUT:RULE, is required", option="rules"
            )
        rules[name] = RULES[RULES.index(rule)]
    return rules


def output_forms(model: onnx.ModelProto, rules: Sequence[str] = ()) -> dict[str, OutputForm]:
    """Return the form of every output of a graph; weights are not needed.

    Args:
        rules: What the user says of outputs, see `parse_rules`.
    """
    walk, said = _Walk(model), parse_rules(rules)
    names = [value.name for value in model.graph.output]
    if unknown := said.keys() - {"", *names}:
        raise InvalidOption(
            f"rule for {min(unknown)!r}: no such output; the outputs are {', '.join(names)}", option="rules"
        )
    forms, deciders = {}, value_dependent(model)
    for value in model.graph.output:
        shape = walk.shapes.get(value.name, ())
        is_free = len(shape) > 1 and not isinstance(shape[-1], int)
        rule, decider = said.get(value.name, said.get("")), deciders.get(value.name, "")
        forms[value.name] = OutputForm(rule, is_free, walk.parts(str(value.name)), decider)
    return forms


class _Layout(NamedTuple):
    """On which axis the channels of a tensor lie, None where unknown; extent and maker of each part."""

    axis: int | None
    parts: tuple[tuple[int, str], ...]

    @property
    def makers(self) -> tuple[str, ...]:
        return tuple(maker for _, maker in self.parts)

    def behind(self, operator: str) -> _Layout:
        """The same channels behind an operator that changes each value by itself."""
        return _Layout(self.axis, tuple((extent, f"{operator} {maker}") for extent, maker in self.parts))


class _Walk:
    """Looks for the parts of a graph's tensors."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.made_by, self.shapes = producers(model.graph), dict[str, Shape](infer_shapes(model))
        self.stored = stored_tensors(model.graph)
        self.shapes |= {name: tuple(tensor.dims) for name, tensor in self.stored.items()}
        self.found: dict[str, _Layout] = {}
        self.depth = 0

    def parts(self, output: str) -> Parts | None:
        """Return the parts of an output; None where it has one."""
        axis, parts = self.layout(output)
        extents = [extent for extent, _ in parts]
        if axis is None or not 1 < len(parts) <= _MOST_PARTS or min(extents) < 1:
            return None
        if sum(extents) != self.shapes[output][axis]:
            return None
        ends = tuple(sum(extents[: index + 1]) for index in range(len(extents)))
        return Parts(axis, ends, tuple(maker.partition(" ")[0] for _, maker in parts))

    def layout(self, name: str) -> _Layout:
        """Return the layout of a tensor, found once."""
        if name not in self.found:
            self.depth += 1
            self.found[name] = self._layout(name)
            self.depth -= 1
        return self.found[name]

    def _layout(self, name: str) -> _Layout:
        node, shape = self.made_by.get(name), self.shapes.get(name, ())
        if node is None or name in self.stored:
            return _Layout(None, ((0, "constant" if name in self.stored else "input"),))
        operator, deep = node.op_type, self.depth > _DEEPEST
        follow = {
            "Concat": self._concat,
            "Transpose": self._transpose,
            "Split": self._cut,
            "Slice": self._cut,
        }
        follow |= dict.fromkeys(_RESHAPES, self._reshape) | dict.fromkeys(_BY_ELEMENT, self._by_element)
        if operator in _SAME and not deep:
            return self.layout(node.input[0])
        if operator in follow and not deep:
            return follow[operator](node, name)
        axis = _CHANNELS.get(operator)
        if axis is None or not shape:
            return _Layout(None, ((0, operator),))
        axis %= len(shape)
        return _Layout(axis, ((_extent(shape, axis), operator),))

    def _by_element(self, node: onnx.NodeProto, name: str) -> _Layout:
        rank = len(self.shapes.get(name, ()))
        sources = [source for source in node.input if source and source not in self.stored]
        for source in sources:
            found = self.layout(source)
            if len(self.shapes.get(source, ())) == rank and found.axis is not None:
                return found.behind(node.op_type)
        return (self.layout(sources[0]) if sources else _Layout(None, ((0, ""),))).behind(node.op_type)

    def _transpose(self, node: onnx.NodeProto, name: str) -> _Layout:
        found, rank = self.layout(node.input[0]), len(self.shapes.get(name, ()))
        order = attribute(node, "perm") or list(range(rank))[::-1]
        return found._replace(axis=None if found.axis is None else list(order).index(found.axis))

    def _reshape(self, node: onnx.NodeProto, name: str) -> _Layout:
        found = self.layout(node.input[0])
        before, after = self.shapes.get(node.input[0], ()), self.shapes.get(name, ())
        return found._replace(axis=None if found.axis is None else _moved(found.axis, before, after))

    def _cut(self, node: onnx.NodeProto, name: str) -> _Layout:
        """What Split or Slice leaves of a tensor: all parts where it cuts another axis."""
        found = self.layout(node.input[0])
        before, after = self.shapes.get(node.input[0], ()), self.shapes.get(name, ())
        if found.axis is None or len(before) != len(after) or before[found.axis] == after[found.axis]:
            return found
        if len(found.parts) == 1:
            return _Layout(found.axis, ((_extent(after, found.axis), found.parts[0][1]),))
        return _Layout(None, ((0, " ".join(found.makers)),))

    def _concat(self, node: onnx.NodeProto, name: str) -> _Layout:
        axis = attribute(node, "axis", 0) % max(len(self.shapes.get(name, ())), 1)
        joined = [self.layout(source) for source in node.input]
        first, parts = joined[0], list[tuple[int, str]]()
        on_channels = all(one.axis == axis for one in joined)
        if not on_channels and all(one.makers == first.makers for one in joined):
            same = all(one.axis == first.axis != axis for one in joined)
            return first if same else _Layout(None, first.parts)
        for source, one in zip(node.input, joined, strict=True):
            whole = _extent(self.shapes.get(source, ()), axis), " ".join(one.makers)
            parts += one.parts if one.axis == axis else (whole,)
        return _Layout(axis, tuple(parts))


def _extent(shape: Shape, axis: int) -> int:
    """An extent; 0 where it is not known."""
    extent = shape[axis] if axis < len(shape) else 0
    return extent if isinstance(extent, int) else 0


def _moved(axis: int, before: Shape, after: Shape) -> int | None:
    """Where an axis is after a reshape that keeps it; None where it is split, joined or not known."""
    extent = before[axis] if axis < len(before) else ""
    if not isinstance(extent, int):
        return None

    def alike(a: Shape, b: Shape) -> bool:
        return [x if isinstance(x, int) else "" for x in a] == [x if isinstance(x, int) else "" for x in b]

    places = [index for index, other in enumerate(after) if other == extent]
    for index in places:
        if alike(before[axis + 1 :], after[index + 1 :]) or alike(before[:axis], after[:index]):
            return index
    return None
