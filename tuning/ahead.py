"""What a search may ask next, so that it can be answered while the question before it still is.

        ∅ ── no ── all ── yes ── half ─┬─ yes ── a quarter ─ ...
                                       └─ no ─── three quarters ─ ...

Both branches are begun. Only the one that the answers lead to counts, so the search finds what it would find
with one question after the other, whatever the answers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .search import Keeps, Mix, Search

_WIDEST = 64
"""Branches that are followed at a time; many of them may ask the same."""


@dataclass(frozen=True)
class Possible:
    """A question that may come.

    Attributes:
        mix: What it asks of.
        after: Questions without an answer yet that come before it.
    """

    mix: Mix
    after: int


def possible_questions(
    make: Callable[[], Search], answers: Sequence[bool], known: Callable[[Mix], bool | None], most: int
) -> list[Possible]:
    """Return the questions without an answer that a search may ask next, the nearest first.

    Args:
        make: Begins the search anew.
        answers: Those that it was given.
        known: The answer of a mix; None where it is to be found out.
        most: How many are returned at most.
    """
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

    Args:
        make: Begins the search anew.
        keeps_budget: Answers a question, and waits for it where it was begun.
        begin: Begins to find these answers, and may give up those that it was told of before.
        known: As `possible_questions`.
        most: Questions that are begun at a time.
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
