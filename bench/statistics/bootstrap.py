"""Confidence interval of an accuracy drop: the paired bootstrap over samples.

Baseline and artifact answered the same samples, so a resample draws samples, with replacement, and takes
both answers to each: what makes a sample hard for both cancels out. The interval is that of the drop's
percentiles over the resamples (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13).

It knows only what the samples show. Where no answer changed in `n` samples the interval is [0, 0], and yet
up to about `3 / n` of all samples may change (Hanley and Lippman-Hand, JAMA 249, 1983: the rule of three).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError

CONFIDENCE = 0.95
RESAMPLES = 2000
FEWEST_UNITS = 10  # of fewer, a resample is hardly another data set

_SEED = 20260721
_CHUNK = 1 << 16  # numbers drawn at once: what a cache holds


def resampled_interval(
    units: int,
    drop: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    confidence: float = CONFIDENCE,
    count: int = RESAMPLES,
) -> tuple[float, float] | None:
    """Return the interval of a drop.

    The draws depend on the number of units alone, so equal data has equal intervals.

    Args:
        units: How many there are.
        drop: How often each unit was drawn, [resamples, units], to the drops [resamples]; NaN where a
            resample has no value, which is then left out.
        confidence: Share of data sets whose interval is to hold the true drop.
        count: Number of resamples.

    Returns:
        Its ends; None of fewer than `FEWEST_UNITS` units, or where no resample has a value.
    """
    if units < FEWEST_UNITS:
        return None
    drops = np.concatenate([drop(weights) for weights in resamples(units, count)])
    drops = drops[~np.isnan(drops)]
    if not drops.size:
        return None
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(drops, [tail, 1.0 - tail])
    return float(low), float(high)


def require_pairs(baseline: int, artifact: int) -> None:
    """Refuse units that do not pair up."""
    if artifact != baseline:
        raise DataError(f"{artifact} values against {baseline} of the baseline; as many are required")


def resamples(units: int, count: int) -> Iterator[NDArray[np.float64]]:
    """Yield how often each unit was drawn, [some, units], until there are `count` rows."""
    generator = np.random.default_rng(_SEED)
    rows = max(1, _CHUNK // units)
    for start in range(0, count, rows):
        some = min(rows, count - start)
        drawn = generator.integers(0, units, size=(some, units))
        drawn += np.arange(some)[:, None] * units  # a range of numbers of its own for each row
        yield np.bincount(drawn.ravel(), minlength=some * units).reshape(some, units).astype(np.float64)
