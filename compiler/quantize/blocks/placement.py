"""The matrix products that are computed in blocks, and the reason for each other layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....model.graph import WEIGHTED, attribute, infer_shapes
from ....spec.words import BlockFormat
from .formats import BLOCK_SIZE

if TYPE_CHECKING:
    import onnx

_FEWEST_AXES, _MOST_AXES = 2, 3


def plan_blocks(
    model: onnx.ModelProto, kind: BlockFormat, excluded: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the names of the products to quantize, and for every other weighted node why it stays in float.

    TensorRT quantizes activations of two or three axes along the last one, in whole blocks
    (`IDynamicQuantizeLayer` of NvInfer.h, release/10.12; TensorRT-RTX 1.7 refuses others by name).

    Args:
        model: From `prepare.prepare_graph`.
        kind: The format.
        excluded: Name of a node that stays in float to the reason.
    """
    shapes = infer_shapes(model)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    planned, left = [], {}
    for node in model.graph.node:
        if node.op_type not in WEIGHTED or node.domain not in ("", "ai.onnx"):
            continue
        reason = excluded.get(node.name) or _unfit(node, kind, stored, shapes)
        if reason is None:
            planned.append(node.name)
        else:
            left[node.name] = reason
    return tuple(planned), left


def _unfit(
    node: onnx.NodeProto,
    kind: BlockFormat,
    stored: Mapping[str, onnx.TensorProto],
    shapes: Mapping[str, tuple[int | str, ...]],
) -> str | None:
    if node.op_type not in ("MatMul", "Gemm"):
        return f"TensorRT computes matrix products in {kind}, and no {node.op_type}"
    if node.input[0] in stored:
        return "its constant is the left operand"
    if node.input[1] not in stored:
        return "its weight is computed at run time"
    if attribute(node, "transA", 0):
        return "its activation is transposed"
    dims = stored[node.input[1]].dims
    if len(dims) != 2:
        return f"its weight has {len(dims)} axes; blocks need 2"
    axes = len(shapes.get(node.input[0], ()))
    if not _FEWEST_AXES <= axes <= _MOST_AXES:
        return f"its activation has {axes or 'an unknown number of'} axes; TensorRT takes 2 or 3"
    summed, block = dims[1 if attribute(node, "transB", 0) else 0], BLOCK_SIZE[kind]
    if summed % block:
        return f"it sums over {summed} values, which blocks of {block} do not divide"
    return None
