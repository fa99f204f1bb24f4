"""When a rate has been measured long enough: p99 is on one side of the bound, or cannot get below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from ..statistics.tail import P99, tail_interval

FEWEST = 600
"""Requests of which p99 is told at all: it is the seventh slowest."""

TailVerdict = Literal["below", "above", "undecided"]

_HOPELESS_SIGMAS = 10.0


def tail_verdict(low: float | None, high: float | None, bound: float) -> TailVerdict:
    """Return on which side of a bound the whole interval lies."""
    if high is not None and high < bound:
        return "below"
    return "above" if low is not None and low >= bound else "undecided"


def looks_at(bound_ns: int, most: int) -> Callable[[Sequence[int]], bool]:
    """Return what tells of latencies so far whether more of them are needed.

    It looks at 600, 1200, 2400, ... of them whether the interval of p99 lies on one side of the bound, seldom
    because each look may be deceived. Before that it ends where so many were slower than the bound that p99
    of all of them would be.

    Args:
        bound_ns: What p99 is compared with.
        most: How many there will be.
    """
    share = most * (1.0 - P99)
    hopeless = share + _HOPELESS_SIGMAS * math.sqrt(share)
    slow = 0

    def has_enough(latencies: Sequence[int]) -> bool:
        nonlocal slow
        slow += latencies[-1] >= bound_ns
        if slow > hopeless:
            return True
        n = len(latencies)
        if n < FEWEST or n % FEWEST or (n // FEWEST) & (n // FEWEST - 1):
            return False
        return tail_verdict(*tail_interval(np.array(latencies)), bound_ns) != "undecided"

    return has_enough
