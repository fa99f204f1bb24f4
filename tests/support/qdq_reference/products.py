"""Products of integers in plain numpy: exact int32 sums, and one rounding where they are requantized.

Source: onnx/docs/Operators.md, sections MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv (opset 10);
onnxruntime/docs/ContribOperators.md, sections com.microsoft.QGemm, com.microsoft.MatMulIntegerToFloat,
com.microsoft.MatMulNBits and com.microsoft.GatherBlockQuantized.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .formats import saturated

Array = NDArray[Any]


def windows(
    x: Array,
    kernel: tuple[int, ...],
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    fill: Any = 0,
) -> Array:
    """Return [n, c, *outputs, *kernel]: what each place of a filter or pool reads.

    Args:
        pads: Before and behind: [begin of each axis, end of each axis].
        fill: What stands in the padding.
    """
    count = len(kernel)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:count], pads[count:], strict=True)], constant_values=fill)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    axes = tuple(range(2, 2 + count))
    view = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=axes)
    chosen = [slice(None, None, step) for step in strides]
    inner = [slice(None, None, step) for step in dilations]
    return view[(slice(None), slice(None), *chosen, *inner)]


def convolve(x: Array, w: Array, *, strides: Any, pads: Any, dilations: Any, group: int = 1) -> Array:
    """Return the sums of a convolution in the type of its operands.

    Source: section Conv; y[n, m, o] is the sum over c and k of x[n, c, o * stride + k * dilation - pad] *
    w[m, c, k], the channels c those of m's group.
    """
    kernel = w.shape[2:]
    read = windows(x, kernel, strides, pads, dilations)
    n, places, count = x.shape[0], read.shape[2 : 2 + len(kernel)], len(kernel)
    read = read.reshape(n, group, -1, *read.shape[2:])
    w = w.reshape(group, -1, *w.shape[1:])
    channels_last = np.moveaxis(read, 2, 2 + count)  # [n, group, *places, c, *kernel]
    rows = channels_last.reshape(n, group, int(np.prod(places)), -1)
    columns = w.reshape(group, w.shape[1], -1)
    sums = np.einsum("ngpk,gmk->ngmp", rows, columns)
    return sums.reshape(n, -1, *places)


def settings(w: Array, attributes: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the strides, pads, dilations and group of a convolution, `auto_pad` carried out."""
    count = w.ndim - 2
    strides = list(attributes.get("strides", [1] * count))
    dilations = list(attributes.get("dilations", [1] * count))
    pads = list(attributes.get("pads", [0] * 2 * count))
    mode = attributes.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        total = [
            max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            for size, s, k, d in zip(shape[2:], strides, w.shape[2:], dilations, strict=True)
        ]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = less + more if mode == "SAME_UPPER" else more + less
    return {"strides": strides, "pads": pads, "dilations": dilations, "group": attributes.get("group", 1)}


def matmul_integer(a: Array, b: Array, a_zero: Array | int = 0, b_zero: Array | int = 0) -> Array:
    """Return the int32 product of operands less their zero points; a_zero may be per row, b_zero per column.

    Source: MatMulInteger-10: "The production MUST never overflow. The accumulation may overflow if and only
    if in 32 bits." int64 sums, wrapped.
    """
    a_zero = np.asarray(a_zero, np.int64)
    left = a.astype(np.int64) - (a_zero[:, None] if a_zero.ndim == 1 and a_zero.size > 1 else a_zero)
    return (left @ (b.astype(np.int64) - np.asarray(b_zero, np.int64))).astype(np.int32)


def conv_integer(x: Array, w: Array, x_zero: int = 0, w_zero: Array | int = 0, **how: Any) -> Array:
    """Return the int32 convolution; padding is of the zero point, and adds nothing. ConvInteger-10."""
    w_zeros = np.asarray(w_zero, np.int64).reshape(-1, *[1] * (w.ndim - 1))
    left, right = x.astype(np.int64) - int(x_zero), w.astype(np.int64) - w_zeros
    return convolve(left, right, **settings(w, how, x.shape)).astype(np.int32)


def requantized(sums: Array, ratio: Array, zero: Array | int, kind: str, compute: Any = np.float32) -> Array:
    """Return `saturate(round(sums * ratio) + zero)`; ties go to the nearest even, as in QuantizeLinear."""
    steps = np.rint(sums.astype(compute) * np.asarray(ratio, compute)).astype(np.float64)
    return saturated(steps + np.asarray(zero, np.float64), kind)


def qlinear_matmul(
    a: Array, sa: Array, za: Array, b: Array, sb: Array, zb: Array, sy: Array, zy: Array
) -> Array:
    """Return the requantized product. QLinearMatMul-10: y = (sa * sb / sy) * sums + zy, in float32."""
    ratio = np.float32(sa) * sb.astype(np.float32) / np.float32(sy)
    return requantized(matmul_integer(a, b, za, zb), ratio, zy, zy.dtype.name)


def qlinear_conv(
    x: Array, sx: Array, zx: Array, w: Array, sw: Array, zw: Array, sy: Array, zy: Array,
    bias: Array | None = None,
    **how: Any,
) -> Array:  # fmt: skip
    """Return the requantized convolution. Section QLinearConv-10: "Bias must be quantized using scale =
    x_scale * w_scale and zero_point = 0"; w_scale may be one value per output channel."""
    sums = conv_integer(x, w, int(zx), zw, **how)
    channels = (-1, *[1] * (sums.ndim - 2))
    if bias is not None:
        sums = sums + bias.reshape(channels)
    ratio = np.float32(sx) * np.atleast_1d(sw).astype(np.float32) / np.float32(sy)
    return requantized(sums, ratio.reshape(channels), zy, zy.dtype.name)


def unpack_bits(packed: Array, bits: int) -> Array:
    """Return the integers [..., values] of bytes [..., bytes], the lowest bits first."""
    if bits == 8:
        return packed
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


def nbits_weight(
    packed: Array, scales: Array, zeros: Array | None, *, rows: int, columns: int, bits: int
) -> Array:
    """Return the float weight [rows, columns] of MatMulNBits: `(q - zero) * scale` in blocks of a row.

    Source: section com.microsoft.MatMulNBits: B is [N, blocks, block_size * bits / 8]; without zero points
    they are `2 ** (bits - 1)`; zero points are packed as B is, each row in whole bytes.
    """
    values = unpack_bits(packed.reshape(rows, -1, packed.shape[-1]), bits).astype(np.int64)
    blocks = values.shape[1]
    zero: Any = 1 << (bits - 1)
    if zeros is not None:
        zero = unpack_bits(zeros.reshape(rows, -1), bits)[:, :blocks, None].astype(np.int64)
    weight = (values - zero) * np.asarray(scales, np.float64).reshape(rows, blocks, 1)
    return weight.reshape(rows, -1)[:, :columns]
