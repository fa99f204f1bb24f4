"""What precision layers compute in.

In a strongly typed network the types of tensors are binding: what is read from the parsed network, without
a GPU, is what will run. In a weakly typed one TensorRT chooses, and the built engine is asked (`inspector`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from .layer_names import in_metadata

_COMPUTES = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
_MOVES = ("SHUFFLE", "IDENTITY", "SQUEEZE", "UNSQUEEZE", "SLICE")
_NAMES = {
    "FLOAT": "fp32", "HALF": "fp16", "BF16": "bf16", "INT8": "int8", "FP8": "fp8", "INT4": "int4",
    "FP4": "nvfp4", "E8M0": "mxfp8",
}  # fmt: skip


@dataclass(frozen=True)
class ComputeLayer:
    """A layer of a network that does arithmetic.

    Attributes:
        name: As the parser named it.
        kind: "CONVOLUTION", "DECONVOLUTION" or "MATRIX_MULTIPLY".
        precision: Of its operands in the network.
        node: The ONNX node it was made of; empty where the network does not tell (8.5).
    """

    name: str
    kind: str
    precision: str
    node: str = ""


def compute_layers(network: Any) -> list[ComputeLayer]:
    """Return the layers that do the arithmetic, with the types of the network.

    A layer computes in INT8, FP8, NVFP4 or MXFP8 when each operand comes from a DEQUANTIZE layer, through
    layers that only move data, and for NVFP4 a CAST (as Model-Optimizer writes it); "int4" are
    weights of 4 bits alone; all others compute in the type of their first operand.
    """
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    made_by = {
        layer.get_output(index).name: layer
        for layer in layers
        for index in range(layer.num_outputs)
        if layer.get_output(index) is not None
    }
    return [
        ComputeLayer(layer.name, _kind(layer), _precision(layer, made_by), _node(layer))
        for layer in layers
        if _kind(layer) in _COMPUTES
    ]


def by_precision(layers: list[ComputeLayer]) -> dict[str, dict[str, int]]:
    """Return precision to kind of layer to count."""
    by_precision: dict[str, Counter[str]] = {}
    for layer in layers:
        by_precision.setdefault(layer.precision, Counter())[layer.kind] += 1
    return {precision: dict(counts) for precision, counts in by_precision.items()}


def _precision(layer: Any, made_by: dict[str, Any]) -> str:
    operands = [layer.get_input(index) for index in range(min(layer.num_inputs, 2))]
    operands = [tensor for tensor in operands if tensor is not None]
    stored = [_stored_type(tensor, made_by) for tensor in operands]
    if len(stored) == 2 and stored[1] == "INT4":
        return "int4"
    if len(stored) == 2 and all(stored):
        return _NAMES.get(stored[0], stored[0].lower())
    dtype = _type(operands[0])
    return _NAMES.get(dtype, dtype.lower())


def _stored_type(tensor: Any, made_by: dict[str, Any]) -> str:
    """The type of what a tensor is dequantized from, of MXFP8 that of its scales; empty for other tensors."""
    layer, cast = made_by.get(tensor.name), False
    while layer is not None and _kind(layer) in (*_MOVES, "CAST"):
        cast = cast or _kind(layer) == "CAST"
        layer = made_by.get(layer.get_input(0).name)
    if layer is None or _kind(layer) != "DEQUANTIZE":
        return ""
    stored = _type(layer.get_input(0))
    if stored == "FP8" and _type(layer.get_input(1)) == "E8M0":
        stored = "E8M0"
    return "" if cast and stored != "FP4" else stored


def _node(layer: Any) -> str:
    return in_metadata(str(layer.metadata)) if hasattr(layer, "metadata") else ""


def _type(tensor: Any) -> str:
    return str(tensor.dtype).rsplit(".", 1)[-1]


def _kind(layer: Any) -> str:
    return str(layer.type).rsplit(".", 1)[-1]
