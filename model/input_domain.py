"""Infer the valid values of an ONNX graph's inputs from the nodes that read them.

| domain     | an input is it where                                                                          |
|------------|-----------------------------------------------------------------------------------------------|
| `index`    | its values select rows: of a table of embeddings, of the nodes of a graph, of classes         |
| `mask`     | it is named so, is of booleans, or is an integer that is compared, cast to bool or multiplied |
| `position` | it is named so: 0, 1, 2, … along its last axis                                                |
| `boxes`    | its last axis holds corners: it is named so, or goes to `RoiAlign`                            |
| `length`   | it is named so: how much of an axis is filled                                                 |
| `image`    | bytes of three axes or more                                                                   |
| `normal`   | all else: standard normal floats, integers of 0 and 1                                         |

An index is followed through operators that keep its value (`Cast`, `Reshape`, `Slice`, …) to the table it
reads, whose extent is its bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..tensors import Dim, TensorInfo
from .graph import attribute, constant_tensor, consumers, infer_shapes
from .onnx_file import model_io

if TYPE_CHECKING:
    import onnx

Kind = Literal["index", "mask", "position", "boxes", "length", "image", "normal"]

_KEEP_VALUE = frozenset(
    """
    Cast CastLike Identity Reshape Flatten Squeeze Unsqueeze Transpose Expand Tile Slice Split Concat
    Gather GatherElements GatherND Clip Min Max Where Pad Trilu Dropout
    """.split()
)
"""Operators whose outputs hold values of their first input (of `Where` and `Concat`: of any)."""

_AS_MASK = frozenset(
    ["Mul", "Not", "And", "Or", "Xor", "Equal", "Greater", "Less", "Sub", "ReduceSum", "CumSum"]
)
_NAMED_MASK = re.compile(r"mask|(?<![a-z])pad(?![a-z])", re.I)
_NAMED_POSITION = re.compile(r"position|(?<![a-z])pos(?![a-z])", re.I)
_NAMED_BOXES = re.compile(r"box|(?<![a-z])rois?(?![a-z])", re.I)
_NAMED_LENGTH = re.compile(r"length|(?<![a-z])lens?(?![a-z])", re.I)


@dataclass(frozen=True)
class Domain:
    """The values of one input.

    Attributes:
        kind: See the table above.
        bounds: Of indices: each is below all of these; a text is the extent of the dynamic axis of that name.
    """

    kind: Kind = "normal"
    bounds: tuple[Dim, ...] = ()


def read_domains(model: onnx.ModelProto) -> dict[str, Domain]:
    """Return input name to the values that it may take.

    Args:
        model: A graph; the values of its large weights are not needed.
    """
    trace = _Trace(model)
    return {tensor.name: trace.domain(tensor) for tensor in model_io(model).inputs}


def named_domain(tensor: TensorInfo) -> Domain:
    """Return what the name and the type of an input alone tell, where there is no graph."""
    whole = tensor.dtype.startswith(("int", "uint"))
    if tensor.dtype == "bool" or (_NAMED_MASK.search(tensor.name) and len(tensor.shape) > 1):
        return Domain("mask")
    if whole and _NAMED_POSITION.search(tensor.name):
        return Domain("position")
    if whole and _NAMED_LENGTH.search(tensor.name) and len(tensor.shape) < 2:
        return Domain("length")
    if "float" in tensor.dtype and tensor.shape[-1:] == (4,) and _NAMED_BOXES.search(tensor.name):
        return Domain("boxes")
    if tensor.dtype == "uint8" and len(tensor.shape) > 2:
        return Domain("image")
    return Domain()


class _Trace:
    """Where the values of inputs go in one graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.readers = consumers(model.graph)
        self.shapes: dict[str, tuple[Dim, ...]] = dict(infer_shapes(model))
        self.shapes.update({tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer})
        self.stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self.constants = {node.output[0]: node for node in model.graph.node if node.op_type == "Constant"}

    def domain(self, tensor: TensorInfo) -> Domain:
        named = named_domain(tensor)
        uses = list(self._uses(tensor.name))
        if tensor.dtype.startswith(("int", "uint")):
            bounds = tuple(dict.fromkeys(bound for node, name in uses for bound in self._bounds(node, name)))
            if bounds:
                return Domain("position" if named.kind == "position" else "index", bounds)
            if named.kind == "normal" and len(tensor.shape) > 1 and any(map(_is_mask_use, uses)):
                return Domain("mask")
        if "float" in tensor.dtype and any(
            n.op_type == "RoiAlign" and n.input[1] == name for n, name in uses
        ):
            return Domain("boxes")
        return named

    def _uses(self, name: str) -> Iterator[tuple[onnx.NodeProto, str]]:
        """Every node that a value reaches unchanged, with the name that it has there."""
        waiting, seen = [name], {name}
        while waiting:
            current = waiting.pop()
            for node in self.readers.get(current, ()):
                yield node, current
                if _keeps(node, current):
                    new = [output for output in node.output if output and output not in seen]
                    seen.update(new)
                    waiting += new

    def _bounds(self, node: onnx.NodeProto, name: str) -> Iterator[Dim]:
        """The extents of what a node selects from by this value."""
        reader = _SELECT.get(node.op_type)
        if reader is None or len(node.input) <= reader.position or node.input[reader.position] != name:
            return
        for bound in reader.extents(self, node):
            if bound not in ("", 0, "?"):
                yield bound

    def shape(self, name: str) -> tuple[Dim, ...]:
        return self.shapes.get(name, ())

    def number(self, name: str) -> int | None:
        """The value of a stored scalar."""
        from onnx import numpy_helper

        tensor = self.stored.get(name)
        if tensor is None and name in self.constants:
            tensor = constant_tensor(self.constants[name])
        if tensor is None or tensor.external_data:
            return None
        values = numpy_helper.to_array(tensor)
        return int(values.reshape(-1)[0]) if values.size == 1 and np.isfinite(values).all() else None


@dataclass(frozen=True)
class _Select:
    """Which operand of an operator selects, and the extents that it selects from."""

    position: int
    extents: Callable[[_Trace, onnx.NodeProto], tuple[Dim, ...]]


def _along_axis(trace: _Trace, node: onnx.NodeProto) -> tuple[Dim, ...]:
    shape, axis = trace.shape(node.input[0]), attribute(node, "axis", 0)
    return (shape[axis],) if -len(shape) <= axis < len(shape) else ()


def _leading(trace: _Trace, node: onnx.NodeProto) -> tuple[Dim, ...]:
    """Of tuples of indices: the extents of as many leading axes as a tuple is long."""
    shape, indices = trace.shape(node.input[0]), trace.shape(node.input[1])
    length = indices[-1] if indices and isinstance(indices[-1], int) else 1
    first = attribute(node, "batch_dims", 0)
    return shape[first : first + length]


def _depth(trace: _Trace, node: onnx.NodeProto) -> tuple[Dim, ...]:
    number = trace.number(node.input[1])
    return () if number is None else (number,)


def _first_axis(trace: _Trace, node: onnx.NodeProto) -> tuple[Dim, ...]:
    return trace.shape(node.input[0])[:1]


_SELECT: Mapping[str, _Select] = {
    "Gather": _Select(1, _along_axis),
    "GatherElements": _Select(1, _along_axis),
    "ScatterElements": _Select(1, _along_axis),
    "GatherND": _Select(1, _leading),
    "ScatterND": _Select(1, _leading),
    "RoiAlign": _Select(2, _first_axis),
    "OneHot": _Select(0, _depth),
}


def _keeps(node: onnx.NodeProto, name: str) -> bool:
    """Whether a node's outputs hold the values of this operand."""
    if node.op_type not in _KEEP_VALUE:
        return False
    if node.op_type == "Where":
        return name in node.input[1:]
    return node.op_type in ("Concat", "Min", "Max") or node.input[0] == name


def _is_mask_use(use: tuple[onnx.NodeProto, str]) -> bool:
    node, name = use
    if node.op_type == "Cast":
        return bool(attribute(node, "to", 0) == 9)  # TensorProto.BOOL
    return node.op_type in _AS_MASK or (node.op_type == "Where" and node.input[0] == name)
