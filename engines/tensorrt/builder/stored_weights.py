"""Bound by an engine's size how many of its weights can be stored in a wider type than was asked for.

An engine stores each weight once or more, in the type of the kernel that reads it, without compression. Of n
elements that should take `narrow` bytes each, a share k in `wide` bytes makes it at least

    n (k wide + (1 - k) narrow) + what else it must hold

bytes long. Kernels, and weights that are padded or stored twice, make it longer: k is an upper bound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ....model.graph import producers, tensor_values
from ....model.onnx_file import load_onnx

if TYPE_CHECKING:
    import onnx

BYTES = {
    "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "int8": 1, "fp8": 1,
    "nvfp4": 1 / 2 + 1 / 16, "mxfp8": 1 + 1 / 32,
}  # fmt: skip
"""With the scales of blocks."""

_PASSED = ("QuantizeLinear", "DequantizeLinear", "Transpose", "Reshape", "Cast", "Identity", "Unsqueeze")
_FLOATS = (1, 10, 16)
"""FLOAT, FLOAT16 and BFLOAT16 in TensorProto."""
_SMALL = 1024
"""Elements below which a constant is no weight: it may be folded away."""


def widest_share(
    graph: Path, names: Collection[str], plan_bytes: int, *, narrow: str, wide: str
) -> float | None:
    """Return the largest share of the layers' weights that the engine has room for in the wider type.

    Args:
        graph: The ONNX file that the engine was built from.
        names: Nodes whose weights should be narrow.
        plan_bytes: Of the engine.
        narrow: Precision that was asked for.
        wide: The narrowest other one that TensorRT may have chosen.

    Returns:
        From 0 to 1; None where the layers have no weights, or the types are of one size.
    """
    spread = BYTES.get(wide, 4) - BYTES.get(narrow, 4)
    model = load_onnx(graph)
    weights, others = _elements(model, names)
    if spread <= 0 or not weights:
        return None
    least = weights * BYTES[narrow] + others * min(BYTES["fp16"], BYTES[wide])
    return min(max((plan_bytes - least) / (weights * spread), 0.0), 1.0)


def _elements(model: onnx.ModelProto, names: Collection[str]) -> tuple[int, int]:
    """Elements of the weights of some nodes, and of all other large constants of floats; equal ones once."""
    made_by = producers(model.graph)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    of_layers = {
        name
        for node in model.graph.node
        if node.name in names
        for name in (_origin(operand, made_by) for operand in node.input[:2])
        if name in constants
    }
    seen: set[bytes] = set()
    counts = {True: 0, False: 0}
    for name in sorted(constants, key=lambda name: name not in of_layers):
        values = tensor_values(constants[name])
        digest = hashlib.sha256(values.tobytes()).digest()
        counted = name in of_layers or (values.size >= _SMALL and constants[name].data_type in _FLOATS)
        if counted and digest not in seen:
            counts[name in of_layers] += values.size
            seen.add(digest)
    return counts[True], counts[False]


def _origin(name: str, made_by: dict[str, onnx.NodeProto]) -> str:
    """The tensor that an operand is made of, through Q/DQ and what only moves data."""
    while name in made_by and made_by[name].op_type in _PASSED:
        name = made_by[name].input[0]
    return name
