"""Find out which channels of a graph's outputs come from different heads, and which last axes are dynamic.

If an output joins boxes in pixels and scores below 1, its decibels are those of the boxes. The graph shows
which channels belong together. Inputs of `Concat` along the channels of convolutions and products, or behind
different operators, are separate parts (`cat(boxes, scores.sigmoid())`). Inputs joined along positions, with
the same operators, are one part (the scales of a detector). `OutputSums` joins parts of similar magnitude.

The walk goes from an output backward through operators that move values or change them element by element.
It ends at every other operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...errors import InvalidOption
from .. import onnx
from ..graph.choices import extent_deciders
from ..graph.graph import attribute, infer_shapes, producers, stored_tensors

Rule = Literal["classes", "embedding", "labels", "signal"]
RULES: tuple[Rule, ...] = ("classes", "embedding", "labels", "signal")

BOUNDED = ("Sigmoid", "Softmax", "HardSigmoid")
"""Operators with results between 0 and 1."""

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
    """Channels of an output that belong together: end of each part along the axis, and its operator."""

    axis: int
    ends: tuple[int, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class OutputForm:
    """Properties of an output that are known before the run.

    Attributes:
        rule: The user's rule.
        has_dynamic_last_axis: Whether the last axis varies with the input, so it does not hold classes.
        parts: Parts of its channels if different heads produce them.
        shape_operator: The operator that makes its extents depend on values; empty if they do not.
    """

    rule: Rule | None = None
    has_dynamic_last_axis: bool = False
    parts: Parts | None = None
    shape_operator: str = ""


UNKNOWN = OutputForm()


def parse_rules(texts: Sequence[str]) -> dict[str, Rule]:
    """Parse the user's rules, `OUTPUT:RULE` or `RULE`; the name "" stands for every other output."""
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
    """Return the form of every output of a graph; weights are not needed. `rules`: see `parse_rules`."""
    walk, user_rules = _Walk(model), parse_rules(rules)
    names = [value.name for value in model.graph.output]
    if unknown := user_rules.keys() - {"", *names}:
        raise InvalidOption(
            f"rule for {min(unknown)!r}: no such output; the outputs are {', '.join(names)}", option="rules"
        )
    forms, deciders = {}, extent_deciders(model)
    for value in model.graph.output:
        shape = walk.shapes.get(value.name, ())
        is_free = len(shape) > 1 and not isinstance(shape[-1], int)
        rule, decider = user_rules.get(value.name, user_rules.get("")), deciders.get(value.name, "")
        forms[value.name] = OutputForm(rule, is_free, walk.parts(str(value.name)), decider)
    return forms


class _Layout(NamedTuple):
    """Axis of a tensor's channels (None: unknown), and extent and operators of each part."""

    axis: int | None
    parts: tuple[tuple[int, str], ...]

    @property
    def makers(self) -> tuple[str, ...]:
        return tuple(maker for _, maker in self.parts)

    def behind(self, operator: str) -> _Layout:
        """Return the layout behind an element-wise operator."""
        return _Layout(self.axis, tuple((extent, f"{operator} {maker}") for extent, maker in self.parts))


class _Walk:
    """Finds the parts of a graph's tensors."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.made_by, self.shapes = producers(model.graph), dict[str, Shape](infer_shapes(model))
        self.stored = stored_tensors(model.graph)
        self.shapes |= {name: tuple(tensor.dims) for name, tensor in self.stored.items()}
        self.layouts: dict[str, _Layout] = {}
        self.depth = 0

    def parts(self, output: str) -> Parts | None:
        """Return the parts of an output, or None if it has one part or unknown ones."""
        axis, parts = self.layout(output)
        extents = [extent for extent, _ in parts]
        if axis is None or not 1 < len(parts) <= _MOST_PARTS or min(extents) < 1:
            return None
        if sum(extents) != self.shapes[output][axis]:
            return None
        ends = tuple(sum(extents[: index + 1]) for index in range(len(extents)))
        return Parts(axis, ends, tuple(maker.partition(" ")[0] for _, maker in parts))

    def layout(self, name: str) -> _Layout:
        """Return the layout of a tensor; each is computed once."""
        if name not in self.layouts:
            self.depth += 1
            self.layouts[name] = self._layout(name)
            self.depth -= 1
        return self.layouts[name]

    def _layout(self, name: str) -> _Layout:
        node, shape = self.made_by.get(name), self.shapes.get(name, ())
        if node is None or name in self.stored:
            return _Layout(None, ((0, "constant" if name in self.stored else "input"),))
        operator, deep = node.op_type, self.depth > _DEEPEST
        handlers = {
            "Concat": self._concat,
            "Transpose": self._transpose,
            "Split": self._slice,
            "Slice": self._slice,
        }
        handlers |= dict.fromkeys(_RESHAPES, self._reshape) | dict.fromkeys(_BY_ELEMENT, self._by_element)
        if operator in _SAME and not deep:
            return self.layout(node.input[0])
        if operator in handlers and not deep:
            return handlers[operator](node, name)
        axis = _CHANNELS.get(operator)
        if axis is None or not shape:
            return _Layout(None, ((0, operator),))
        axis %= len(shape)
        return _Layout(axis, ((_extent(shape, axis), operator),))

    def _by_element(self, node: onnx.NodeProto, name: str) -> _Layout:
        rank = len(self.shapes.get(name, ()))
        sources = [source for source in node.input if source and source not in self.stored]
        for source in sources:
            layout = self.layout(source)
            if len(self.shapes.get(source, ())) == rank and layout.axis is not None:
                return layout.behind(node.op_type)
        return (self.layout(sources[0]) if sources else _Layout(None, ((0, ""),))).behind(node.op_type)

    def _transpose(self, node: onnx.NodeProto, name: str) -> _Layout:
        layout, rank = self.layout(node.input[0]), len(self.shapes.get(name, ()))
        order = attribute(node, "perm") or list(range(rank))[::-1]
        return layout._replace(axis=None if layout.axis is None else list(order).index(layout.axis))

    def _reshape(self, node: onnx.NodeProto, name: str) -> _Layout:
        layout = self.layout(node.input[0])
        before, after = self.shapes.get(node.input[0], ()), self.shapes.get(name, ())
        return layout._replace(axis=None if layout.axis is None else _axis_after(layout.axis, before, after))

    def _slice(self, node: onnx.NodeProto, name: str) -> _Layout:
        """Return the layout behind Split or Slice: unchanged unless it cuts the axis of the channels."""
        layout = self.layout(node.input[0])
        before, after = self.shapes.get(node.input[0], ()), self.shapes.get(name, ())
        if layout.axis is None or len(before) != len(after) or before[layout.axis] == after[layout.axis]:
            return layout
        if len(layout.parts) == 1:
            return _Layout(layout.axis, ((_extent(after, layout.axis), layout.parts[0][1]),))
        return _Layout(None, ((0, " ".join(layout.makers)),))

    def _concat(self, node: onnx.NodeProto, name: str) -> _Layout:
        axis = attribute(node, "axis", 0) % max(len(self.shapes.get(name, ())), 1)
        layouts = [self.layout(source) for source in node.input]
        first, parts = layouts[0], list[tuple[int, str]]()
        on_channels = all(layout.axis == axis for layout in layouts)
        if not on_channels and all(layout.makers == first.makers for layout in layouts):
            same = all(layout.axis == first.axis != axis for layout in layouts)
            return first if same else _Layout(None, first.parts)
        for source, layout in zip(node.input, layouts, strict=True):
            whole = _extent(self.shapes.get(source, ()), axis), " ".join(layout.makers)
            parts += layout.parts if layout.axis == axis else (whole,)
        return _Layout(axis, tuple(parts))


def _extent(shape: Shape, axis: int) -> int:
    """Return an extent, or 0 if it is unknown."""
    extent = shape[axis] if axis < len(shape) else 0
    return extent if isinstance(extent, int) else 0


def _axis_after(axis: int, before: Shape, after: Shape) -> int | None:
    """Return the place of an axis after a reshape; None if it is split, joined or unknown."""
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
