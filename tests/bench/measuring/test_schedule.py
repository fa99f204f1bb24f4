"""Orders in which nobody has an advantage, counted by hand."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import pytest

from qcompile.bench.measuring.rounds import balanced_orders, rounds


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 10])
def test_each_artifact_has_each_place_and_follows_each_other_equally_often(n: int) -> None:
    orders = balanced_orders(list(range(n)))
    assert all(sorted(order) == list(range(n)) for order in orders)
    places = Counter((place, item) for order in orders for place, item in enumerate(order))
    follows = Counter(pair for order in orders for pair in pairwise(order))
    assert len(set(places.values())) == 1
    assert len(places) == n * n
    assert len(follows) == n * (n - 1)
    assert len(set(follows.values())) <= 1


def test_rounds_go_on_without_end() -> None:
    assert list(islice(rounds("ab"), 4)) == [["a", "b"], ["b", "a"]] * 2
