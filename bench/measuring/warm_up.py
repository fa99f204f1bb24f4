"""Warm up until the latency stops changing, instead of for a fixed count.

Block medians are watched. As long as Pettitt's test finds a point in the later half of them where the
level changes, the artifact is still warming up: caches fill, a compiler works in the background, clocks
rise. The test compares ranks, so bursts and skewed noise do not mislead it (Pettitt 1979, "A non-parametric
approach to the change-point problem", Applied Statistics 28, 126-135).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median

from ..results.row import WarmUp

LIMIT_S = 10.0
LEAST_S = 0.3
_BLOCK_S = 0.025
_WINDOW = 12  # with fewer blocks, the test cannot reach the significance below
_SIGNIFICANCE = 0.05


class TimedWarmUp(WarmUp, frozen=True):
    """A warm-up, and the latency of a call at its end in nanoseconds."""

    call_ns: float


def warm_up(
    time_calls: Callable[[int], Sequence[int]],
    *,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
) -> TimedWarmUp:
    """Call until the latency is stable.

    Args:
        time_calls: Makes so many calls and returns the nanoseconds of each.
        limit_s: Begin no further block after this.
        clock: Seconds that pass.
    """
    begin = clock()
    medians: list[float] = []
    calls, iterations = 0, 1
    while True:
        durations = time_calls(iterations)
        calls += len(durations)
        medians.append(median(durations))
        iterations = max(round(_BLOCK_S * 1e9 / max(min(medians[-_WINDOW:]), 1.0)), 1)
        spent = clock() - begin
        stable = spent >= LEAST_S and is_stable(medians)
        if stable or spent >= limit_s:
            return TimedWarmUp(calls, spent, stable, min(medians[-_WINDOW:]))


def is_stable(medians: Sequence[float]) -> bool:
    """Return whether the later half of block medians, at least 12 of them, shows no change of level."""
    window = medians[-max(_WINDOW, len(medians) // 2) :]
    return len(window) >= _WINDOW and change_significance(window) > _SIGNIFICANCE


def change_significance(values: Sequence[float]) -> float:
    """Return the significance of the likeliest change of level, in [0, 1]; small where there is one.

    Pettitt's approximation `2 exp(-6 K**2 / (n**3 + n**2))`, K the largest of the rank sums
    `sum of sign(x_i - x_j)` over all i up to t and j behind it.
    """
    n = len(values)
    rank_sum, largest = 0, 0
    for t in range(n):
        rank_sum += sum(int(values[t] > other) - int(values[t] < other) for other in values)
        largest = max(largest, abs(rank_sum))
    return min(2.0 * math.exp(-6.0 * largest**2 / (n**3 + n**2)), 1.0)
