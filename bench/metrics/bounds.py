"""Confidence intervals of a drop in accuracy, from the evaluated samples to all samples.

Baseline and artifact answer the same samples, so every interval is paired. Each end misses with probability
`(1 - DROP_CONFIDENCE) / 2`, divided by the number of candidates judged on these samples (Bonferroni), since
the best of several candidates looks better than it is.

1. Right or wrong answers, ten samples or more: the score interval of Tango (Equivalence test and confidence
   interval for the difference in proportions for the paired-sample design, Statistics in Medicine 17, 1998).
   If no answer changed, its upper end is `z^2 / (n + z^2)`.
2. Right or wrong answers, fewer than ten samples: the exact bounds of Clopper and Pearson (Biometrika 26,
   1934) on the share of lost answers, and on that of gained ones.
3. Every other metric: the percentiles of a paired bootstrap (Efron and Tibshirani, An Introduction to the
   Bootstrap, 1993, chapter 13), with one additional sample of weight Beta(1, n). This is the interval of
   Gaffke (Mathematical Methods of Statistics 14, 2005; Learned-Miller and Thomas, arXiv 1905.06208, 2019)
   with resampled weights. If fewer than `FEWEST_UNITS` samples differ, the additional sample loses 100
   points; for right or wrong answers without any change this equals the bound of Clopper and Pearson.
   Otherwise it loses as much as the worst sample.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..results.statistics import DROP_CONFIDENCE

RESAMPLES = 2000
FEWEST_UNITS = 10
"""With fewer samples, or fewer differing ones, a resample does not represent other samples."""

_SEED = 20260721
_CHUNK = 1 << 16  # numbers drawn at once, which fit a cache
_FEWEST_BEYOND = 10  # resamples required beyond a percentile

Interval = tuple[float, float]


def tail_of(candidates: int) -> float:
    """Return the probability that one end of an interval misses, if one of `candidates` is chosen."""
    return (1.0 - DROP_CONFIDENCE) / 2.0 / max(candidates, 1)


def right_or_wrong_interval(lost: float, gained: float, samples: float, tail: float) -> Interval:
    """Return the interval of the share of lost minus gained samples.

    Args:
        lost: Samples that the baseline answers rightly and the artifact wrongly.
        gained: Samples that the artifact answers rightly and the baseline wrongly.
        samples: All samples, at least 1.
        tail: Probability that an end misses.
    """
    if samples < FEWEST_UNITS:
        return (
            -clopper_pearson(round(gained), round(samples), tail)[1],
            clopper_pearson(round(lost), round(samples), tail)[1],
        )
    return -_tango_bound(gained, lost, samples, tail), _tango_bound(lost, gained, samples, tail)


def _tango_bound(lost: float, gained: float, samples: float, tail: float) -> float:
    """Return the largest drop that the score test of Tango does not reject."""
    z = NormalDist().inv_cdf(1.0 - tail)
    low, high = (lost - gained) / samples, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if _tango_statistic(lost, gained, samples, middle) >= -z:
            low = middle
        else:
            high = middle
    return high


def _tango_statistic(lost: float, gained: float, samples: float, drop: float) -> float:
    """Return Tango's statistic of a true drop, at the likeliest share of gained answers under that drop."""
    a = 2.0 * samples
    b = (a - lost + gained) * drop - lost - gained
    c = -gained * drop * (1.0 - drop)
    share_gained = (math.sqrt(max(b * b - 4.0 * a * c, 0.0)) - b) / (2.0 * a)
    variance = samples * (2.0 * share_gained + drop * (1.0 - drop))
    excess = lost - gained - samples * drop
    if variance <= 0.0:
        return math.copysign(math.inf, excess) if excess else 0.0
    return excess / math.sqrt(variance)


def clopper_pearson(successes: int, trials: int, tail: float) -> Interval:
    """Return the exact interval of a share. At each end, the observed number of successes or a more extreme
    one has the probability `tail`."""

    def bound(count: int) -> float:
        """Return the share at which at most `count` successes have the probability `tail`."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2.0
            low, high = (middle, high) if _binomial_cdf(count, trials, middle) > tail else (low, middle)
        return high

    low = 0.0 if successes == 0 else 1.0 - bound(trials - successes)
    return low, 1.0 if successes == trials else bound(successes)


def _binomial_cdf(count: int, trials: int, share: float) -> float:
    """Return the probability of at most `count` successes."""
    terms = _log_binomials(trials)[: count + 1] + (
        np.arange(count + 1) * math.log(share) + (trials - np.arange(count + 1)) * math.log1p(-share)
    )
    return float(np.exp(terms).sum())


@functools.lru_cache(maxsize=4)
def _log_binomials(trials: int) -> NDArray[np.float64]:
    """Return the logarithms of the binomial coefficients of `trials`."""
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    return np.asarray(factorials[-1] - factorials - factorials[::-1])


def fewest_samples(max_drop: float, candidates: int = 1) -> int:
    """Return the number of samples that proves a budget if no answer changes.

    Args:
        max_drop: The budget as a share; half a point is 0.005.
        candidates: Number of artifacts judged on the samples.

    Raises:
        DataError: If the budget is 0, which no number of samples proves.
    """
    if max_drop <= 0.0:
        raise DataError(
            "a drop of 0 cannot be proven by any number of samples; a budget above 0 is required",
            hint="allow a small drop, such as 0.1 points",
        )
    return samples_that_prove(0, 0, 1, max_drop, candidates) or 0


def samples_that_prove(
    lost: int, gained: int, samples: int, max_drop: float, candidates: int = 1
) -> int | None:
    """Return the number of samples that proves a budget at the same rate of changed answers, or None."""
    tail = tail_of(candidates)

    def proves(count: int) -> bool:
        scale = count / samples
        return right_or_wrong_interval(lost * scale, gained * scale, count, tail)[1] <= max_drop

    if (lost - gained) / samples >= max_drop:
        return None
    high = FEWEST_UNITS
    while not proves(high):
        high *= 2
        if high > 1 << 40:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if proves(middle) else (middle, high)
    return high


def resampled_interval(
    units: int,
    drop: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    tail: float,
    added: Interval | None,
    count: int = RESAMPLES,
) -> Interval | None:
    """Return the interval of a drop by the paired bootstrap; its draws depend only on the number of units.

    Args:
        units: Number of samples, or of batches if a value exists only per batch.
        drop: Maps draws per unit, [resamples, units], to drops [resamples], which may be NaN.
        tail: Probability that an end misses.
        added: Drop of the additional sample, for the low and for the high end; None adds no sample.
        count: Number of resamples.

    Returns:
        The ends; None if no resample has a value.
    """
    drops = np.concatenate([drop(weights) for weights in resamples(units, count)])
    share = np.random.default_rng(_SEED + 1).beta(1.0, units, size=len(drops))
    valid = ~np.isnan(drops)
    drops, share = drops[valid], share[valid]
    if not drops.size:
        return None
    middle = float(drop(np.ones((1, units)))[0])
    low, high = added if added is not None else (0.0, 0.0)
    share = share if added is not None else np.zeros_like(share)
    return (
        -_upper_percentile(-(drops + share * (low - drops)), tail, -middle),
        _upper_percentile(drops + share * (high - drops), tail, middle),
    )


def _upper_percentile(drops: NDArray[np.float64], tail: float, middle: float) -> float:
    """Return the value with a share of `tail` above it.

    If too few resamples lie above it, extrapolate a less extreme percentile by the normal distribution.
    """
    inner_tail = max(tail, min(_FEWEST_BEYOND / len(drops), 0.5 * (1.0 - DROP_CONFIDENCE)))
    end = float(np.quantile(drops, 1.0 - inner_tail))
    return middle + (end - middle) * NormalDist().inv_cdf(1.0 - tail) / NormalDist().inv_cdf(1.0 - inner_tail)


def require_pairs(baseline: int, artifact: int) -> None:
    if artifact != baseline:
        raise DataError(f"{artifact} values, {baseline} of the baseline; equal numbers are required")


def resamples(units: int, count: int) -> Iterator[NDArray[np.float64]]:
    """Yield the number of draws of each unit, [rows, units], `count` rows in total."""
    generator = np.random.default_rng(_SEED)
    rows = max(1, _CHUNK // units)
    for start in range(0, count, rows):
        chunk = min(rows, count - start)
        drawn = generator.integers(0, units, size=(chunk, units))
        drawn += np.arange(chunk)[:, None] * units  # a separate range of numbers for each row
        yield np.bincount(drawn.ravel(), minlength=chunk * units).reshape(chunk, units).astype(np.float64)
