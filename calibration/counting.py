"""Counting that numba compiles: float32 values into the bins of a histogram."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..machine_memory import require_address_space
from ..model.session import usable_cores
from .histogram import BINS, Count, count_by_numpy

CHUNK = 2048
"""Values whose bins are computed at a time: they and their bins stay in the first-level cache."""

LANES = 16
"""Slots that share the counts of zero. A ReLU leaves runs of zeros, and adding one to the same slot again
and again would wait for the slot each time."""


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
        table: Scratch, uint32 [2 * BINS + LANES], zeros; zeros again afterwards. It holds fewer than 2**32
            values.
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


@functools.cache
def _compiled() -> Any:
    """Compile the loop, or load it from numba's cache on disk."""
    import numba

    signature = numba.types.UniTuple(numba.int64, 3)(
        numba.types.Array(numba.float32, 1, "C", readonly=True),
        numba.types.Array(numba.int32, 1, "C", readonly=True),
        numba.float32,
        numba.float32,
        numba.int32,
        numba.uint16[::1],
        numba.uint32[::1],
        numba.int64[::1],
    )
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(signature, cache=True, **options)(_count)
    except RuntimeError:  # no folder for the cache can be written
        return numba.njit(signature, **options)(_count)


_NEEDED_BYTES, _THREAD_BYTES = 256 << 20, 40 << 20
"""Address space of llvmlite, numba and scipy, and of each thread of the OpenBLAS in scipy."""
_LIMIT_INFINITE = 128  # exponent of the first power of two beyond float32


def make_count() -> Count:
    """Return a counting function with scratch memory of its own: one for each thread.

    The first call on a machine compiles, in about a second; numba keeps the result on disk.
    """
    if not _compiled.cache_info().currsize:
        require_address_space(
            _NEEDED_BYTES + usable_cores() * _THREAD_BYTES, "load numba, which counts values"
        )
    try:
        return _Compiled()
    except ImportError:
        return count_by_numpy


def why_slow() -> str:
    """Return why counting is not compiled here; empty when it is."""
    try:
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported ({error}), so values are counted by numpy, which is slower"
    return ""


class _Compiled:
    """The compiled loop with its scratch memory."""

    def __init__(self) -> None:
        self._count = _compiled()
        self._bins = np.empty(CHUNK, np.uint16)
        self._table = np.zeros(2 * BINS + LANES, np.uint32)

    def __call__(
        self, values: NDArray[Any], exponent: int, counts: NDArray[np.int64]
    ) -> tuple[int, float, float]:
        if values.dtype != np.float32:
            return count_by_numpy(values, exponent, counts)
        top = exponent + BINS.bit_length() - 1
        limit = math.ldexp(1.0, top) if top < _LIMIT_INFINITE else math.inf
        first = max(-126, min(-exponent, 127))
        done, low, high = self._count(
            values,
            values.view(np.int32),
            np.float32(math.ldexp(1.0, first)),
            np.float32(math.ldexp(1.0, -exponent - first)),
            np.float32(limit).view(np.int32),
            self._bins,
            self._table,
            counts,
        )
        return done, _from_ordered(low), _from_ordered(high)


def _from_ordered(key: int) -> float:
    """The float whose ordered bits (see `_count`) these are."""
    bits = key if key >= 0 else key ^ 0x7FFFFFFF
    return float(np.int32(bits).view(np.float32))
