"""The inner loop of calibration, compiled by numba: float32 values into bins.

Importing this file compiles the loop, or loads it from numba's cache: import it where it is needed.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .histogram import BINS

CHUNK = 2048
"""Values whose bins are computed at a time: they and their bins stay in the first-level cache."""

LANES = 16
"""Slots that share the counts of zero. A ReLU leaves runs of zeros, and adding one to the same slot again
and again would wait for the slot each time."""

_SIGNATURE = numba.types.UniTuple(numba.int64, 3)(
    numba.types.Array(numba.float32, 1, "C", readonly=True),
    numba.types.Array(numba.int32, 1, "C", readonly=True),
    numba.float32,
    numba.float32,
    numba.int32,
    numba.uint16[::1],
    numba.uint32[::1],
    numba.int64[::1],
)


def _count(
    values: Any, bits: Any, first: Any, second: Any, limit: Any, bins: Any, table: Any, counts: Any
) -> tuple[int, int, int]:
    """Count values until one does not fit.

    The extremes are found on integers, which the compiler can vectorize (a comparison of floats must mind
    NaN): a float's bits, the lower 31 of them flipped where it is negative, are ordered as the floats are,
    with infinity and NaN at the ends.

    Args:
        values: float32 [n].
        bits: The same memory as int32.
        first, second: Two powers of two; their product is one over the width of a bin, which alone may be
            beyond float32. The second is at least one. Both products are exact but for values that vanish.
        limit: Bits of the least magnitude that does not fit.
        bins: Scratch, uint16 [CHUNK].
        table: Scratch, uint32 [2 * BINS + LANES], zeros; zeros again afterwards. Fewer than 2**32 values
            must be given at a time.
        counts: int64 [2 * BINS], added to.

    Returns:
        How many values were counted, and the ordered bits of the extremes so far; where not all were
        counted, the extremes contain those of the chunk that did not fit.
    """
    low, high = np.int32(2147483647), np.int32(-2147483648)
    done = values.size
    for start in range(0, values.size, CHUNK):
        size = min(CHUNK, values.size - start)
        chunk, chunk_bits = values[start : start + size], bits[start : start + size]
        for i in range(size):
            value = chunk[i]
            key = chunk_bits[i] ^ ((chunk_bits[i] >> np.int32(31)) & np.int32(0x7FFFFFFF))
            low, high = min(low, key), max(high, key)
            scaled = value * first
            if second != np.float32(1):  # the same for all values: the compiler takes it out of the loop
                scaled *= second
            index = np.int32(np.floor(scaled)) + np.int32(BINS)
            if first < np.float32(1) and value < np.float32(0) and scaled == np.float32(0):
                index = np.int32(BINS - 1)  # it vanished against the width, and is below zero all the same
            lane = np.int32(2 * BINS) + np.int32(i & (LANES - 1))
            bins[i] = np.uint16(lane if value == np.float32(0) else index)
        if high >= limit or np.int32(-1) - low >= limit:
            done = start
            break
        for i in range(size):
            table[bins[i]] += np.uint32(1)
    for lane in range(2 * BINS, 2 * BINS + LANES):
        table[BINS] += table[lane]
        table[lane] = np.uint32(0)
    for i in range(2 * BINS):
        counts[i] += table[i]
        table[i] = np.uint32(0)
    return done, low, high


def _compiled() -> Any:
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(_SIGNATURE, cache=True, **options)(_count)
    except RuntimeError:  # no folder for the cache can be written
        return numba.njit(_SIGNATURE, **options)(_count)


count = _compiled()
