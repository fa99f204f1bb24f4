"""Counts of a tensor's values that depend only on the values.

Bins are `2**exponent` wide, `BINS` on each side of zero. When a value falls outside, the exponent grows
and neighbouring bins merge. A power of two scales exactly and `floor(floor(x / w) / 2) == floor(x / 2w)`,
so the counts are a function of the multiset of values alone: batch size, order and sharding cannot
change a single one, and two histograms merge without loss.

numpy counts here; `counting` compiles a loop that does the same in an eighth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CalibrationError

BINS = 2048
"""Bins on each side of zero, a power of two. At least half of them are in use on one side."""

Count = Callable[[NDArray[Any], int, NDArray[np.int64]], tuple[int, float, float]]
"""(values, exponent, counts) to (how many were counted, least, largest): see `count_by_numpy`."""

_LOWEST_EXPONENT = -160  # below float32's least subnormal, 2**-149, even divided by BINS
_HIGHEST_EXPONENT = 1013  # of float64's largest
_MOST = 1 << 62  # values of a histogram: the sum of two is an int64
_DEEPEST = 900  # up to this exponent, no float32 underflows in float64 when it is divided by a width
_CHUNK = 1 << 20  # values binned at a time: bounds the float64 temporaries to a few MB
_AT_ONCE = 1 << 31  # values counted by one call: the compiled loop counts in 32 bits


class NonFinite(ValueError):
    """Values hold NaN or infinity; `what` says which."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


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
        """Whether `add` and `merge` make such a histogram: what a file holds may be anything."""
        if self.counts.shape != (2 * BINS,) or self.counts.dtype != np.int64:
            return False
        if type(self.exponent) is not int or not _LOWEST_EXPONENT <= self.exponent <= _HIGHEST_EXPONENT:
            return False
        if (self.counts < 0).any() or (self.counts > _MOST // (2 * BINS)).any():
            return False
        if self.is_empty:
            return not self.counts.any() and (self.min, self.max) == (math.inf, -math.inf)
        reach = BINS * self.width
        return -reach <= float(self.min) <= float(self.max) <= reach

    @property
    def largest(self) -> float:
        """The largest magnitude seen, exactly; infinite while empty."""
        return max(abs(self.min), abs(self.max))

    @property
    def total(self) -> int:
        """Number of values counted."""
        return int(self.counts.sum())

    def add(self, values: NDArray[Any], count: Count | None = None) -> None:
        """Count the values of an array of any shape and float type, by a `counting.make_count` or numpy."""
        flat = np.ascontiguousarray(values).reshape(-1)
        double = flat.dtype.kind == "f" and flat.dtype.itemsize > 4
        flat = flat.astype(np.float64 if double else np.float32, copy=False)  # native byte order, too
        for start in range(0, flat.size, _AT_ONCE):
            self._add(flat[start : start + _AT_ONCE], count or count_by_numpy)

    def _add(self, values: NDArray[Any], count: Count) -> None:
        while values.size:
            done, low, high = count(values, self.exponent, self.counts)
            if not (math.isfinite(low) and math.isfinite(high)):
                raise NonFinite("NaN" if math.isnan(low) or math.isnan(high) else "infinity")
            # Extremes may come from beyond what was counted; they are among the values all the same.
            self.min, self.max = min(self.min, low + 0.0), max(self.max, high + 0.0)  # -0.0 becomes 0.0
            self._grow(_exponent_for(max(abs(low), abs(high))))
            values = values[done:]

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts; exact."""
        if self.total + other.total > _MOST:
            raise CalibrationError(
                f"a histogram of {self.total + other.total} values; at most {_MOST} are required",
                hint="a file is damaged, or was merged over and over; calibrate again",
            )
        self._grow(other.exponent)
        self.counts += _merged(other.counts, self.exponent - other.exponent)
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)

    def magnitudes(self) -> NDArray[np.int64]:
        """Return counts of absolute values, int64 [BINS]: bin `i` is `[i, i + 1) * width`."""
        folded: NDArray[np.int64] = self.counts[BINS:] + self.counts[BINS - 1 :: -1]
        return folded

    def _grow(self, exponent: int) -> None:
        if exponent > self.exponent:
            self.counts = _merged(self.counts, exponent - self.exponent)
            self.exponent = exponent


def _exponent_for(magnitude: float) -> int:
    """The exponent at which `BINS` bins reach past a magnitude: magnitude < BINS * 2**exponent."""
    if magnitude == 0.0:
        return _LOWEST_EXPONENT
    return max(math.frexp(magnitude)[1] - BINS.bit_length() + 1, _LOWEST_EXPONENT)


def count_by_numpy(
    values: NDArray[Any], exponent: int, counts: NDArray[np.int64]
) -> tuple[int, float, float]:
    """Count values [n], n at least 1, if all of them fit in bins `2**exponent` wide; `counts` is added to.

    Returns:
        How many were counted (all or none), and the least and largest value. Where not all were counted,
        their magnitude says to which exponent to grow; NaN or infinity among them says what is wrong.
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
        if chunk.dtype == np.float64 or exponent > _DEEPEST:  # what underflowed to -0.0 was below zero
            scaled[(chunk < 0) & (scaled == 0)] = -1.0
        indices = scaled.astype(np.int64)
        indices += BINS
        counts += np.bincount(indices, minlength=2 * BINS)
    return values.size, low, high


def _merged(counts: NDArray[np.int64], doublings: int) -> NDArray[np.int64]:
    """Counts in bins `2**doublings` as wide."""
    together = 1 << doublings
    merged = np.zeros_like(counts)
    if together >= BINS:  # each side becomes one bin
        merged[BINS - 1], merged[BINS] = counts[:BINS].sum(), counts[BINS:].sum()
    else:
        half = BINS // together
        merged[BINS - half : BINS + half] = counts.reshape(-1, together).sum(axis=1)
    return merged
