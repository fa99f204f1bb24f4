"""How sure a drop is: the paired bootstrap over samples.

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

Statistics = NDArray[np.float64]


def paired_interval(
    baseline: Statistics,
    artifact: Statistics,
    drop: Callable[[Statistics, Statistics], NDArray[np.float64]],
    *,
    confidence: float = CONFIDENCE,
    count: int = RESAMPLES,
) -> tuple[float, float] | None:
    """Return the interval of a drop; None of fewer than `FEWEST_UNITS` units.

    The draws depend on the number of units alone, so equal data has equal intervals.

    Args:
        baseline: Statistics of the baseline, [units, ...].
        artifact: Of the artifact for the same units; the other axes may differ.
        drop: Summed statistics [resamples, ...] of both, to the drops [resamples]; NaN where a resample
            has no value, which is then left out.
        confidence: Share of data sets whose interval is to hold the true drop.
        count: Number of resamples.

    Raises:
        DataError: If the units do not pair up.
    """
    units = len(baseline)
    if len(artifact) != units:
        raise DataError(f"{len(artifact)} values against {units} of the baseline; as many are required")
    if units < FEWEST_UNITS:
        return None
    if np.array_equal(baseline, artifact):
        return 0.0, 0.0
    drops = np.concatenate(
        [drop(_sums(weights, baseline), _sums(weights, artifact)) for weights in resamples(units, count)]
    )
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(drops[~np.isnan(drops)], [tail, 1.0 - tail])
    return float(low), float(high)


def resamples(units: int, count: int) -> Iterator[NDArray[np.float64]]:
    """Yield how often each unit was drawn, [some, units], until there are `count` rows."""
    generator = np.random.default_rng(_SEED)
    rows = max(1, _CHUNK // units)
    for start in range(0, count, rows):
        some = min(rows, count - start)
        drawn = generator.integers(0, units, size=(some, units))
        drawn += np.arange(some)[:, None] * units  # a range of numbers of its own for each row
        yield np.bincount(drawn.ravel(), minlength=some * units).reshape(some, units).astype(np.float64)


def _sums(weights: NDArray[np.float64], statistics: Statistics) -> Statistics:
    flat = statistics.reshape(len(statistics), -1)
    return (weights @ flat).reshape(len(weights), *statistics.shape[1:])
