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

_FUSED = frozenset(["Relu", "Clip"])
_FUSES_INTO = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sum", "BatchNormalization"])
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
    """Return the float tensors: each may overflow in a narrower type, even an L2 norm's sum of squares."""
    return {name for name, kind in infer_types(model).items() if kind in _FLOATS}


def choose_taps(model: onnx.ModelProto, scaled: Collection[str] | None = None) -> Taps:
    """Return the tensors to observe, so that every tensor with a scale, except constants, has a range.

    `scaled` names the tensors that get a scale; None takes inputs and outputs of `QUANTIZABLE` nodes.
    """
    return _TapChooser(model).taps(scaled)


def _is_operator(node: onnx.NodeProto, operators: Collection[str]) -> bool:
    return node.op_type in operators and node.domain in ONNX_DOMAINS


class _TapChooser:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.types = infer_types(model)
        self.constants = constant_names(model)
        self.producers = producers(model.graph)
        self.consumers = consumers(model.graph)
        self.pinned = pinned_names(model.graph)

    def taps(self, scaled: Collection[str] | None) -> Taps:
        scaled = self._quantizable() if scaled is None else self._in_order(scaled)
        skipped = {name: reason for name in scaled if (reason := self._skip_reason(name))}
        shared: dict[str, tuple[str, ...]] = {}
        roots: dict[str, None] = {}
        for name in scaled:
            if name in skipped:
                continue
            sources = self._sources(self._fused_output(name) or name)
            roots.update(dict.fromkeys(sources))
            if sources != (name,):
                shared[name] = sources
        names = tuple(self._in_order(roots))
        return Taps(names, {name: self.types[name] for name in names}, shared, skipped)

    def _quantizable(self) -> list[str]:
        names: dict[str, None] = {}
        for node in self.graph.node:
            if _is_operator(node, QUANTIZABLE):
                names.update(dict.fromkeys((*node.input, *node.output)))
        return [name for name in names if name and name not in self.constants]

    def _in_order(self, names: Collection[str]) -> list[str]:
        """Return the names that are not constants, in the model's order."""
        names = set(names) - self.constants
        ordered: dict[str, None] = dict.fromkeys(value.name for value in self.graph.input)
        for node in self.graph.node:
            ordered.update(dict.fromkeys(node.output))
        return [name for name in ordered if name in names]

    def _skip_reason(self, name: str) -> str:
        dtype = self.types.get(name, "undefined")
        if dtype in _FLOATS:
            return ""
        if dtype != "undefined":
            return f"it is {dtype}, not a float"
        reader = next(iter(self.consumers.get(name, [])), None) or self.producers.get(name)
        place = f" (at {reader.op_type} {reader.name!r})" if reader is not None else ""
        return f"its type cannot be inferred{place}"

    def _fused_output(self, name: str) -> str:
        """Return the output of the Relu or Clip that is fused into a tensor's producer; empty without one."""
        readers, producer = self.consumers.get(name, []), self.producers.get(name)
        if producer is None or len(readers) != 1 or name in self.pinned:
            return ""
        is_fused = _is_operator(producer, _FUSES_INTO) and _is_operator(readers[0], _FUSED)
        return str(readers[0].output[0]) if is_fused else ""

    def _sources(self, name: str) -> tuple[str, ...]:
        """Return the tensors to observe for a tensor: itself, or the origins of its values."""
        producer = self.producers.get(name)
        if producer is None or not _is_operator(producer, MOVES | {"Concat"}):
            return (name,)
        inputs = list(producer.input) if producer.op_type == "Concat" else list(producer.input[:1])
        if any(name in self.constants or self.types.get(name) not in _FLOATS for name in inputs):
            return (name,)
        return tuple(dict.fromkeys(source for origin in inputs for source in self._sources(origin)))
