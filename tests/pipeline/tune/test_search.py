"""The search for the fewest layers in float, and the front."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.pipeline.tune.tune import fewest_in_float, pareto

Mix = frozenset[str]

DAMAGES = st.lists(st.integers(0, 50), min_size=1, max_size=8)


class Budget:
    """Keeps the budget while the damage of what is quantized adds up to no more; notes what it was asked."""

    def __init__(self, damages: list[int], most: int) -> None:
        self.damages = {f"layer{i}": value for i, value in enumerate(damages)}
        self.most, self.asked = most, list[Mix]()

    @property
    def order(self) -> list[str]:
        return sorted(self.damages, key=lambda name: -self.damages[name])

    def __call__(self, in_float: Mix) -> bool:
        self.asked.append(in_float)
        return sum(v for name, v in self.damages.items() if name not in in_float) <= self.most


class Whim(Budget):
    """Any answer, always the same to the same question: more float may harm."""

    def __call__(self, in_float: Mix) -> bool:
        self.asked.append(in_float)
        return random.Random(f"{self.most} {sorted(in_float)}").random() < 0.4


@given(damages=DAMAGES, most=st.integers(0, 200))
def test_no_smaller_mix_keeps_the_budget(damages: list[int], most: int) -> None:
    budget = Budget(damages, most)
    found = fewest_in_float(budget.order, budget)
    least = next(
        size
        for size in range(len(damages) + 1)
        if any(budget(frozenset(mix)) for mix in combinations(budget.order, size))
    )
    assert found is not None
    assert budget(found)
    assert len(found) == least


@given(needed=st.sets(st.integers(0, 9)), order=st.permutations([f"layer{i}" for i in range(10)]))
def test_layers_that_a_wrong_order_took_along_are_put_back(needed: set[int], order: list[str]) -> None:
    names = {f"layer{i}" for i in needed}
    found = fewest_in_float(order, lambda in_float: names <= in_float, tries=10)
    assert found == names  # whatever the order: the budget is monotone


@given(seed=st.integers(0, 10_000), size=st.integers(1, 6))
def test_what_is_returned_keeps_the_budget_even_where_more_float_harms(seed: int, size: int) -> None:
    keeps = Whim([1] * size, seed)
    found = fewest_in_float(keeps.order, keeps)
    if keeps(frozenset()):
        assert found == frozenset()
    elif not keeps(frozenset(keeps.order)):
        assert found is None
    else:
        assert found is not None
        assert keeps(found)


def test_none_where_not_even_float_keeps_the_budget() -> None:
    assert fewest_in_float(["a", "b"], lambda _: False) is None
    assert fewest_in_float([], lambda _: False) is None
    assert fewest_in_float([], lambda _: True) == frozenset()


def test_it_halves_and_asks_little() -> None:
    budget = Budget([100] * 5 + [1] * 995, 995)
    found = fewest_in_float(budget.order, budget, tries=3)
    assert found == set(budget.order[:5])
    assert len(budget.asked) <= 2 + 10 + 3  # none, all, log2(1000), put back
    assert len(set(budget.asked)) == len(budget.asked)


@pytest.mark.parametrize("tries", [0, 2])
def test_no_more_layers_are_tried_to_be_put_back_than_asked_for(tries: int) -> None:
    # Only the last is needed; those before it came along.
    found = fewest_in_float(list("abcdef"), lambda in_float: "f" in in_float, tries=tries)
    assert found == set("abcdef") - set("edcba"[:tries])


def beaten(points: list[tuple[float, float]], index: int) -> bool:
    """Whether another is as good in both and better in one, or is equal and comes first."""
    latency, value = points[index]
    return any(
        (other[0] <= latency and other[1] >= value) and (other != points[index] or position < index)
        for position, other in enumerate(points)
        if position != index
    )


@given(st.lists(st.tuples(st.integers(1, 6).map(float), st.integers(-3, 3).map(float)), max_size=14))
def test_the_front_is_what_no_other_beats(points: list[tuple[float, float]]) -> None:
    expected = [index for index in range(len(points)) if not beaten(points, index)]
    found = pareto(points)
    assert sorted(found) == expected
    assert [points[i][0] for i in found] == sorted(points[i][0] for i in found)
