"""Choose the tensors to observe, and the tensors that share another tensor's range.

Every observed tensor costs time and memory on every sample. These tensors need no observation:

- a tensor that only Relu or Clip reads gets no scale: runtimes fuse the activation into the tensor's
  producer, and quantize the output of both;
- MaxPool, Reshape, Transpose and similar operators move values: the output has the scale of the input;
- the values of a Concat are those of its inputs, so its histogram is exactly the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.graph.graph import (
    ONNX_DOMAINS,
    constant_names,
    consumers,
    infer_types,
    pinned_names,
    producers,
)

if TYPE_CHECKING:
    import onnx

QUANTIZABLE = frozenset(
    """
    Conv ConvTranspose MatMul Gemm Add Sub Mul Div MaxPool AveragePool GlobalAveragePool Concat
    Split Relu Clip LeakyRelu Sigmoid HardSigmoid HardSwish Tanh Softmax Gelu Erf Resize Pad
    Reshape Transpose Squeeze Unsqueeze Flatten Slice Gather Where InstanceNormalization
    LayerNormalization ReduceMean BatchNormalization Sum Einsum Min Max DepthToSpace
    SpaceToDepth Expand Identity
    """.split()
)
"""Operators at which a scale may be placed, if the caller names no tensors."""

_FOLDED = frozenset(["Relu", "Clip"])
_FOLDS_INTO = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sum", "BatchNormalization"])
MOVES = frozenset(
    """
    MaxPool Reshape Transpose Squeeze Unsqueeze Flatten Split Gather Identity DepthToSpace SpaceToDepth
    """.split()
)
"""Operators with outputs that hold only values of the first input."""

_FLOATS = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class Taps:
    """The tensors to observe, in the model's order, and their types.

    `shared` has the observed tensors that hold a tensor's values: together they determine its range.
    `skipped` has the reason for each tensor that needs a scale and cannot be observed.
    """

    names: tuple[str, ...]
    types: Mapping[str, str]
    shared: Mapping[str, tuple[str, ...]]
    skipped: Mapping[str, str]


def float_activations(model: onnx.ModelProto) -> set[str]:
    """Return the names of float tensors: any may overflow in a narrower type, even an L2 norm's sum of squares."""
    return {name for name, kind in infer_types(model).items() if kind in _FLOATS}


def choose_taps(model: onnx.ModelProto, scaled: Collection[str] | None = None) -> Taps:
    """Return the tensors to observe, so that every tensor with a scale, except constants, has a range.

    `scaled` names the tensors that get a scale; None takes inputs and outputs of `QUANTIZABLE` nodes.
    """
    return _Choice(model).taps(scaled)


def _is_one_of(node: onnx.NodeProto, operators: Collection[str]) -> bool:
    return node.op_type in operators and node.domain in ONNX_DOMAINS


class _Choice:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.types = infer_types(model)
        self.constants = constant_names(model)
        self.made_by = producers(model.graph)
        self.readers = consumers(model.graph)
        self.pinned = pinned_names(model.graph)

    def taps(self, scaled: Collection[str] | None) -> Taps:
        scaled = self._quantizable() if scaled is None else self._in_order(scaled)
        skipped = {name: reason for name in scaled if (reason := self._why_not(name))}
        shared: dict[str, tuple[str, ...]] = {}
        roots: dict[str, None] = {}
        for name in scaled:
            if name in skipped:
                continue
            sources = self._sources(self._folded(name) or name)
            roots.update(dict.fromkeys(sources))
            if sources != (name,):
                shared[name] = sources
        names = tuple(self._in_order(roots))
        return Taps(names, {name: self.types[name] for name in names}, shared, skipped)

    def _quantizable(self) -> list[str]:
        names: dict[str, None] = {}
        for node in self.graph.node:
            if _is_one_of(node, QUANTIZABLE):
                names.update(dict.fromkeys((*node.input, *node.output)))
        return [name for name in names if name and name not in self.constants]

    def _in_order(self, names: Collection[str]) -> list[str]:
        """Return the names that are not constants, in the model's order."""
        names = set(names) - self.constants
        every: dict[str, None] = dict.fromkeys(value.name for value in self.graph.input)
        for node in self.graph.node:
            every.update(dict.fromkeys(node.output))
        return [name for name in every if name in names]

    def _why_not(self, name: str) -> str:
        dtype = self.types.get(name, "undefined")
        if dtype in _FLOATS:
            return ""
        if dtype != "undefined":
            return f"it is {dtype}, not a float"
        reader = next(iter(self.readers.get(name, [])), None) or self.made_by.get(name)
        at = f" (at {reader.op_type} {reader.name!r})" if reader is not None else ""
        return f"its type cannot be inferred{at}"

    def _folded(self, name: str) -> str:
        """Return the output of the Relu or Clip that is fused into a tensor's producer; empty without one."""
        readers, maker = self.readers.get(name, []), self.made_by.get(name)
        if maker is None or len(readers) != 1 or name in self.pinned:
            return ""
        folds = _is_one_of(maker, _FOLDS_INTO) and _is_one_of(readers[0], _FOLDED)
        return str(readers[0].output[0]) if folds else ""

    def _sources(self, name: str) -> tuple[str, ...]:
        """Return the tensors to observe for a tensor: itself, or the origins of its values."""
        maker = self.made_by.get(name)
        if maker is None or not _is_one_of(maker, MOVES | {"Concat"}):
            return (name,)
        origins = list(maker.input) if maker.op_type == "Concat" else list(maker.input[:1])
        if any(name in self.constants or self.types.get(name) not in _FLOATS for name in origins):
            return (name,)
        return tuple(dict.fromkeys(source for origin in origins for source in self._sources(origin)))
