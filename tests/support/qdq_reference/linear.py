"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear in plain numpy, from the text of ONNX.

Source: onnx/docs/Operators.md, sections QuantizeLinear, DequantizeLinear (opsets 10 to 23), and
DynamicQuantizeLinear (opset 11).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .formats import FLOAT8, decode_table, encode_float8, saturated

Array = NDArray[Any]


def spread(parameter: Array, shape: tuple[int, ...], axis: int, block_size: int = 0) -> Array:
    """Return a scale or zero point in a shape that broadcasts to the tensor's.

    Source: QuantizeLinear-21, "three supported quantization granularities": per tensor, where it is a scalar;
    per axis, where it has one axis; blocked, where it has the rank of the tensor, each value standing for
    `block_size` values along `axis`, the last block being shorter where they do not divide it.
    """
    if parameter.ndim == 0 or (parameter.ndim == 1 and parameter.size == 1 and not block_size):
        return parameter.reshape(())
    if block_size:
        axis %= len(shape)
        return np.repeat(parameter, block_size, axis).take(range(shape[axis]), axis)
    broadcast = [1] * len(shape)
    broadcast[axis] = -1
    return parameter.reshape(broadcast)


def quotient(
    x: Array, scale: Array, *, axis: int = 1, block_size: int = 0, compute: Any = np.float32
) -> Array:
    """Return `x / y_scale`, before it is rounded; in float64 it tells how near a tie is."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        return np.asarray(x, compute) / spread(np.asarray(scale, compute), x.shape, axis, block_size)


def quantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    kind: str = "uint8",
    axis: int = 1,
    block_size: int = 0,
    saturate: bool = True,
    compute: Any = np.float32,
) -> Array:
    """Return `saturate(round(x / y_scale) + y_zero_point)`; `round` goes to the nearest even integer.

    Args:
        x: Floats.
        scale: A scalar, [channels] or blocks, see `spread`.
        zero_point: Of the scale's shape; 0 where it is left out.
        kind: Type of the result, a key of `formats.LIMITS` or `formats.FLOAT8`.
        axis, block_size, saturate: Attributes.
        compute: The type of the division: that of the scale, from opset 23 on attribute `precision`.
    """
    steps = quotient(x, scale, axis=axis, block_size=block_size, compute=compute)
    if kind in FLOAT8:  # "the zero point must be 0": there is nothing to add
        return encode_float8(steps, kind, saturate=saturate)
    with np.errstate(invalid="ignore"):
        whole = np.rint(steps).astype(np.float64)
    if zero_point is not None:
        whole = whole + spread(zero_point.astype(np.float64), x.shape, axis, block_size)
    return saturated(whole, kind)


def dequantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    kind: str = "",
    axis: int = 1,
    block_size: int = 0,
    compute: Any = np.float32,
) -> Array:
    """Return `(x - x_zero_point) * x_scale`.

    Args:
        x: Integers, or codes of the floats of 8 bits that `kind` names.
        kind: "" for integers.
        scale, zero_point, axis, block_size: As `quantize_linear`.
        compute: Type of the product. ONNX does not say it: ONNX Runtime multiplies in float32 and rounds to
            the type of the scale once.
    """
    values = decode_table(kind)[x] if kind in FLOAT8 else x.astype(np.int64)
    if zero_point is not None and kind not in FLOAT8:
        values = values - spread(zero_point.astype(np.int64), x.shape, axis, block_size)
    with np.errstate(over="ignore", under="ignore"):
        factor = spread(np.asarray(scale, compute), x.shape, axis, block_size)
        return np.asarray(values.astype(compute) * factor)


def dynamic_quantize_linear(x: NDArray[np.float32]) -> tuple[Array, Array, Array]:
    """Return uint8 values, the scale and the zero point.

    Source: DynamicQuantizeLinear-11: `y_scale = (max(0, max(x)) - min(0, min(x))) / (qmax - qmin)`,
    `y_zero_point = cast(round(saturate(qmin - min(x) / y_scale)))`. Rounding goes to the nearest even. All of
    zeros is not described: a scale of 0 would divide by zero, and ONNX Runtime takes 1.
    """
    low = np.minimum(x.min(initial=np.float32(0)), np.float32(0)).astype(np.float32)
    high = np.maximum(x.max(initial=np.float32(0)), np.float32(0)).astype(np.float32)
    with np.errstate(over="ignore"):
        scale = np.float32((high - low) / np.float32(255)) if high != low else np.float32(1)
    zero_point = np.rint(np.clip(np.float32(0) - low / scale, 0, 255)).astype(np.uint8)
    return quantize_linear(x, np.asarray(scale), zero_point), np.asarray(scale), zero_point
