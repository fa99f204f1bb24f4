"""Find the layer from which on an artifact computes something else, by prefixes of its graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..model.graph import attribute, consumers, producers, tensor_values, weighted_nodes

if TYPE_CHECKING:
    import onnx

_FUSED = frozenset(["Add", "Cast", "Clip", "Mul", "Relu"])
"""Operators that runtimes fuse into the kernel in front of them, without Q/DQ in between."""


def first_layer(graph: onnx.ModelProto, fails: Callable[[str], bool]) -> onnx.NodeProto | None:
    """Return the weighted node of the first prefix that fails; None where no prefix does.

    Prefixes are halved: where one fails, its ancestors remain; where one does not, they go.
    """
    weighted = {node.name: node for nodes in weighted_nodes(graph).values() for node in nodes}
    suspects = [node for node in graph.graph.node if node.name in weighted]
    made_by, readers = producers(graph.graph), consumers(graph.graph)
    found: onnx.NodeProto | None = None
    while suspects:
        middle = suspects[len(suspects) // 2]
        tensor = _result(middle, readers, weighted)
        before = _ancestors(tensor, made_by) - {middle.name}
        if fails(tensor):
            found = middle
            suspects = [node for node in suspects if node.name in before]
        else:
            suspects = [node for node in suspects if node.name not in before | {middle.name}]
    return found


def _result(
    node: onnx.NodeProto, readers: Mapping[str, Sequence[onnx.NodeProto]], layers: Collection[str]
) -> str:
    """The tensor that shows what a layer computes: quantized, else behind what is fused with it."""
    fused = tensor = str(node.output[0])
    is_fused = True
    while True:
        behind = readers.get(tensor, [])
        quantized = [one for one in behind if one.op_type == "QuantizeLinear"]
        follower = quantized[0] if quantized else behind[0] if len(behind) == 1 else None
        if follower is None or follower.name in layers:
            return fused
        tensor = str(follower.output[0])
        if follower.op_type == "DequantizeLinear":
            return tensor
        is_fused &= follower.op_type in _FUSED
        fused = tensor if is_fused else fused


def _ancestors(tensor: str, made_by: Mapping[str, onnx.NodeProto]) -> set[str]:
    """Names of the nodes that a tensor is made of."""
    names: set[str] = set()
    waiting = [tensor]
    while waiting:
        node = made_by.get(waiting.pop())
        if node is not None and node.name not in names:
            names.add(node.name)
            waiting += node.input
    return names


def overflows(graph: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Return whether two neighbouring products of a layer can leave int16: 255 times both weights."""
    stored = {tensor.name: tensor for tensor in graph.graph.initializer}
    made_by = producers(graph.graph)
    for name in node.input[1:3] if "LSTM" in node.op_type else node.input[1:2]:
        maker = made_by.get(name)
        tensor = stored.get(maker.input[0] if maker is not None and maker.input else name)
        if tensor is None or (weight := tensor_values(tensor)).dtype != np.int8 or weight.ndim < 2:
            continue
        if node.op_type.startswith("Conv"):
            if attribute(node, "group", 1) == len(weight):  # depthwise kernels add in 32 bits
                continue
            columns = np.moveaxis(weight, 1, -1).reshape(len(weight), -1).T
        else:
            columns = weight.reshape(-1, *weight.shape[-2:])
            columns = (columns.swapaxes(1, 2) if attribute(node, "transB", 0) else columns).swapaxes(0, 1)
        for sign in (1, -1):
            parts = np.maximum(columns.astype(np.int16) * sign, 0)
            if (parts[:-1:2] + parts[1::2][: len(parts[:-1:2])] > 128).any():
                return True
    return False
