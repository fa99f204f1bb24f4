"""Quantization error of INT8 from a histogram: squared error, SNR, share clipped.

Every value stands at the middle of its bin, but for the bin that begins at zero, whose values stand at zero:
they are mostly what a ReLU leaves, and zero is exact at any scale. Two ways to quantize are known, as the
targets use them:

- symmetric int8 (TensorRT): scale `amax / 127`, zero_point 0, levels -127 to 127;
- asymmetric uint8 (ONNX Runtime): the range is `[max(min, -amax), min(max, amax)]` with zero in it, scale
  its width over 255, and a zero_point that is an integer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.output_error import decibels
from .histogram import BINS, Histogram
from .qparams import INT8, UINT8, scale_and_zero_point

_CENTRES = np.arange(-BINS, BINS, dtype=np.float64) + 0.5
_CENTRES[BINS] = 0.0

_FEWEST = 128  # bins that a threshold holds: with fewer, bins would be as wide as the levels

_AT_ONCE = 64  # candidates whose levels are looked up at a time: their tables stay in the cache
_COARSE = 64  # candidates between those that are tried first


# Each table of 64 candidates is as large as the blocks that glibc gives back to the system when they are
# freed, only to ask for them again: three quarters of the time of a search. Freeing one large block raises
# that size (mallopt(3), M_MMAP_THRESHOLD). Its memory is never touched; elsewhere this does nothing.
np.empty(2 << 20)


@dataclass(frozen=True)
class Loss:
    """What a threshold does to a tensor.

    Attributes:
        snr_db: Power of the values over the power of the quantization error, in decibels; infinite where
            nothing is lost.
        clipped: Share of the values beyond the threshold, 0 to 1, to one bin.
    """

    snr_db: float
    clipped: float


def loss(histogram: Histogram, amax: float, *, symmetric: bool) -> Loss:
    """Return what clipping a tensor at `amax` and quantizing it loses."""
    width, total = histogram.width, histogram.total
    power = float((histogram.counts * _CENTRES * _CENTRES).sum())
    if not power:
        return Loss(math.inf, 0.0)
    error = float(squared_errors(histogram, np.array([amax / width]), symmetric=symmetric)[0])
    nearest = np.concatenate([np.arange(BINS - 1, -1, -1), np.arange(BINS)])  # of each bin to zero, in bins
    beyond = 0 if amax >= histogram.largest else int(histogram.counts[nearest >= amax / width].sum())
    return Loss(decibels(power, error), beyond / total)


def amax_mse(histogram: Histogram, *, symmetric: bool) -> float:
    """Return the magnitude with the least squared quantization error.

    All multiples of the bin's width from 128 bins on are candidates, and the largest magnitude seen: where
    the first 128 bins hold all values, there is nothing to choose.

    Returns:
        amax in the tensor's units, at most the largest magnitude seen.
    """
    largest = histogram.largest
    used = math.ceil(largest / histogram.width)
    if used <= _FEWEST:
        return largest
    candidates = np.arange(_FEWEST, used + 1).astype(np.float64)
    candidates[-1] = largest / histogram.width
    # Clipping alone costs this much: what costs more than the best of a few cannot be the best of all.
    bound = _clipping_errors(histogram, candidates, symmetric=symmetric)
    tried = candidates[::-_COARSE]
    coarse = squared_errors(histogram, tried, symmetric=symmetric)
    best = tried[int(np.argmin(coarse))]  # stays, whatever rounding does to the bound
    candidates = candidates[(bound <= coarse.min()) | (candidates == best)]
    errors = squared_errors(histogram, candidates, symmetric=symmetric)
    return float(candidates[int(np.argmin(errors))]) * histogram.width


def squared_errors(
    histogram: Histogram, candidates: NDArray[np.float64], *, symmetric: bool
) -> NDArray[np.float64]:
    """Return the sum of squared errors for each candidate, in squared bins: float64 [len(candidates)].

    A level `v` between its two edges costs `sum n (c - v)**2`, three differences of prefix sums over counts
    `n` and centres `c`.

    Args:
        histogram: Counts of one tensor.
        candidates: Thresholds in bins, float64, above zero.
        symmetric: Which way to quantize, see above.
    """
    moments = _moments(histogram.counts, _CENTRES)
    errors = [
        _errors_at_once(moments, *_grid(histogram, candidates[start : start + _AT_ONCE], symmetric))
        for start in range(0, len(candidates), _AT_ONCE)
    ]
    return np.concatenate(errors)


def limits(histogram: Histogram, amax: float, *, symmetric: bool) -> tuple[float, float]:
    """Return (low, high), the range that is quantized for a threshold."""
    if symmetric:
        return -amax, amax
    return min(max(histogram.min, -amax), 0.0), max(min(histogram.max, amax), 0.0)


def _grid(
    histogram: Histogram, candidates: NDArray[np.float64], symmetric: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Scale [k, 1] in bins and first level [k, 1] of each candidate, and the number of levels of all."""
    if symmetric:
        scale, _ = scale_and_zero_point(-candidates, candidates, INT8)
        return scale[:, None], np.full((len(candidates), 1), -float(INT8.qmax)), 2 * INT8.qmax + 1
    low = np.maximum(histogram.min / histogram.width, -candidates)
    high = np.minimum(histogram.max / histogram.width, candidates)
    scale, zero_point = scale_and_zero_point(low, high, UINT8)
    return scale[:, None], -zero_point[:, None], UINT8.qmax + 1


def _errors_at_once(
    moments: NDArray[np.float64],
    scale: NDArray[np.float64],
    first: NDArray[np.float64],
    number: int,
) -> NDArray[np.float64]:
    levels = np.arange(number)[None, :] + first
    values = levels * scale
    edges = np.empty((len(scale), levels.shape[1] + 1), np.int64)
    edges[:, 0], edges[:, -1] = 0, 2 * BINS
    # The first bin whose centre rounds to a level or beyond.
    borders = (levels[:, 1:] - 0.5) * scale
    inner = np.ceil(borders - 0.5) + BINS
    inner[(inner == BINS) & (borders > 0)] = BINS + 1  # that bin stands at zero, before the border
    edges[:, 1:-1] = np.clip(inner, 0, 2 * BINS)
    counts, sums = np.diff(moments[0][edges], axis=1), np.diff(moments[1][edges], axis=1)
    errors: NDArray[np.float64] = moments[2, -1] + ((values * counts - 2 * sums) * values).sum(axis=1)
    return np.maximum(errors, 0.0)


def _clipping_errors(
    histogram: Histogram, candidates: NDArray[np.float64], *, symmetric: bool
) -> NDArray[np.float64]:
    """The part of the error that comes from values beyond the threshold: no more than all of it."""
    centres = np.arange(BINS) + 0.5
    moments = _moments(histogram.magnitudes(), centres)
    # uint8's zero_point is rounded, which moves the range by up to half a level.
    ends = candidates if symmetric else candidates * (1 + 1 / 255)
    start = np.clip(np.ceil(ends - 0.5), 0, BINS).astype(np.int64)
    counts, sums, squares = (row[-1] - row[start] for row in moments)
    errors: NDArray[np.float64] = squares - 2 * ends * sums + ends * ends * counts
    return errors * (1 - 1e-9)


def _moments(counts: NDArray[np.int64], centres: NDArray[Any]) -> NDArray[np.float64]:
    """Prefix sums of counts times centres to the powers 0, 1 and 2: float64 [3, len(counts) + 1]."""
    moments = np.zeros((3, len(counts) + 1))
    np.cumsum([counts, counts * centres, counts * centres * centres], axis=1, out=moments[:, 1:])
    return moments
