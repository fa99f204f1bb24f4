"""A percentile of latencies that wait in one queue, and its interval.

Between which two of `n` independent values the true percentile lies is told by the binomial distribution, of
whatever kind the values are (David and Nagaraja, Order Statistics, 2003, 7.1). Requests in a queue are not
independent: those that arrive in one burst wait together. They count as `n / tau` independent ones, `tau`
the autocorrelation time of "slower than the percentile".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.99
P99 = 0.99


def tail_interval(
    latencies: NDArray[np.int64], share: float = P99, confidence: float = CONFIDENCE
) -> tuple[float | None, float | None]:
    """Return the ends of the interval of a percentile, in the unit of the latencies.

    Args:
        latencies: In the order of their requests, [n].
        share: Which percentile, in (0, 1).
        confidence: Share of intervals that cover the true percentile.

    Returns:
        Both are latencies that were measured. An end is None where there are too few values for it: the
        upper one of p99 needs 528 independent ones at 99%.
    """
    n = len(latencies)
    if n == 0:
        return None, None
    ordered = np.sort(latencies)
    middle = ordered[max(math.ceil(share * n) - 1, 0)]
    tau = correlation_time(latencies > middle)
    counted = max(int(n / tau), 1)
    below, above = _ranks(counted, share, (1.0 - confidence) / 2.0)
    scale = n / counted
    low = None if below < 1 else float(ordered[max(math.floor(below * scale) - 1, 0)])
    high = None if above > counted else float(ordered[min(math.ceil(above * scale), n) - 1])
    return low, high


def correlation_time(marked: NDArray[np.bool_]) -> float:
    """Return how many values in a row count as one, at least 1: of marks that are set or not.

    `1 + 2 (rho_1 + rho_2 + ...)`, summed in pairs while a pair is positive (Geyer, Practical Markov Chain
    Monte Carlo, Statistical Science 7, 1992, 3.3).
    """
    n = len(marked)
    centred = marked - marked.mean() if n else np.zeros(0)
    variance = float(centred @ centred)
    if variance == 0.0:
        return 1.0
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    rho = np.fft.irfft(spectrum * spectrum.conj(), size)[: n // 2] / variance
    total = 1.0
    for lag in range(1, len(rho) - 1, 2):
        pair = float(rho[lag] + rho[lag + 1])
        if pair <= 0.0:
            break
        total += 2.0 * pair
    return max(total, 1.0)


def _ranks(n: int, share: float, outside: float) -> tuple[int, int]:
    """The ranks, from 1, of the values that the percentile lies between; 0 and n + 1 where there are none.

    `below` is the largest rank whose value is above the percentile with a probability of at most `outside`,
    `above` the smallest one whose value is below it with at most that probability.
    """
    counts = np.arange(1, n + 1)
    steps = np.log((n - counts + 1) / counts * (share / (1.0 - share)))
    logs = n * math.log1p(-share) + np.concatenate(([0.0], np.cumsum(steps)))
    at_most = np.cumsum(np.exp(logs))  # P(B <= k): k values at most are below the percentile
    below = int(np.searchsorted(at_most, outside, side="right"))  # P(B <= below - 1) <= outside
    above = int(np.searchsorted(at_most, 1.0 - outside, side="left")) + 1  # P(B >= above) <= outside
    return below, above
