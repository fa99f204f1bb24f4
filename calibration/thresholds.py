"""Choose the clipping magnitude (amax) of a tensor from its histogram, and tell what quantization loses.

Each method returns amax in the tensor's units; the scale follows as `amax / 127` for symmetric int8. For
errors, every value stands at the middle of its bin, but for the bin that begins at zero, whose values stand
at zero: they are mostly what a ReLU leaves, and zero is exact at any scale. Two ways to quantize are known,
as the targets use them:

- symmetric int8 (TensorRT): scale `amax / 127`, zero_point 0, levels -127 to 127;
- asymmetric uint8 (ONNX Runtime): the range is `[max(min, -amax), min(max, amax)]` with zero in it, scale
  its width over 255, and a zero_point that is an integer.
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
_FEWEST = 128  # bins that a threshold holds: with fewer, bins would be as wide as the levels
_AT_ONCE = 64  # candidates whose levels are looked up at a time: their tables stay in the cache
_COARSE = 64  # candidates between those that are tried first


# Each table of 64 candidates is as large as the blocks that glibc gives back to the system when they are
# freed, only to ask for them again: three quarters of the time of a search. Freeing one large block raises
# that size (mallopt(3), M_MMAP_THRESHOLD). Its memory is never touched; elsewhere this does nothing.
np.empty(2 << 20)


def loss(histogram: Histogram, amax: float, *, symmetric: bool) -> tuple[float, float]:
    """Return what clipping a tensor at `amax` and quantizing it loses: the signal-to-noise ratio in decibels,
    infinite where nothing is lost, and the share of the values beyond it, 0 to 1, to one bin.
    """
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

    All multiples of the bin's width from 128 bins on are candidates, and the largest magnitude seen: where
    the first 128 bins hold all values, there is nothing to choose.
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
    `n` and centres `c`. Candidates are thresholds in bins, above zero.
    """
    counted, summed, squares = _moments(histogram.counts, _CENTRES)
    errors: list[NDArray[np.float64]] = []
    for start in range(0, len(candidates), _AT_ONCE):
        low, high = -candidates[start : start + _AT_ONCE], candidates[start : start + _AT_ONCE]
        scheme, least = (INT8, -INT8.qmax) if symmetric else (UINT8, UINT8.qmin)
        if not symmetric:
            low = np.maximum(histogram.min / histogram.width, low)
            high = np.minimum(histogram.max / histogram.width, high)
        scale, zero_point = (array[:, None] for array in scale_and_zero_point(low, high, scheme))
        levels = np.arange(least, scheme.qmax + 1) - zero_point
        values = levels * scale
        edges = np.empty((len(scale), levels.shape[1] + 1), np.int64)
        edges[:, 0], edges[:, -1] = 0, 2 * BINS
        # The first bin whose centre rounds to a level or beyond.
        borders = (levels[:, 1:] - 0.5) * scale
        inner = np.ceil(borders - 0.5) + BINS
        inner[(inner == BINS) & (borders > 0)] = BINS + 1  # that bin stands at zero, before the border
        edges[:, 1:-1] = np.clip(inner, 0, 2 * BINS)
        counts, sums = np.diff(counted[edges], axis=1), np.diff(summed[edges], axis=1)
        errors.append(squares[-1] + ((values * counts - 2 * sums) * values).sum(axis=1))
    return np.maximum(np.concatenate(errors), 0.0)


def limits(histogram: Histogram, amax: float, *, symmetric: bool) -> tuple[float, float]:
    """Return (low, high), the range that is quantized for a threshold."""
    if symmetric:
        return -amax, amax
    return min(max(histogram.min, -amax), 0.0), max(min(histogram.max, amax), 0.0)


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


DEFAULT_PERCENTILE = 99.99
MOST_CLIPPED = 0.1
"""Largest share of the values that the entropy method may clip."""
AUTO_TOLERANCE = 1.02
"""`auto` takes the method that clips least among those within 2% of the least squared error."""


@dataclass(frozen=True)
class Method:
    """How thresholds are chosen; `percentile` is for "percentile", and for "auto", which tries it."""

    name: MethodName = "auto"
    percentile: float = DEFAULT_PERCENTILE

    def __str__(self) -> str:
        """The spelling that `parse_method` reads."""
        return f"percentile:{self.percentile!r}" if self.name == "percentile" else self.name


def parse_method(text: str) -> Method:
    """Read a method's spelling: `minmax`, `entropy`, `mse`, `auto`, `percentile`, `percentile:99.9`."""
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
    divergence. One that would clip more than `MOST_CLIPPED` of the values is left out: a distribution that
    begins far from zero would be represented best by its first bin, alone with all of the tail. As TensorRT
    does, the count of the bin at zero is replaced by its neighbour's: the spike that a ReLU leaves at zero is
    exact at any scale and must not decide.
    """
    largest = histogram.largest
    counts = histogram.magnitudes().astype(np.float64)
    counts[0] = counts[1]
    levels = INT8.qmax + 1
    used = np.flatnonzero(counts)
    if not used.size or used[-1] < levels:
        return largest
    cumulative = np.cumsum(counts)
    fewest = int(np.searchsorted(cumulative, (1.0 - MOST_CLIPPED) * cumulative[-1])) + 1
    candidates = np.arange(max(levels, fewest), used[-1] + 2)
    divergences = entropy_divergences(counts, candidates, levels)
    best = int(candidates[int(np.argmin(divergences))])
    return min(best * histogram.width, largest)


def entropy_divergences(
    counts: NDArray[np.float64], candidates: NDArray[np.int64], levels: int
) -> NDArray[np.float64]:
    """Return KL(P‖Q) of every candidate, by prefix sums: float64 [len(candidates)].

    With `S_k` the counts and `n_k` the non-empty bins of level `k`, T all counts and C those kept:
    KL = (Σ p log p − Σ_k S_k log(S_k / n_k) − tail · log q_last) / T − log T + log C.

    `counts` [bins] are of magnitudes; a candidate is the number of bins kept, `levels` to bins.
    """
    total = counts.sum()
    cumulative, filled, plogp = (
        np.concatenate([[0.0], np.cumsum(values)]) for values in (counts, counts > 0, _xlogx(counts))
    )
    divergences: list[NDArray[np.float64]] = []
    for start in range(0, len(candidates), _AT_ONCE):
        kept = candidates[start : start + _AT_ONCE]
        tail, last = total - cumulative[kept], counts[kept - 1]
        # The first bin of level k, ceil(k * i / levels), for each candidate i: [candidates, levels + 1]
        edges = -(-np.arange(levels + 1)[None, :] * kept[:, None] // levels)
        sums, bins = np.diff(cumulative[edges], axis=1), np.diff(filled[edges], axis=1)
        # The tail fills the last bin of P, so it counts as non-empty even where no value fell into it.
        bins[:, -1] += (last == 0) & (tail > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.where(sums > 0, sums * np.log(sums / bins), 0.0).sum(axis=1)
            share = np.log(sums[:, -1] / bins[:, -1])
            cross = spread + np.where(tail > 0, tail * share, 0.0)
            entropy = plogp[kept] - _xlogx(last) + _xlogx(last + tail)
            divergences.append((entropy - cross) / total - np.log(total) + np.log(cumulative[kept]))
    every = np.concatenate(divergences)
    return np.where(np.isfinite(every), every, np.inf)


METHOD_AMAX: Mapping[MethodName, Callable[[Histogram, float, bool], float]] = {
    "minmax": lambda histogram, _, __: histogram.largest,
    "percentile": lambda histogram, percentile, _: amax_percentile(histogram, percentile),
    "entropy": lambda histogram, _, __: amax_entropy(histogram),
    "mse": lambda histogram, _, symmetric: amax_mse(histogram, symmetric=symmetric),
}
"""Name to the magnitude of a histogram that has values, by percentile and whether int8 is symmetric."""


_CHOSEN: dict[tuple[object, ...], float] = {}
"""What was chosen before, up to `_MOST_CHOSEN`: a search asks again and again for the same histograms."""
_MOST_CHOSEN = 100_000


def amax(histogram: Histogram, method: Method, *, symmetric: bool = True) -> float:
    """Return the clipping magnitude by a method: "mse" and "auto" mind whether int8 is symmetric."""
    if histogram.is_empty:
        raise CalibrationError(
            "no values were observed; a threshold needs at least one",
            hint="calibrate with samples in which the tensor is not empty",
        )
    content = blake2b(histogram.counts.tobytes(), digest_size=16).digest()
    key = (method, symmetric, histogram.exponent, histogram.min, histogram.max, content)
    if key not in _CHOSEN:
        if len(_CHOSEN) >= _MOST_CHOSEN:
            _CHOSEN.clear()
        if method.name == "auto":
            _CHOSEN[key] = amax_by_method(histogram, method.percentile, symmetric=symmetric)["auto"]
        else:
            _CHOSEN[key] = METHOD_AMAX[method.name](histogram, method.percentile, symmetric)
    return _CHOSEN[key]


def amax_by_method(
    histogram: Histogram, percentile: float = DEFAULT_PERCENTILE, *, symmetric: bool = True
) -> dict[str, float]:
    """Return the magnitude by each of `METHODS`.

    "auto" is the largest of the others whose squared error is near the least: `mse` has that by its
    definition. Where another method clips less and costs at most `AUTO_TOLERANCE` times as much, it is
    taken: calibration has seen a part of the values only, and what it has not seen is larger, not smaller.
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
