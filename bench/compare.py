"""Speed-up with its doubt: the ratio of paired rounds, its interval, and what may be said of it.

In each round every artifact runs one block, so the ratio of two block medians is free of drift that hits
all alike. The median over rounds gets the distribution-free interval of order statistics: among `n`
independent ratios, `(r_(k), r_(n+1-k))` covers the median with probability `1 - 2 P(Bin(n, 1/2) < k)`
(Conover, Practical Nonparametric Statistics, 3rd ed., 3.2). Nothing is assumed about the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidOption

CONFIDENCE = 0.95
FEWEST_ROUNDS = 6  # with fewer, no pair of order statistics covers the median at 95%

Verdict = Literal["faster", "slower", "no difference"]


@dataclass(frozen=True)
class Speedup:
    """How many times faster than the baseline.

    Attributes:
        value: Median of the rounds' ratios (baseline time / artifact time).
        low, high: Interval of that median at `CONFIDENCE`.
        rounds: Number of rounds.
    """

    value: float
    low: float
    high: float
    rounds: int

    @property
    def verdict(self) -> Verdict:
        """What the interval allows to say."""
        if self.low > 1.0:
            return "faster"
        return "slower" if self.high < 1.0 else "no difference"

    @property
    def width(self) -> float:
        """Width of the interval relative to the value: 0.02 is two percent."""
        return (self.high - self.low) / self.value


def speedup(baseline_ms: Sequence[float], artifact_ms: Sequence[float]) -> Speedup:
    """Compare paired block medians.

    Args:
        baseline_ms: One latency per round.
        artifact_ms: One latency per round, same rounds.

    Raises:
        InvalidOption: If there are fewer than `FEWEST_ROUNDS` pairs, or they do not pair up.
    """
    if len(baseline_ms) != len(artifact_ms) or len(baseline_ms) < FEWEST_ROUNDS:
        raise InvalidOption(
            f"{len(baseline_ms)} and {len(artifact_ms)} rounds; at least {FEWEST_ROUNDS} pairs are required",
            hint="give more time: --max-time",
        )
    ratios = sorted(a / b for a, b in zip(baseline_ms, artifact_ms, strict=True))
    k = order_statistic(len(ratios))
    return Speedup(median(ratios), ratios[k - 1], ratios[len(ratios) - k], len(ratios))


def order_statistic(n: int) -> int:
    """Return the largest `k >= 1` for which `(r_(k), r_(n+1-k))` covers the median at `CONFIDENCE`."""
    k, below = 0, 0.0
    while True:
        below += math.comb(n, k) / 2.0**n
        if 2.0 * below > 1.0 - CONFIDENCE:
            return max(k, 1)
        k += 1


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
