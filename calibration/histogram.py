"""Histograms with counts that depend on the values alone.

Bins are `2**exponent` wide, `BINS` on each side of zero. When a value falls outside, the exponent grows and
neighbouring bins merge. Division by a power of two is exact, and `floor(floor(x / w) / 2) == floor(x / 2w)`,
so the counts are a function of the multiset of values alone: batch size, order and sharding cannot change
them, and two histograms merge without loss.

Counting uses numpy; with numba installed, a compiled loop takes an eighth of the time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.memory import require_address_space
from ..errors import CalibrationError
from ..model.sessions.session import usable_cores

BINS = 2048
"""Bins on each side of zero, a power of two. The largest magnitude is in the outer half of its side."""

Count = Callable[[NDArray[Any], int, NDArray[np.int64]], tuple[int, float, float]]
"""Maps (values, exponent, counts) to (number of values counted, least, largest): see `count_by_numpy`."""

_LOWEST_EXPONENT = -160  # float32's least subnormal, 2**-149, divided by BINS
_HIGHEST_EXPONENT = 1013  # for the largest float64
_MAX_VALUES = 1 << 62  # values of a histogram: a sum of fewer than two of these fits an int64
_MAX_EXACT_EXPONENT = 900  # up to this exponent, a float32 divided by the width does not underflow in float64
_CHUNK = 1 << 20  # values that numpy bins at a time: bounds the float64 temporaries to a few MB
_CALL_VALUES = 1 << 31  # values counted by one call: the compiled loop counts in 32 bits


class NonFinite(ValueError):
    """Values hold NaN or infinity; the message is "NaN" or "infinity"."""


@dataclass
class Histogram:
    """Counts of one tensor.

    Attributes:
        exponent: Bins are `2**exponent` wide; determined by the largest magnitude seen.
        counts: int64 [2 * BINS]; bin `i` holds values in `[i - BINS, i - BINS + 1) * width`.
        min, max: Exact extremes; `inf` and `-inf` while empty.
    """

    exponent: int = _LOWEST_EXPONENT
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2 * BINS, np.int64))
    min: float = math.inf
    max: float = -math.inf

    @property
    def width(self) -> float:
        """Width of a bin in the tensor's units."""
        return math.ldexp(1.0, self.exponent)

    @property
    def is_empty(self) -> bool:
        """Whether no value was counted yet."""
        return self.max < self.min

    @property
    def is_plausible(self) -> bool:
        """Whether the fields are consistent, for a histogram that was read from a file."""
        if self.counts.shape != (2 * BINS,) or self.counts.dtype != np.int64:
            return False
        if type(self.exponent) is not int or not _LOWEST_EXPONENT <= self.exponent <= _HIGHEST_EXPONENT:
            return False
        if (self.counts < 0).any() or (self.counts > _MAX_VALUES // (2 * BINS)).any():
            return False
        if self.is_empty:
            return not self.counts.any() and (self.min, self.max) == (math.inf, -math.inf)
        reach = BINS * self.width
        return -reach <= float(self.min) <= float(self.max) <= reach

    @property
    def largest(self) -> float:
        """The exact largest magnitude seen; infinite while empty."""
        return max(abs(self.min), abs(self.max))

    @property
    def total(self) -> int:
        """Number of values counted."""
        return int(self.counts.sum())

    def add(self, values: NDArray[Any], count: Count | None = None) -> None:
        """Count the values of an array of any shape and float type; `count` defaults to `count_by_numpy`."""
        flat = np.ascontiguousarray(values).reshape(-1)
        is_double = flat.dtype.kind == "f" and flat.dtype.itemsize > 4
        flat = flat.astype(np.float64 if is_double else np.float32, copy=False)  # also to native byte order
        for start in range(0, flat.size, _CALL_VALUES):
            self._add(flat[start : start + _CALL_VALUES], count or count_by_numpy)

    def _add(self, values: NDArray[Any], count: Count) -> None:
        while values.size:
            counted, low, high = count(values, self.exponent, self.counts)
            if not (math.isfinite(low) and math.isfinite(high)):
                raise NonFinite("NaN" if math.isnan(low) or math.isnan(high) else "infinity")
            # The extremes may belong to values that are not counted yet; the next round counts those.
            self.min, self.max = min(self.min, low + 0.0), max(self.max, high + 0.0)  # -0.0 becomes 0.0
            self._grow(_exponent_for(max(abs(low), abs(high))))
            values = values[counted:]

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts; exact."""
        if self.total + other.total > _MAX_VALUES:
            raise CalibrationError(
                f"a histogram of {self.total + other.total} values; at most {_MAX_VALUES} are supported",
                hint="a file is damaged or was merged too often; calibrate again",
            )
        self._grow(other.exponent)
        self.counts += _merge_bins(other.counts, self.exponent - other.exponent)
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)

    def magnitudes(self) -> NDArray[np.int64]:
        """Return counts of absolute values, int64 [BINS]: bin `i` is `[i, i + 1) * width`."""
        folded: NDArray[np.int64] = self.counts[BINS:] + self.counts[BINS - 1 :: -1]
        return folded

    def _grow(self, exponent: int) -> None:
        if exponent > self.exponent:
            self.counts = _merge_bins(self.counts, exponent - self.exponent)
            self.exponent = exponent


def _exponent_for(magnitude: float) -> int:
    """Return the least exponent at which `BINS` bins exceed a magnitude: magnitude < BINS * 2**exponent."""
    if magnitude == 0.0:
        return _LOWEST_EXPONENT
    return max(math.frexp(magnitude)[1] - BINS.bit_length() + 1, _LOWEST_EXPONENT)


def count_by_numpy(
    values: NDArray[Any], exponent: int, counts: NDArray[np.int64]
) -> tuple[int, float, float]:
    """Add values [n], n at least 1, to `counts` if all of them fit in bins `2**exponent` wide.

    Returns (counted, least value, largest value); `counted` is n or 0. If it is 0, the extremes determine the
    required exponent, or reveal NaN or infinity.
    """
    low, high = float(values.min()), float(values.max())
    if not (math.isfinite(low) and math.isfinite(high)) or _exponent_for(max(abs(low), abs(high))) > exponent:
        return 0, low, high
    scale = math.ldexp(1.0, -exponent)
    for start in range(0, values.size, _CHUNK):
        # float64: x * 2**-e is exact for every float32, subnormals included; in float32 it is not.
        chunk = values[start : start + _CHUNK]
        scaled = chunk.astype(np.float64)
        scaled *= scale
        np.floor(scaled, out=scaled)
        if chunk.dtype == np.float64 or exponent > _MAX_EXACT_EXPONENT:  # underflow to -0.0 is possible
            scaled[(chunk < 0) & (scaled == 0)] = -1.0
        indices = scaled.astype(np.int64)
        indices += BINS
        counts += np.bincount(indices, minlength=2 * BINS)
    return values.size, low, high


def _merge_bins(counts: NDArray[np.int64], doublings: int) -> NDArray[np.int64]:
    """Return the counts in bins `2**doublings` times as wide."""
    ratio = 1 << doublings
    merged = np.zeros_like(counts)
    if ratio >= BINS:  # each side becomes one bin
        merged[BINS - 1], merged[BINS] = counts[:BINS].sum(), counts[BINS:].sum()
    else:
        half = BINS // ratio
        merged[BINS - half : BINS + half] = counts.reshape(-1, ratio).sum(axis=1)
    return merged


CHUNK = 2048
"""Values that the compiled loop bins at a time: they and their bins fit in the first-level cache."""
CACHE_LINE = 16  # float32 values
ZERO_SLOTS = 16
"""Slots that share the count of zeros: with one slot, each zero would wait for the previous addition."""


def _count_chunks(
    values: Any, bits: Any, first: Any, second: Any, limit: Any, bins: Any, table: Any, counts: Any
) -> tuple[int, int, int]:
    """Count chunks up to the first that does not fit; return the number of values, and the extremes' bits.

    The extremes include the chunk that did not fit. They are found on integers, which the compiler can
    vectorize (float comparisons must handle NaN). Bits of nonnegative floats sort as the floats do; bits of
    negative floats without the sign sort as the magnitudes. Infinity and NaN come last. All is cast to int32:
    a wider type would halve the number of values per vector.

    `values` are float32 [n], `bits` the same memory as int32. `first` and `second` are powers of two with the
    product 1 / width, which one float32 may not hold. `limit` has the bits of the least magnitude that does
    not fit. `bins` (uint16 [CHUNK]) and `table` (uint32 [2 * BINS + ZERO_SLOTS], all
    zero at entry and at return) are scratch. The results are added to `counts`, int64 [2 * BINS].
    """
    sign = np.int32(-2147483648)
    # `negative` is the largest magnitude of negative values. It and `max_bits` are below zero until a value
    # of their sign follows.
    min_bits, max_bits, negative = np.int32(2147483647), sign, sign
    counted = values.size
    for start in range(0, values.size, CHUNK):
        size = min(CHUNK, values.size - start)
        chunk, chunk_bits = values[start : start + size], bits[start : start + size]
        for i in range(size):
            value, value_bits = chunk[i], chunk_bits[i]
            min_bits, max_bits = np.int32(min(min_bits, value_bits)), np.int32(max(max_bits, value_bits))
            negative = np.int32(max(negative, np.int32(value_bits ^ sign)))
            scaled = value * first
            if second != np.float32(1):  # constant: the compiler takes the test out of the loop
                scaled *= second
            index = np.int32(np.floor(scaled)) + np.int32(BINS)
            if first < np.float32(1) and value < np.float32(0) and scaled == np.float32(0):
                index = np.int32(BINS - 1)  # a negative value underflowed to -0.0
            slot = np.int32(2 * BINS) + np.int32(i & (ZERO_SLOTS - 1))
            bins[i] = np.uint16(slot if value == np.float32(0) else index)
        if max_bits >= limit or negative >= limit:
            counted = start
            break
        # Reading one value per cache line prefetches the next chunk while this one is counted; uncached
        # values then take half as long. The value updates an extreme, else the compiler would drop the read.
        for i in range(start + size, min(start + size + CHUNK, values.size), CACHE_LINE):
            max_bits = np.int32(max(max_bits, bits[i]))
        for i in range(size):
            table[bins[i]] += np.uint32(1)
    for slot in range(2 * BINS, 2 * BINS + ZERO_SLOTS):
        table[BINS] += table[slot]
        table[slot] = np.uint32(0)
    for i in range(2 * BINS):
        counts[i] += table[i]
        table[i] = np.uint32(0)
    return counted, negative ^ sign if negative >= 0 else min_bits, max_bits if max_bits >= 0 else min_bits


@functools.cache
def _compile_loop() -> Any:
    """Return the compiled loop, from numba's cache on disk if possible."""
    import numba

    read_only = [numba.types.Array(kind, 1, "C", readonly=True) for kind in (numba.float32, numba.int32)]
    scratch = numba.uint16[::1], numba.uint32[::1], numba.int64[::1]
    signature = numba.types.UniTuple(numba.int64, 3)(
        *read_only, numba.float32, numba.float32, numba.int32, *scratch
    )
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(signature, cache=True, **options)(_count_chunks)
    except RuntimeError:  # no cache folder is writable
        return numba.njit(signature, **options)(_count_chunks)


_NEEDED_BYTES, _THREAD_BYTES = 256 << 20, 40 << 20
"""Address space of llvmlite, numba and scipy, and of each thread of the OpenBLAS in scipy."""
_LIMIT_INFINITE = 128  # exponent of the first power of two beyond float32


def make_count() -> Count:
    """Return a counting function with scratch memory, so for one thread only. numba compiles it in about a
    second, once per machine."""
    if not _compile_loop.cache_info().currsize:
        needed_bytes = _NEEDED_BYTES + usable_cores() * _THREAD_BYTES
        require_address_space(needed_bytes, "load numba, which counts values")
    try:
        compiled = _compile_loop()
    except ImportError:
        return count_by_numpy
    bins, table = np.empty(CHUNK, np.uint16), np.zeros(2 * BINS + ZERO_SLOTS, np.uint32)

    def count(values: NDArray[Any], exponent: int, counts: NDArray[np.int64]) -> tuple[int, float, float]:
        if values.dtype != np.float32:
            return count_by_numpy(values, exponent, counts)
        reach = exponent + BINS.bit_length() - 1
        limit = np.float32(math.ldexp(1.0, reach) if reach < _LIMIT_INFINITE else math.inf)
        first = max(-126, min(-exponent, 127))
        widths = (np.float32(math.ldexp(1.0, power)) for power in (first, -exponent - first))
        counted, *extremes = compiled(
            values, values.view(np.int32), *widths, limit.view(np.int32), bins, table, counts
        )
        low, high = (float(np.int32(extreme).view(np.float32)) for extreme in extremes)
        return counted, low, high

    return count


def why_slow() -> str:
    """Return why counting is not compiled on this machine; empty when it is."""
    try:
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported ({error}), so values are counted by numpy, which is slower"
    return ""
