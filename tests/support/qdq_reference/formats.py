"""Number formats of quantized tensors: limits of integers, and the floats of 8 and 16 bits, in plain numpy.

Source: onnx/docs/docsgen/source/technical/float8.md (the tables of FLOAT8E4M3FN and FLOAT8E5M2, and "Cast"
for saturation) and int4.md; Micikevicius et al. 2022, arXiv 2209.05433, table 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LIMITS = {
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int32": (-(2**31), 2**31 - 1),
}
"""Smallest and largest integer of each type."""

FLOAT8 = {"float8_e4m3fn": (4, 3, 7), "float8_e5m2": (5, 2, 15)}
"""Bits of exponent, bits of mantissa, bias."""


def decode_table(kind: str) -> NDArray[np.float64]:
    """Return what each of the 256 codes of a float of 8 bits stands for."""
    exponents, mantissas, bias = FLOAT8[kind]
    table = np.empty(256)
    for code in range(256):
        sign = -1.0 if code >> 7 else 1.0
        exponent = (code >> mantissas) & ((1 << exponents) - 1)
        mantissa = code & ((1 << mantissas) - 1)
        fraction = mantissa / (1 << mantissas)
        value = 2.0 ** (1 - bias) * fraction if exponent == 0 else 2.0 ** (exponent - bias) * (1 + fraction)
        if kind == "float8_e4m3fn" and code & 0x7F == 0x7F:
            value = np.nan
        elif kind == "float8_e5m2" and exponent == 31:
            value = np.nan if mantissa else np.inf
        table[code] = sign * value
    return table


def encode_float8(values: NDArray[Any], kind: str, *, saturate: bool = True) -> NDArray[np.uint8]:
    """Return the codes of the nearest numbers, halves to the even code.

    Args:
        values: Floats of any type and shape; NaN stays NaN.
        kind: "float8_e4m3fn" or "float8_e5m2".
        saturate: Whether what is too large, infinity too, becomes the largest number. Without, it becomes NaN
            (E4M3FN has no infinity) or infinity.
    """
    table = decode_table(kind)[:128]
    numbers = table[np.isfinite(table)]  # ascending from 0; the code is the index
    magnitudes = np.abs(np.asarray(values, np.float64))
    above = np.clip(np.searchsorted(numbers, magnitudes), 1, len(numbers) - 1)
    below = above - 1
    to_below, to_above = magnitudes - numbers[below], numbers[above] - magnitudes
    nearer_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    codes = np.where(nearer_above, above, below)
    step = numbers[-1] - numbers[-2]
    # The largest number ends in an even or odd code; what would round to the next one is too large.
    edge, largest = numbers[-1] + step / 2, len(numbers) - 1
    beyond = (magnitudes > edge) | ((magnitudes == edge) & (largest % 2 == 1))
    codes = np.where(magnitudes >= numbers[-1], largest, codes)
    overflow = largest if saturate else (0x7F if kind == "float8_e4m3fn" else 0x7C)
    codes = np.where(beyond, overflow, codes)
    codes = np.where(np.isnan(magnitudes), 0x7F, codes)
    return (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def to_bfloat16(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return values rounded to bfloat16, halves to the even number, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32)).astype(np.float32)


def saturated(values: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return whole floats as integers of a type; int4 and uint4 are held in 8 bits."""
    low, high = LIMITS[kind]
    holder = {"int4": "int8", "uint4": "uint8"}.get(kind, kind)
    return np.clip(values, low, high).astype(holder)
