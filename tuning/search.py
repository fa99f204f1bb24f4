"""Search for the fewest layers to leave in float within the budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Keeps = Callable[[frozenset[str]], bool]


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
    if keeps_budget(frozenset()):
        return frozenset()
    low, high = 0, len(order)  # `low` layers in float do not keep it
    if not keeps_budget(frozenset(order)):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if keeps_budget(frozenset(order[:middle])):
            high = middle
        else:
            low = middle
    chosen = frozenset(order[:high])
    # The last one was needed, or one fewer would have kept the budget.
    for layer in list(reversed(order[: high - 1]))[:tries]:
        if keeps_budget(chosen - {layer}):
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
