"""The largest rate of arrivals whose p99 stays below a bound: by doubling, then by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..results.under_load import ArrivalPoint, LargestRate
from .enough import TailVerdict, tail_verdict

RESOLUTION = 0.05
"""Rates closer together than this share are not told apart."""
_FIRST_SHARE = 1 / 4  # of what calls one after the other answer: where few wait
_HALVINGS = 2  # where fewer arrive than that, hardly one waits, and p99 does not fall
_DOUBLINGS = 8  # a server that takes several calls at once goes beyond what one after the other answers

_STEP, _STEPS = 1.25, 4  # from rates that are nearly right to those that are certain


def find_largest_rate(
    measure: Callable[[float], ArrivalPoint],
    closed_loop_per_s: float,
    p99_below_ms: float,
    *,
    resolution: float | None = None,
) -> LargestRate:
    """Search the rate.

    Args:
        measure: Measures a rate.
        closed_loop_per_s: Requests per second of one client that waits for each answer.
        p99_below_ms: The bound.
        resolution: End when the rates on both sides of the bound are closer than this; 5% by default.

    Returns:
        The rate, between the nearest rates of which it is certain.
    """
    search = _Search(measure, p99_below_ms)
    rate = closed_loop_per_s * _FIRST_SHARE
    if search.is_below(rate):
        for _ in range(_DOUBLINGS):
            rate *= 2.0
            if not search.is_below(rate):
                break
    else:
        for _ in range(_HALVINGS):
            rate /= 2.0
            if search.is_below(rate):
                break
    closest = 1.0 + (RESOLUTION if resolution is None else resolution)
    while search.below and search.above and search.above / search.below > closest:
        search.is_below(math.sqrt(search.below * search.above))
    search.make_certain()
    return search.result()


class _Search:
    def __init__(self, measure: Callable[[float], ArrivalPoint], bound_ms: float) -> None:
        self.measure, self.bound_ms = measure, bound_ms
        self.verdicts: dict[float, TailVerdict] = {}
        self.below = self.above = 0.0  # by the measured p99: the largest below the bound, the smallest above
        self.slowest_ms: float | None = None

    def is_below(self, rate: float) -> bool:
        point = self.measure(rate)
        self.verdicts[rate] = (
            tail_verdict(point.p99_low_ms, point.p99_high_ms, self.bound_ms) if point.keeps_up else "above"
        )
        below = point.p99_ms is not None and point.p99_ms < self.bound_ms
        if below:
            self.below = max(self.below, rate)
        else:
            self.above = min(self.above or rate, rate)
            self.slowest_ms = point.median_ms
        return below

    def make_certain(self) -> None:
        """Go on on both sides until a rate is certain that is nearer than those which are; a few steps."""
        if not (self.below and self.above):
            return
        below, above = self.below, self.above
        for step in range(1, _STEPS + 1):
            rate = below / _STEP**step
            if rate <= (self.sure_ends()[0] or 0.0) or self.verdicts.get(below) == "below":
                break
            self.is_below(rate)
        for step in range(1, _STEPS + 1):
            rate = above * _STEP**step
            if rate >= (self.sure_ends()[1] or math.inf) or self.verdicts.get(above) == "above":
                break
            self.is_below(rate)

    def sure_ends(self) -> tuple[float | None, float | None]:
        """Return the largest rate that is certainly below the bound and the smallest that is above it."""
        sure = [rate for rate, verdict in self.verdicts.items() if verdict == "below"]
        beyond = [rate for rate, verdict in self.verdicts.items() if verdict == "above"]
        low, high = max(sure, default=None), min(beyond, default=None)
        if low and high and low > high:  # p99 is noisy: neither is certain
            sure, beyond = [rate for rate in sure if rate < high], [rate for rate in beyond if rate > low]
            low, high = max(sure, default=None), min(beyond, default=None)
        return low, high

    def result(self) -> LargestRate:
        low, high = self.sure_ends()
        if self.below:
            return LargestRate(self.bound_ms, self.below, low, high)
        least = min(self.verdicts)
        told = "" if self.slowest_ms is None else f", and half of them took {self.slowest_ms:.3g} ms or more"
        reason = f"p99 is not below {self.bound_ms:g} ms at {least:.3g} requests per second{told}"
        return LargestRate(self.bound_ms, None, None, high, reason)
