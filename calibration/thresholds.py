"""Choose the clipping magnitude (amax) of a tensor from its histogram, and compute the quantization error.

Each method returns amax in the tensor's units; the scale follows as `amax / 127` for symmetric int8. Errors
take every value as the middle of its bin. Values of the bin that begins at zero count as zero: most are zeros
of a ReLU, and zero is exact at any scale. The targets quantize in two ways:

- symmetric int8 (TensorRT): scale `amax / 127`, zero_point 0, levels -127 to 127;
- asymmetric uint8 (ONNX Runtime): the range is `[max(min, -amax), min(max, amax)]`, extended to zero; the
  scale is its width / 255, the zero_point an integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CalibrationError, InvalidOption
from ..model.outputs.judgement import decibels
from ..spec.words import METHODS, MethodName
from .histogram import BINS, Histogram
from .qparams import INT8, UINT8, scale_and_zero_point

_CENTRES = np.arange(-BINS, BINS, dtype=np.float64) + 0.5
_CENTRES[BINS] = 0.0
_MIN_BINS = 128  # least threshold in bins: with fewer, bins would be as wide as the levels
_CHUNK = 64  # candidates evaluated at a time: their tables of levels fit in the cache
_COARSE_STEP = 64  # step between the candidates of a first pass


# Each table of 64 candidates is as large as the blocks that glibc returns to the system when they are freed,
# and then requests again, which took three quarters of a search. Freeing one large block raises that size
# (mallopt(3), M_MMAP_THRESHOLD). Its memory is never touched; other allocators are not affected.
np.empty(2 << 20)


def threshold_error(histogram: Histogram, amax: float, *, symmetric: bool) -> tuple[float, float]:
    """Return a threshold's SQNR in decibels (infinite without error) and clipped share, exact to one bin."""
    width = histogram.width
    power = float((histogram.counts * _CENTRES * _CENTRES).sum())
    if not power:
        return math.inf, 0.0
    error = float(squared_errors(histogram, np.array([amax / width]), symmetric=symmetric)[0])
    nearest = np.concatenate([np.arange(BINS - 1, -1, -1), np.arange(BINS)])  # of each bin to zero, in bins
    beyond = 0 if amax >= histogram.largest else int(histogram.counts[nearest >= amax / width].sum())
    return decibels(power, error), beyond / histogram.total


def amax_mse(histogram: Histogram, *, symmetric: bool) -> float:
    """Return the magnitude with the least squared quantization error.

    Candidates are all multiples of the bin's width from 128 bins on, and the largest magnitude seen. If 128
    bins hold all values, the latter is returned.
    """
    largest = histogram.largest
    used_bins = math.ceil(largest / histogram.width)
    if used_bins <= _MIN_BINS:
        return largest
    candidates = np.arange(_MIN_BINS, used_bins + 1).astype(np.float64)
    candidates[-1] = largest / histogram.width
    # Clipping errors are lower bounds: a bound above the best of a coarse pass rules a candidate out.
    bound = _clipping_errors(histogram, candidates, symmetric=symmetric)
    grid = candidates[::-_COARSE_STEP]
    coarse_errors = squared_errors(histogram, grid, symmetric=symmetric)
    best = grid[int(np.argmin(coarse_errors))]  # not ruled out, even if rounding raises its bound
    candidates = candidates[(bound <= coarse_errors.min()) | (candidates == best)]
    errors = squared_errors(histogram, candidates, symmetric=symmetric)
    return float(candidates[int(np.argmin(errors))]) * histogram.width


def squared_errors(
    histogram: Histogram, candidates: NDArray[np.float64], *, symmetric: bool
) -> NDArray[np.float64]:
    """Return the sum of squared errors for each candidate, in squared bins: float64 [len(candidates)].

    Candidates are thresholds in bins, above zero. The bins between the edges of a level `v` cost
    `sum n (c - v)**2`: three differences of prefix sums over counts `n` and centres `c`.
    """
    counted, summed, squares = _moments(histogram.counts, _CENTRES)
    errors: list[NDArray[np.float64]] = []
    for start in range(0, len(candidates), _CHUNK):
        low, high = -candidates[start : start + _CHUNK], candidates[start : start + _CHUNK]
        scheme, least = (INT8, -INT8.qmax) if symmetric else (UINT8, UINT8.qmin)
        if not symmetric:
            low = np.maximum(histogram.min / histogram.width, low)
            high = np.minimum(histogram.max / histogram.width, high)
        scale, zero_point = (array[:, None] for array in scale_and_zero_point(low, high, scheme))
        levels = np.arange(least, scheme.qmax + 1) - zero_point
        values = levels * scale
        edges = np.empty((len(scale), levels.shape[1] + 1), np.int64)
        edges[:, 0], edges[:, -1] = 0, 2 * BINS
        # A level begins at the first bin with a centre that rounds to it or beyond.
        borders = (levels[:, 1:] - 0.5) * scale
        inner = np.ceil(borders - 0.5) + BINS
        inner[(inner == BINS) & (borders > 0)] = BINS + 1  # that bin counts as zero, before the border
        edges[:, 1:-1] = np.clip(inner, 0, 2 * BINS)
        counts, sums = np.diff(counted[edges], axis=1), np.diff(summed[edges], axis=1)
        errors.append(squares[-1] + ((values * counts - 2 * sums) * values).sum(axis=1))
    return np.maximum(np.concatenate(errors), 0.0)


def limits(histogram: Histogram, amax: float, *, symmetric: bool) -> tuple[float, float]:
    """Return (low, high), the quantized range for a threshold."""
    if symmetric:
        return -amax, amax
    return min(max(histogram.min, -amax), 0.0), max(min(histogram.max, amax), 0.0)


def _clipping_errors(
    histogram: Histogram, candidates: NDArray[np.float64], *, symmetric: bool
) -> NDArray[np.float64]:
    """Return the error of the values beyond the threshold, a lower bound of the whole error."""
    centres = np.arange(BINS) + 0.5
    moments = _moments(histogram.magnitudes(), centres)
    # uint8's zero_point is rounded, which moves the range by up to half a level.
    ends = candidates if symmetric else candidates * (1 + 1 / 255)
    start = np.clip(np.ceil(ends - 0.5), 0, BINS).astype(np.int64)
    counts, sums, squares = (row[-1] - row[start] for row in moments)
    errors: NDArray[np.float64] = squares - 2 * ends * sums + ends * ends * counts
    return errors * (1 - 1e-9)


def _moments(counts: NDArray[np.int64], centres: NDArray[Any]) -> NDArray[np.float64]:
    """Return prefix sums of counts times centres to the powers 0, 1 and 2: float64 [3, len(counts) + 1]."""
    moments = np.zeros((3, len(counts) + 1))
    np.cumsum([counts, counts * centres, counts * centres * centres], axis=1, out=moments[:, 1:])
    return moments


DEFAULT_PERCENTILE = 99.99
MOST_CLIPPED = 0.1
"""Largest share of the values that the entropy method may clip."""
AUTO_TOLERANCE = 1.02
"""`auto` takes the method that clips least among those within 2% of the least squared error."""


@dataclass(frozen=True)
class Method:
    """Method that chooses thresholds; "percentile", and "auto", which tries it, use `percentile`."""

    name: MethodName = "auto"
    percentile: float = DEFAULT_PERCENTILE

    def __str__(self) -> str:
        """Return the spelling that `parse_method` reads."""
        return f"percentile:{self.percentile!r}" if self.name == "percentile" else self.name


def parse_method(text: str) -> Method:
    """Parse a method: `minmax`, `entropy`, `mse`, `auto`, `percentile` or `percentile:99.9`."""
    name, colon, value = text.partition(":")
    if name not in METHODS or (colon and name != "percentile"):
        raise InvalidOption(
            f"method {text!r} is unknown; known are {', '.join(METHODS)} and percentile:NUMBER"
        )
    try:
        percentile = float(value) if colon else DEFAULT_PERCENTILE
    except ValueError:
        raise InvalidOption(f"method {text!r}: {value!r} is not a number") from None
    if not 0.0 < percentile <= 100.0 or math.isnan(percentile):
        raise InvalidOption(f"method {text!r}: above 0 and at most 100 is required")
    return Method(METHODS[METHODS.index(name)], percentile)


def amax_percentile(histogram: Histogram, percentile: float = DEFAULT_PERCENTILE) -> float:
    """Return the magnitude that `percentile` percent of the values do not exceed.

    Within one bin of `numpy.percentile(abs(values), percentile)`, at most the largest magnitude.
    """
    if not 0.0 < percentile <= 100.0:
        raise InvalidOption(f"percentile {percentile}: a number above 0 and at most 100 is required")
    largest = histogram.largest
    cumulative = np.cumsum(histogram.magnitudes())
    # numpy's default interpolates between the order statistics around rank p * (n - 1).
    rank = percentile / 100.0 * (int(cumulative[-1]) - 1)
    below = int(np.searchsorted(cumulative, math.floor(rank), side="right"))
    above = int(np.searchsorted(cumulative, math.ceil(rank), side="right"))
    index = below + (above - below) * (rank - math.floor(rank))
    return min((index + 1) * histogram.width, largest)


def amax_entropy(histogram: Histogram) -> float:
    """Return the clipping magnitude that loses least information.

    Minimizes KL(P‖Q) over every candidate of `i` bins, `128 <= i <= bins`: P is the clipped distribution with
    its tail folded into the last bin; Q is P without the tail, quantized to 128 levels (bin `j` belongs to
    level `j * 128 // i`) and spread evenly over the bins of each level that are not empty in P (Migacz, GTC
    2017, "8-bit inference with TensorRT"). A candidate for which Q is zero where P is not has infinite
    divergence. Candidates that clip more than `MOST_CLIPPED` of the values are excluded: for a distribution
    that begins far from zero, the first bin alone with the whole tail would fit best. As in TensorRT, the
    count of the bin at zero is replaced by its neighbour's: the zeros of a ReLU are exact at any scale and
    must not affect the choice.
    """
    largest = histogram.largest
    counts = histogram.magnitudes().astype(np.float64)
    counts[0] = counts[1]
    levels = INT8.qmax + 1
    used = np.flatnonzero(counts)
    if not used.size or used[-1] < levels:
        return largest
    cumulative = np.cumsum(counts)
    min_bins = int(np.searchsorted(cumulative, (1.0 - MOST_CLIPPED) * cumulative[-1])) + 1
    candidates = np.arange(max(levels, min_bins), used[-1] + 2)
    divergences = entropy_divergences(counts, candidates, levels)
    best = int(candidates[int(np.argmin(divergences))])
    return min(best * histogram.width, largest)


def entropy_divergences(
    counts: NDArray[np.float64], candidates: NDArray[np.int64], levels: int
) -> NDArray[np.float64]:
    """Return KL(P‖Q) of every candidate, by prefix sums: float64 [len(candidates)].

    With `S_k` the counts and `n_k` the non-empty bins of level `k`, T all counts and C the unclipped ones:
    KL = (Σ p log p − Σ_k S_k log(S_k / n_k) − tail · log q_last) / T − log T + log C.

    `counts` [bins] are of magnitudes; a candidate is the number of unclipped bins, mapped to `levels`.
    """
    total = counts.sum()
    cumulative, filled, plogp = (
        np.concatenate([[0.0], np.cumsum(values)]) for values in (counts, counts > 0, _xlogx(counts))
    )
    divergences: list[NDArray[np.float64]] = []
    for start in range(0, len(candidates), _CHUNK):
        sizes = candidates[start : start + _CHUNK]
        tail, last = total - cumulative[sizes], counts[sizes - 1]
        # The first bin of level k, ceil(k * i / levels), for each candidate i: [candidates, levels + 1]
        edges = -(-np.arange(levels + 1)[None, :] * sizes[:, None] // levels)
        sums, bins = np.diff(cumulative[edges], axis=1), np.diff(filled[edges], axis=1)
        # The tail fills the last bin of P, so it counts as non-empty even where no value fell into it.
        bins[:, -1] += (last == 0) & (tail > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.where(sums > 0, sums * np.log(sums / bins), 0.0).sum(axis=1)
            share = np.log(sums[:, -1] / bins[:, -1])
            cross = spread + np.where(tail > 0, tail * share, 0.0)
            entropy = plogp[sizes] - _xlogx(last) + _xlogx(last + tail)
            divergences.append((entropy - cross) / total - np.log(total) + np.log(cumulative[sizes]))
    result = np.concatenate(divergences)
    return np.where(np.isfinite(result), result, np.inf)


METHOD_AMAX: Mapping[MethodName, Callable[[Histogram, float, bool], float]] = {
    "minmax": lambda histogram, _, __: histogram.largest,
    "percentile": lambda histogram, percentile, _: amax_percentile(histogram, percentile),
    "entropy": lambda histogram, _, __: amax_entropy(histogram),
    "mse": lambda histogram, _, symmetric: amax_mse(histogram, symmetric=symmetric),
}
"""Method name to a function of a nonempty histogram, percentile and symmetry that returns amax."""


_AMAX_CACHE: dict[tuple[object, ...], float] = {}
"""Cache of up to `_MAX_CACHED` results: a search requests the same histograms repeatedly."""
_MAX_CACHED = 100_000


def amax(histogram: Histogram, method: Method, *, symmetric: bool = True) -> float:
    """Return the clipping magnitude by a method; only "mse" and "auto" depend on `symmetric`."""
    if histogram.is_empty:
        raise CalibrationError(
            "no values were observed; a threshold needs at least one",
            hint="calibrate with samples in which the tensor is not empty",
        )
    content = blake2b(histogram.counts.tobytes(), digest_size=16).digest()
    key = (method, symmetric, histogram.exponent, histogram.min, histogram.max, content)
    if key not in _AMAX_CACHE:
        if len(_AMAX_CACHE) >= _MAX_CACHED:
            _AMAX_CACHE.clear()
        if method.name == "auto":
            _AMAX_CACHE[key] = amax_by_method(histogram, method.percentile, symmetric=symmetric)["auto"]
        else:
            _AMAX_CACHE[key] = METHOD_AMAX[method.name](histogram, method.percentile, symmetric)
    return _AMAX_CACHE[key]


def amax_by_method(
    histogram: Histogram, percentile: float = DEFAULT_PERCENTILE, *, symmetric: bool = True
) -> dict[str, float]:
    """Return the magnitude by each of `METHODS`.

    "auto" is the largest of the others with a squared error of at most `AUTO_TOLERANCE` times the least, that
    of `mse`. Less clipping is safer: values that calibration did not see are larger, not smaller.
    """
    by_method: dict[str, float] = {
        name: amax(histogram, Method(name, percentile), symmetric=symmetric) for name in METHOD_AMAX
    }
    magnitudes = np.array([*by_method.values()])
    if magnitudes.all():
        errors = squared_errors(histogram, magnitudes / histogram.width, symmetric=symmetric)
        magnitudes = magnitudes[errors <= errors.min() * AUTO_TOLERANCE]
    return {**by_method, "auto": float(magnitudes.max())}


def _xlogx(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values > 0, values * np.log(values), 0.0)
