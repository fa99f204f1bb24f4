"""Search for the fewest layers to leave in float within the budget.

The search is a generator of questions, so that it can be replayed with other answers. What it may ask next
can be answered while the question before it still is (`search_ahead`):

        ∅ ── no ── all ── yes ── half ─┬─ yes ── a quarter ─ ...
                                       └─ no ─── three quarters ─ ...

Both branches are begun. Only the one that the answers lead to counts, so the search finds what it would find
with one question after the other, whatever the answers are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

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
    return search_ahead(lambda: searching(order, tries=tries), keeps_budget, list, lambda _: None, 0)


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

    They are in order of latency. Of equal points the first stays.
    """
    chosen: list[int] = []
    best = float("-inf")
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        if points[index][1] > best:
            best = points[index][1]
            chosen.append(index)
    return chosen


_WIDEST = 64
"""Branches that are followed at a time; many of them may ask the same."""


@dataclass(frozen=True)
class Possible:
    """A question that may come, and how many without an answer yet come before it."""

    mix: Mix
    after: int


def possible_questions(
    make: Callable[[], Search], answers: Sequence[bool], known: Callable[[Mix], bool | None], most: int
) -> list[Possible]:
    """Return the questions without an answer that a search may ask next, the nearest first."""
    found: dict[Mix, Possible] = {}
    level: list[tuple[list[bool], int]] = [(list(answers), 0)]
    while level and len(found) < most:
        following: list[tuple[list[bool], int]] = []
        for path, after in level:
            mix = _question(make(), path)
            if mix is None:
                continue
            answer = known(mix)
            if answer is not None:
                following.append(([*path, answer], after))
                continue
            found.setdefault(mix, Possible(mix, after))
            following += [([*path, guess], after + 1) for guess in (True, False)]
        level = following[:_WIDEST]
    return list(found.values())[:most]


def search_ahead(
    make: Callable[[], Search],
    keeps_budget: Keeps,
    begin: Callable[[Sequence[Possible]], object],
    known: Callable[[Mix], bool | None],
    most: int,
) -> Mix | None:
    """Return what a search finds, whose next possible questions are begun before each is answered.

    `begin` may give up those that it was told of before; `keeps_budget` waits for what was begun.
    """
    search, answers = make(), list[bool]()
    try:
        mix = next(search)
        while True:
            begin(possible_questions(make, answers, known, most))
            answers.append(keeps_budget(mix))
            mix = search.send(answers[-1])
    except StopIteration as found:
        result: Mix | None = found.value
        return result


def _question(search: Search, answers: Sequence[bool]) -> Mix | None:
    """What a search asks after these answers; None where it is over."""
    try:
        mix = next(search)
        for answer in answers:
            mix = search.send(answer)
    except StopIteration:
        return None
    return mix
