"""The numbers of E2M1, E4M3 and E8M0 by their bits, and rounding to them by looking at every one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def small_floats(mantissa_bits: int, bias: int, count: int) -> Numbers:
    """The first `count` numbers that are not negative, in the order of their codes."""
    values = []
    for code in range(count):
        exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
        fraction = mantissa / 2**mantissa_bits
        values.append(
            fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias)
        )
    return np.array(values)


E2M1 = small_floats(1, 1, 8)
E4M3 = small_floats(3, 7, 127)  # the code after the last is not a number
E8M0 = 2.0 ** np.arange(-127, 128)


def nearest(values: NDArray[Any], numbers: Numbers) -> Numbers:
    """Round magnitudes to the nearest number, of two as near to that of the even code; keep the signs."""
    wide = np.minimum(np.abs(values.astype(np.float64)), numbers[-1])
    distance = np.abs(wide[..., None] - numbers)
    ties = distance == distance.min(-1, keepdims=True)
    even = np.where(ties & (np.arange(len(numbers)) % 2 == 0), numbers, np.inf).min(-1)
    first = numbers[np.argmin(distance, axis=-1)]
    found: Numbers = np.sign(values) * np.where(ties.sum(-1) > 1, even, first)
    return found


def fake_nvfp4(values: NDArray[np.float32], scale: np.float32) -> NDArray[np.float32]:
    """What blocks of 16 along the last axis make of values: E2M1 * (E4M3 * scale)."""
    blocks = values.reshape(-1, 16)
    wanted = np.abs(blocks).max(-1, keepdims=True) / np.float32(6) / scale
    scales = nearest(wanted, E4M3).astype(np.float32) * scale
    steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)
    return (nearest(steps, E2M1).astype(np.float32) * scales).reshape(values.shape)


def fake_mxfp8(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """What blocks of 32 along the last axis make of values: E4M3 * E8M0, its scale rounded up."""
    blocks = values.reshape(-1, 32)
    ratios = np.abs(blocks).max(-1, keepdims=True).astype(np.float64) / 448
    scales = np.where(ratios <= E8M0, E8M0, np.inf).min(-1, keepdims=True)
    return (nearest(blocks / scales, E4M3) * scales).astype(np.float32).reshape(values.shape)
