"""Layers whose sizes do not fit Tensor Cores: the column of `inspect --nodes`.

Kernels of Tensor Cores read operands 16 bytes at a time. So channels of a convolution, and K and N of a
product of M x K by K x N, should be multiples of 16 bytes (NVIDIA, "Matrix Multiplication Background User's
Guide"; TensorRT's "Best Practices" ask for 32 of INT8, and pad others implicitly). It is computed from sizes,
not measured: cuBLAS 11 and later run other sizes too, less efficiently, and memory can be the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .graph import attribute, infer_shapes, without_weights

if TYPE_CHECKING:
    import onnx

ALIGNMENT: Mapping[str, int] = {
    "tf32": 4, "fp16": 8, "bf16": 8, "int8": 16, "fp8": 16, "mxfp8": 16, "int4": 32, "nvfp4": 32,
}  # fmt: skip
"""Precision to the multiple that sizes should be: 16 bytes."""

Shapes = Mapping[str, tuple[int | str, ...]]


def tensor_core_advice(model: onnx.ModelProto, precision: str = "fp16") -> dict[str, str]:
    """Return the name of each node that multiplies, to what padding its sizes would take.

    "fits"; "depthwise", where padding gains nothing; or "K 3 -> 8, 62.5% zeros": the next multiples of a
    group's sizes, and the share of zeros in the padded multiply-adds.
    """
    stored = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    shapes: Shapes = {**infer_shapes(without_weights(model)), **stored}
    advice = {}
    for node in model.graph.node:
        sizes = _sizes(node, shapes)
        if sizes is not None:
            is_depthwise = attribute(node, "group", 1) > 1 and sizes["K"] == 1
            advice[node.name] = "depthwise" if is_depthwise else _padding(sizes, ALIGNMENT[precision])
    return advice


def _padding(sizes: Mapping[str, int | str], multiple: int) -> str:
    padded = {name: -(-size // multiple) * multiple for name, size in sizes.items() if isinstance(size, int)}
    odd = [f"{name} {sizes[name]} -> {size}" for name, size in padded.items() if size != sizes[name]]
    share = 1.0
    for name, size in padded.items():
        share *= int(sizes[name]) / size
    return f"{', '.join(odd)}, {1 - share:.1%} zeros" if odd else "fits"


def _sizes(node: onnx.NodeProto, shapes: Shapes) -> dict[str, int | str] | None:
    """K and N of a node, a text where an axis is dynamic; None where it multiplies no matrices."""
    left, right = (shapes.get(name, ()) for name in (*node.input[:2], "", "")[:2])
    if node.op_type in ("Conv", "ConvInteger") and len(right) > 2 and isinstance(right[0], int):
        return {"K": right[1], "N": right[0] // attribute(node, "group", 1)}
    if node.op_type == "ConvTranspose" and len(right) > 2 and isinstance(right[0], int):
        return {"K": right[0] // attribute(node, "group", 1), "N": right[1]}
    if node.op_type == "Gemm" and len(right) == 2:
        k, n = right[::-1] if attribute(node, "transB", 0) else right
        return {"K": k, "N": n}
    if node.op_type in ("MatMul", "MatMulInteger") and len(left) > 1 and len(right) > 1:
        return {"K": right[-2] if isinstance(right[-2], int) else left[-1], "N": right[-1]}
    return None
