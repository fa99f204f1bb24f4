"""Search for the fewest layers to leave in float within the budget.

The search is a generator of questions, so that it can be replayed with other answers: `ahead` finds what it
may ask next.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

Mix = frozenset[str]
"""Layers that stay in float."""
Keeps = Callable[[Mix], bool]
Search = Generator[Mix, bool, Mix | None]


def fewest_in_float(order: Sequence[str], keeps_budget: Keeps, *, tries: int = 8) -> frozenset[str] | None:
    """Return the layers to leave in float, or None if even all of them do not keep the budget.

    Halves the number of layers taken from the front of `order` until the least is found that keeps the
    budget; then puts back, one by one, those that turn out not to be needed.

    Args:
        order: Layers, those to leave in float first at the front.
        keeps_budget: Whether a mix keeps it, by measuring it. That more layers in float never harm is
            taken for granted while halving, and not while putting back.
        tries: How many layers may be tried to be put back, from the least damaging on.
    """
    return answered(searching(order, tries=tries), keeps_budget)


def answered(search: Search, keeps_budget: Keeps) -> Mix | None:
    """Return what a search finds with these answers."""
    try:
        mix = next(search)
        while True:
            mix = search.send(keeps_budget(mix))
    except StopIteration as found:
        result: Mix | None = found.value
        return result


def searching(order: Sequence[str], *, tries: int = 8) -> Search:
    """Yield the mixes that `fewest_in_float` asks of, and return what it finds."""
    if (yield frozenset()):
        return frozenset()
    low, high = 0, len(order)  # `low` layers in float do not keep it
    if not (yield frozenset(order)):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if (yield frozenset(order[:middle])):
            high = middle
        else:
            low = middle
    chosen = frozenset(order[:high])
    # The last one was needed, or one fewer would have kept the budget.
    for layer in list(reversed(order[: high - 1]))[:tries]:
        if (yield chosen - {layer}):
            chosen -= {layer}
    return chosen


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return indices of the points that no other beats in both latency (less) and quality (more).

    Args:
        points: (latency_ms, quality) pairs.

    Returns:
        Indices, by growing latency. Of equal points the first stays.
    """
    chosen: list[int] = []
    best = float("-inf")
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        if points[index][1] > best:
            best = points[index][1]
            chosen.append(index)
    return chosen
