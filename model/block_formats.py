"""Which operands of a product are NVFP4 or MXFP8, by the operators that TensorRT's parser reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_BEHIND = ("Cast", "Transpose", "Reshape", "Identity")


def block_formats(
    operands: Iterable[str], made_by: Mapping[str, onnx.NodeProto], types: Mapping[str, str]
) -> set[str]:
    """Return the block formats of operands: "nvfp4", "mxfp8", and "" for an operand of another kind.

    Args:
        operands: Names of tensors.
        made_by: Tensor name to the node that makes it.
        types: Tensor name to dtype, for stored tensors at least.
    """
    return {_format(name, made_by, types) for name in operands} or {""}


def _format(name: str, made_by: Mapping[str, onnx.NodeProto], types: Mapping[str, str]) -> str:
    node = made_by.get(name)
    while node is not None and node.op_type in _BEHIND:
        node = made_by.get(node.input[0])
    if node is None:
        return ""
    if node.op_type == "TRT_MXFP8DequantizeLinear":
        return "mxfp8"
    maker = made_by.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
    dynamic = maker is not None and maker.op_type == "TRT_FP4DynamicQuantize"
    stored = node.op_type == "DequantizeLinear" and types.get(node.input[0]) == "float4_e2m1fn"
    return "nvfp4" if dynamic or stored else ""
