"""The numbers of E4M3 by their bits, and rounding to them by looking at every one."""

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


E4M3 = small_floats(3, 7, 127)  # the code after the last is not a number


def nearest(values: NDArray[Any], numbers: Numbers) -> Numbers:
    """Round magnitudes to the nearest number, of two as near to that of the even code; keep the signs."""
    wide = np.minimum(np.abs(values.astype(np.float64)), numbers[-1])
    distance = np.abs(wide[..., None] - numbers)
    ties = distance == distance.min(-1, keepdims=True)
    even = np.where(ties & (np.arange(len(numbers)) % 2 == 0), numbers, np.inf).min(-1)
    first = numbers[np.argmin(distance, axis=-1)]
    found: Numbers = np.sign(values) * np.where(ties.sum(-1) > 1, even, first)
    return found
