"""What precision layers compute in.

In a strongly typed network the types of tensors are binding: what is read from the parsed network, without
a GPU, is what will run. In a weakly typed one TensorRT chooses, and the built engine is asked.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

_COMPUTES = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
_MOVES = ("SHUFFLE", "IDENTITY", "SQUEEZE", "UNSQUEEZE", "SLICE")
_SPELLINGS = {
    ("int8",): "int8",
    ("bf16", "bfloat"): "bf16",
    ("half", "fp16", "float16"): "fp16",
    ("float", "fp32"): "fp32",
}
_NAMES = {"FLOAT": "fp32", "HALF": "fp16", "BF16": "bf16", "INT8": "int8", "FP8": "fp8", "INT4": "int4"}


def layers_by_precision(network: Any) -> dict[str, dict[str, int]]:
    """Return precision to layer type to count, for the layers that do the arithmetic.

    A layer computes in INT8 when each operand comes from a DEQUANTIZE layer, through layers that only
    move data; "int4" are weights of 4 bits alone; all others compute in the type of their first operand.
    """
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    made_by = {
        layer.get_output(index).name: layer
        for layer in layers
        for index in range(layer.num_outputs)
        if layer.get_output(index) is not None
    }
    found: dict[str, Counter[str]] = {}
    for layer in layers:
        kind = _kind(layer)
        if kind in _COMPUTES:
            precision = _precision(layer, made_by)
            found.setdefault(precision, Counter())[kind] += 1
    return {precision: dict(counts) for precision, counts in found.items()}


def engine_precisions(information: str) -> dict[str, dict[str, int]]:
    """Return precision to layer type to count from an engine inspector's JSON of detailed verbosity.

    A layer computes in the type of its first input, as the inspector spells it: "Int8 ... format", "Half",
    "FP16", "Float", "FP32". Layers that only copy or reformat are left out.
    """
    found: dict[str, Counter[str]] = {}
    for layer in json.loads(information)["Layers"]:
        if not isinstance(layer, dict) or layer.get("LayerType") in ("Reformat", "NoOp", "Shape", "Constant"):
            continue
        formats = [tensor.get("Format/Datatype", "") for tensor in layer.get("Inputs", [])]
        precision = _spelled(formats[0] if formats else "")
        found.setdefault(precision, Counter())[str(layer.get("LayerType", "unknown"))] += 1
    return {precision: dict(counts) for precision, counts in found.items()}


def _spelled(text: str) -> str:
    lowered = text.lower()
    for words, precision in _SPELLINGS.items():
        if any(word in lowered for word in words):
            return precision
    return lowered or "unknown"


def _precision(layer: Any, made_by: dict[str, Any]) -> str:
    operands = [layer.get_input(index) for index in range(min(layer.num_inputs, 2))]
    operands = [tensor for tensor in operands if tensor is not None]
    sources = [_source(tensor, made_by) for tensor in operands]
    if len(operands) == 2 and sources[1] == "DEQUANTIZE" and _stored_type(operands[1], made_by) == "INT4":
        return "int4"
    if len(sources) == 2 and all(source == "DEQUANTIZE" for source in sources):
        return "int8"
    dtype = str(operands[0].dtype).rsplit(".", 1)[-1]
    return _NAMES.get(dtype, dtype.lower())


def _source(tensor: Any, made_by: dict[str, Any]) -> str:
    layer = made_by.get(tensor.name)
    while layer is not None and _kind(layer) in _MOVES:
        layer = made_by.get(layer.get_input(0).name)
    return _kind(layer) if layer is not None else ""


def _stored_type(tensor: Any, made_by: dict[str, Any]) -> str:
    """The type of what a tensor is dequantized from."""
    layer = made_by[tensor.name]
    while _kind(layer) in _MOVES:
        layer = made_by[layer.get_input(0).name]
    return str(layer.get_input(0).dtype).rsplit(".", 1)[-1]


def _kind(layer: Any) -> str:
    return str(layer.type).rsplit(".", 1)[-1]
