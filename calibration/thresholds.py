"""Choose the clipping magnitude (amax) of a tensor from its histogram.

Each method returns amax in the tensor's units; the scale follows as `amax / 127` for symmetric int8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import CalibrationError, InvalidOption
from ..spec.words import METHODS, MethodName
from .histogram import Histogram
from .quantization_error import amax_mse, squared_errors

DEFAULT_PERCENTILE = 99.99

MOST_CLIPPED = 0.1
"""Largest share of the values that the entropy method may clip."""

_AT_ONCE = 64  # candidates whose levels are looked up at a time: their tables stay in the cache

AUTO_TOLERANCE = 1.02
"""`auto` takes the method that clips least among those within 2% of the least squared error."""


@dataclass(frozen=True)
class Method:
    """How thresholds are chosen.

    Attributes:
        name: One of `METHODS`.
        percentile: For "percentile", and for "auto", which tries it: above 0, at most 100.
    """

    name: MethodName = "auto"
    percentile: float = DEFAULT_PERCENTILE

    def __str__(self) -> str:
        """The spelling that `parse_method` reads."""
        return f"percentile:{self.percentile!r}" if self.name == "percentile" else self.name


def parse_method(text: str) -> Method:
    """Read a method's spelling: `minmax`, `entropy`, `mse`, `auto`, `percentile`, `percentile:99.9`.

    Raises:
        InvalidOption: If it is none of these.
    """
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


def amax(histogram: Histogram, method: Method, *, symmetric: bool = True) -> float:
    """Return the clipping magnitude by a method.

    Args:
        histogram: Counts of one tensor.
        method: From `parse_method`.
        symmetric: Whether the target quantizes to symmetric int8 or to asymmetric uint8
            (`quantization_error`): "mse" and "auto" mind it.

    Raises:
        CalibrationError: If the histogram is empty.
        InvalidOption: If the method is unknown.
    """
    _require_values(histogram)
    if method.name == "minmax":
        return amax_minmax(histogram)
    if method.name == "percentile":
        return amax_percentile(histogram, method.percentile)
    if method.name == "entropy":
        return amax_entropy(histogram)
    if method.name == "mse":
        return amax_mse(histogram, symmetric=symmetric)
    if method.name == "auto":
        return amax_auto(histogram, method.percentile, symmetric=symmetric)
    raise InvalidOption(f"method {method.name!r} is unknown; known are {', '.join(METHODS)}")


def amax_auto(histogram: Histogram, percentile: float = DEFAULT_PERCENTILE, *, symmetric: bool) -> float:
    """Return the largest of the other methods' magnitudes whose squared error is near the least of all.

    `mse` has the least by its definition. Where another method clips less and costs at most
    `AUTO_TOLERANCE` times as much, it is taken: calibration has seen a part of the values only, and what it
    has not seen is larger, not smaller.

    Raises:
        CalibrationError: If the histogram is empty.
    """
    return amax_by_method(histogram, percentile, symmetric=symmetric)["auto"]


def amax_by_method(
    histogram: Histogram, percentile: float = DEFAULT_PERCENTILE, *, symmetric: bool = True
) -> dict[str, float]:
    """Return the magnitude by each of `METHODS`.

    Raises:
        CalibrationError: If the histogram is empty.
    """
    single = [Method(name, percentile) for name in METHODS if name != "auto"]
    by_method: dict[str, float] = {one.name: amax(histogram, one, symmetric=symmetric) for one in single}
    magnitudes = np.array(list(by_method.values()))
    if magnitudes.all():
        errors = squared_errors(histogram, magnitudes / histogram.width, symmetric=symmetric)
        magnitudes = magnitudes[errors <= errors.min() * AUTO_TOLERANCE]
    return {**by_method, "auto": float(magnitudes.max())}


def amax_minmax(histogram: Histogram) -> float:
    """Return the largest magnitude seen, exactly.

    Raises:
        CalibrationError: If the histogram is empty.
    """
    _require_values(histogram)
    return histogram.largest


def amax_percentile(histogram: Histogram, percentile: float = DEFAULT_PERCENTILE) -> float:
    """Return the magnitude that `percentile` percent of the values do not exceed.

    Within one bin of `numpy.percentile(abs(values), percentile)`, at most the largest magnitude.

    Raises:
        InvalidOption: If the percentile is outside (0, 100].
        CalibrationError: If the histogram is empty.
    """
    if not 0.0 < percentile <= 100.0:
        raise InvalidOption(f"percentile {percentile}: a number above 0 and at most 100 is required")
    largest = amax_minmax(histogram)
    cumulative = np.cumsum(histogram.magnitudes())
    # numpy's default interpolates between the order statistics around rank p * (n - 1).
    rank = percentile / 100.0 * (int(cumulative[-1]) - 1)
    below = int(np.searchsorted(cumulative, math.floor(rank), side="right"))
    above = int(np.searchsorted(cumulative, math.ceil(rank), side="right"))
    index = below + (above - below) * (rank - math.floor(rank))
    return min((index + 1) * histogram.width, largest)


def amax_entropy(histogram: Histogram, *, num_bits: int = 8) -> float:
    """Return the clipping magnitude that loses least information.

    Minimizes KL(P‖Q) over every candidate of `i` bins, `2**(num_bits-1) <= i <= bins`: P is the clipped
    distribution with its tail folded into the last bin; Q is P without the tail, quantized to
    `2**(num_bits-1)` levels (bin `j` belongs to level `j * levels // i`) and spread evenly over the bins
    of each level that are not empty in P (Migacz, GTC 2017, "8-bit inference with TensorRT"). A
    candidate for which Q is zero where P is not has infinite divergence, and one that would clip more than
    `MOST_CLIPPED` of the values is left out: a distribution that begins far from zero would otherwise be
    represented best by its first bin, alone with all of the tail. As TensorRT does, the count of
    the bin at zero is replaced by its neighbour's: the spike that a ReLU leaves at zero is represented
    exactly at any scale and must not decide.

    Args:
        histogram: Counts of one tensor.
        num_bits: Width of the signed integer, 2 to 8.

    Returns:
        amax in the tensor's units, at most the largest magnitude seen.

    Raises:
        CalibrationError: If the histogram is empty.
    """
    largest = amax_minmax(histogram)
    counts = histogram.magnitudes().astype(np.float64)
    counts[0] = counts[1]
    levels = 1 << (num_bits - 1)
    used = np.flatnonzero(counts)
    if not used.size or used[-1] < levels:
        return largest
    kept = np.cumsum(counts)
    fewest = int(np.searchsorted(kept, (1.0 - MOST_CLIPPED) * kept[-1])) + 1
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

    Args:
        counts: float64 [bins], of magnitudes.
        candidates: int64, each the number of bins kept, `levels` to bins.
        levels: Number of quantized levels.
    """
    prefixes = _prefix(counts), _prefix((counts > 0).astype(np.float64)), _prefix(_xlogx(counts))
    parts = [
        _divergences_at_once(counts, prefixes, candidates[start : start + _AT_ONCE], levels)
        for start in range(0, len(candidates), _AT_ONCE)
    ]
    return np.concatenate(parts)


def _divergences_at_once(
    counts: NDArray[np.float64],
    prefixes: tuple[NDArray[np.float64], ...],
    candidates: NDArray[np.int64],
    levels: int,
) -> NDArray[np.float64]:
    total = counts.sum()
    kept, filled, plogp = prefixes
    tail = total - kept[candidates]
    last = counts[candidates - 1]
    # The first bin of level k, ceil(k * i / levels), for every candidate i: int64 [candidates, levels + 1]
    edges = -(-np.arange(levels + 1)[None, :] * candidates[:, None] // levels)
    sums = np.diff(kept[edges], axis=1)
    bins = np.diff(filled[edges], axis=1)
    # The tail fills the last bin of P, so it counts as non-empty even where no value fell into it.
    bins[:, -1] += (last == 0) & (tail > 0)

    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.where(sums > 0, sums * np.log(sums / bins), 0.0).sum(axis=1)
        share = np.log(sums[:, -1] / bins[:, -1])
        cross = spread + np.where(tail > 0, tail * share, 0.0)
        own = plogp[candidates] - _xlogx(last) + _xlogx(last + tail)
        divergence = (own - cross) / total - np.log(total) + np.log(kept[candidates])
    return np.where(np.isfinite(divergence), divergence, np.inf)


def _require_values(histogram: Histogram) -> None:
    if histogram.is_empty:
        raise CalibrationError(
            "no values were observed; a threshold needs at least one",
            hint="calibrate with samples in which the tensor is not empty",
        )


def _prefix(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(values)])


def _xlogx(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values > 0, values * np.log(values), 0.0)
