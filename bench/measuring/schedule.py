"""The order of artifacts in rounds: each follows each other one equally often.

A block can feel what ran before it: caches, clocks, heat. The rows of a Williams square (Williams 1949,
"Experimental designs balanced for the estimation of residual effects of treatments") are orders in which
every artifact has every place once and follows every other one once; an odd number of artifacts needs the
square and its mirror image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, cycle
from typing import TypeVar

T = TypeVar("T")


def balanced_orders(items: Sequence[T]) -> list[list[T]]:
    """Return the orders of one balanced cycle: `n` of `n` items, or `2 n` for odd `n`."""
    n = len(items)
    first = _zigzag(n)
    rows = [[items[(place + shift) % n] for place in first] for shift in range(n)]
    return rows + [row[::-1] for row in rows] if n % 2 and n > 1 else rows


def rounds(items: Sequence[T]) -> Iterator[list[T]]:
    """Yield the orders of round after round, without end."""
    return chain.from_iterable(cycle([balanced_orders(items)]))


def _zigzag(n: int) -> list[int]:
    """0, n-1, 1, n-2, ...: the steps between neighbours are all different."""
    low, high, order = 0, n - 1, []
    while low <= high:
        order.append(low)
        if low != high:
            order.append(high)
        low, high = low + 1, high - 1
    return order
