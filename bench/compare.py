"""Speed-up with its doubt: the ratio of paired rounds, its interval, and what may be said of it.

In each round every artifact runs one block, so the ratio of two block medians is free of drift that hits
all alike. The median over rounds gets the distribution-free interval of order statistics: among `n`
independent ratios, `(r_(k), r_(n+1-k))` covers the median with probability `1 - 2 P(Bin(n, 1/2) < k)`
(Conover, Practical Nonparametric Statistics, 3rd ed., 3.2). Nothing is assumed about the noise.

Three things would make two runs of one file "different" too often, and each is met:

1. Rounds are not independent: a neighbour on the machine stays for seconds. The interval is stretched by
   the square root of the autocorrelation time of the signs on which it rests, estimated by Geyer's initial
   positive sequence (Practical Markov Chain Monte Carlo, Statistical Science 7, 1992).
2. Measuring ends when intervals are narrow, so it looks at them again and again. A verdict is held to 99%,
   while the interval that is shown and that ends the measuring is of 95%.
3. Two processes of one file can differ for as long as they live. A difference below `SMALLEST_DIFFERENCE`
   is not called one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidOption

CONFIDENCE = 0.95
VERDICT_CONFIDENCE = 0.99
SMALLEST_DIFFERENCE = 0.01
FEWEST_ROUNDS = 8  # with fewer, no pair of order statistics covers the median at 99%

Verdict = Literal["faster", "slower", "no difference"]


@dataclass(frozen=True)
class Speedup:
    """How many times faster than the baseline.

    Attributes:
        value: Median of the rounds' ratios (baseline time / artifact time).
        low, high: Interval of that median at `CONFIDENCE`.
        rounds: Number of rounds.
        sure_low, sure_high: Interval at `VERDICT_CONFIDENCE`.
        correlation_rounds: Autocorrelation time: 1 for independent rounds, 4 where four count as one.
    """

    value: float
    low: float
    high: float
    rounds: int
    sure_low: float
    sure_high: float
    correlation_rounds: float = 1.0

    @property
    def verdict(self) -> Verdict:
        """What may be said: a difference only where it is sure, and larger than two processes differ."""
        if self.sure_low > 1.0 + SMALLEST_DIFFERENCE:
            return "faster"
        return "slower" if self.sure_high < 1.0 / (1.0 + SMALLEST_DIFFERENCE) else "no difference"

    @property
    def width(self) -> float:
        """Width of the interval relative to the value: 0.02 is two percent."""
        return (self.high - self.low) / self.value


def speedup(baseline_ms: Sequence[float], artifact_ms: Sequence[float]) -> Speedup:
    """Compare paired block medians.

    Args:
        baseline_ms: One latency per round.
        artifact_ms: One latency per round, same rounds in the order they were measured.

    Raises:
        InvalidOption: If there are fewer than `FEWEST_ROUNDS` pairs, or they do not pair up.
    """
    if len(baseline_ms) != len(artifact_ms) or len(baseline_ms) < FEWEST_ROUNDS:
        raise InvalidOption(
            f"{len(baseline_ms)} and {len(artifact_ms)} rounds; at least {FEWEST_ROUNDS} pairs are required",
            hint="give more time: --max-time",
        )
    series = [a / b for a, b in zip(baseline_ms, artifact_ms, strict=True)]
    tau = correlation_time(series)
    ordered = sorted(series)
    low, high = _bounds(ordered, CONFIDENCE, tau)
    sure_low, sure_high = _bounds(ordered, VERDICT_CONFIDENCE, tau)
    return Speedup(median(ordered), low, high, len(ordered), sure_low, sure_high, tau)


def order_statistic(n: int, confidence: float = CONFIDENCE) -> int:
    """Return the largest `k` for which `(r_(k), r_(n+1-k))` covers the median; 1 where there is none."""
    k, below = 0, 0.0
    while True:
        below += math.comb(n, k) / 2.0**n
        if 2.0 * below > 1.0 - confidence:
            return max(k, 1)
        k += 1


def correlation_time(series: Sequence[float]) -> float:
    """Return how many rounds in a row count as one, at least 1: of the signs around the median.

    `1 + 2 (rho_1 + rho_2 + ...)`, summed in pairs while a pair is positive (Geyer 1992, 3.3).
    """
    middle, n = median(series), len(series)
    signs = [int(value > middle) - int(value < middle) for value in series]
    mean = sum(signs) / n
    centred = [sign - mean for sign in signs]
    variance = sum(value * value for value in centred)
    if variance == 0.0:
        return 1.0

    def rho(lag: int) -> float:
        return sum(a * b for a, b in zip(centred[lag:], centred, strict=False)) / variance

    total, lag = -1.0, 0
    while lag + 1 < n // 2:
        pair = rho(lag) + rho(lag + 1)
        if pair <= 0.0:
            break
        total += 2.0 * pair
        lag += 2
    return max(total, 1.0)


def median(values: Sequence[float]) -> float:
    """Return the median of sorted or unsorted values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile, `share` in (0, 1]: a value that was really measured."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def _bounds(ordered: Sequence[float], confidence: float, tau: float) -> tuple[float, float]:
    n = len(ordered)
    # The count below the median has tau times the variance that independent rounds give it.
    k = math.floor(n / 2 - (n / 2 - order_statistic(n, confidence)) * math.sqrt(tau))
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]
