"""Questions that are begun ahead change nothing: the search finds, and asks, what it does without them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.tuning.search import Mix, Possible, fewest_in_float, possible_questions, search_ahead, searching


class Budget:
    """A budget function of any kind, also one that more float harms; notes what it was asked, in order."""

    def __init__(self, seed: int, share: float, monotone: bool, layers: int) -> None:
        self.seed, self.share, self.monotone, self.layers = seed, share, monotone, layers
        self.asked: list[Mix] = []

    def __call__(self, mix: Mix) -> bool:
        self.asked.append(mix)
        if self.monotone:
            generator = random.Random(self.seed)
            damages = {f"l{i}": generator.random() for i in range(self.layers)}
            lost = sum(damage for name, damage in damages.items() if name not in mix)
            return lost <= self.share * sum(damages.values())
        return random.Random(f"{self.seed} {sorted(mix)}").random() < self.share


BUDGETS = st.builds(Budget, st.integers(0, 10_000), st.floats(0, 1), st.booleans(), layers=st.integers(0, 12))


@given(budget=BUDGETS, most=st.integers(1, 9), tries=st.integers(0, 8))
def test_a_search_ahead_finds_and_asks_what_the_sequential_one_does(
    budget: Budget, most: int, tries: int
) -> None:
    order = [f"l{i}" for i in range(budget.layers)]
    plain = fewest_in_float(order, budget, tries=tries)
    asked, budget.asked = budget.asked, []
    begun: list[list[Possible]] = []
    found = search_ahead(
        lambda: searching(order, tries=tries),
        budget,
        lambda possible: begun.append(list(possible)),
        lambda mix: True if len(mix) == len(order) else None,
        most,
    )
    assert found == plain
    assert budget.asked == asked
    for question, possible in zip(asked, begun, strict=True):
        assert len(possible) <= most
        assert len({one.mix for one in possible}) == len(possible)
        if len(question) < len(order):  # else its answer is known
            assert possible[0] == Possible(question, 0)


@given(budget=BUDGETS, most=st.integers(1, 6))
def test_a_question_that_comes_is_begun_before_it_is_asked(budget: Budget, most: int) -> None:
    """With room for both branches, every question but the first was begun while the one before it ran."""
    order = [f"l{i}" for i in range(budget.layers)]
    begun: list[set[Mix]] = []

    def begin(possible: Sequence[Possible]) -> None:
        begun.append({one.mix for one in possible})

    answers: dict[Mix, bool] = {}

    def keeps(mix: Mix) -> bool:
        answers[mix] = budget(mix)
        return answers[mix]

    search_ahead(lambda: searching(order), keeps, begin, answers.get, 2 + most)
    for before, question in zip(begun, budget.asked[1:], strict=False):
        assert question in before


def test_the_nearest_questions_of_both_branches_come_first() -> None:
    order = list("abcdefgh")

    def known(mix: Mix) -> bool | None:
        return True if len(mix) == len(order) else None

    possible = possible_questions(lambda: searching(order), [], known, 4)
    assert [(len(one.mix), one.after) for one in possible] == [(0, 0), (4, 1), (2, 2), (6, 2)]
    following = possible_questions(lambda: searching(order), [False, True, False], known, 3)
    assert [(sorted(one.mix)[-1], one.after) for one in following] == [("f", 0), ("e", 1), ("g", 1)]
    assert possible_questions(lambda: searching(order), [True], known, 3) == []


@pytest.mark.parametrize("most", [1, 5])
def test_what_the_maker_of_trials_raises_ends_the_search(most: int) -> None:
    def stopped(_: Mix) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search_ahead(lambda: searching("ab"), stopped, lambda _: None, lambda _: None, most)
