from __future__ import annotations

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from qcompile.data.batches import half_of, select
from qcompile.data.spelling import PARTS, Query

MANY = st.lists(st.text(max_size=6), unique=True, min_size=14, max_size=40)
NAMES = st.lists(st.text(max_size=6), unique=True, max_size=60)


@given(NAMES, st.integers(0, 5))
def test_the_halves_are_disjoint_and_complete(names: list[str], seed: int) -> None:
    first, second = (select(names, Query(part=part, seed=seed)) for part in PARTS)
    assert sorted(first + second) == list(range(len(names)))
    assert len(names) < 2 or (first and second)


@given(MANY, NAMES, st.integers(0, 5))
def test_a_sample_stays_in_its_half_when_others_are_added(
    names: list[str], more: list[str], seed: int
) -> None:
    together = sorted({*names, *more})
    for some in (names, together):  # dealt out in turn where a half would be empty
        assume(len({half_of(name, seed) for name in some}) == 2)
    for part in PARTS:
        before = {names[index] for index in select(names, Query(part=part, seed=seed))}
        after = {together[index] for index in select(together, Query(part=part, seed=seed))}
        assert before == after & set(names)


def test_the_halves_are_about_equally_large() -> None:
    names = [f"{index}.png" for index in range(10_000)]
    assert abs(len(select(names, Query(part="calibration"))) - 5000) < 200  # four standard deviations
    assert half_of("1.png", 0) in PARTS


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 50), st.integers(0, 5))
def test_a_draw_is_balanced_seeded_and_begins_like_a_smaller_one(
    classes: list[str], count: int, seed: int
) -> None:
    names = [f"{index}" for index in range(len(classes))]
    query = Query(samples=count, seed=seed)
    drawn = select(names, query, classes=lambda: classes)
    assert drawn == select(names, query, classes=lambda: classes)
    assert len(drawn) == len(set(drawn)) == min(count, len(names))
    there, taken = Counter(classes), Counter(classes[index] for index in drawn)
    most = max(taken.values(), default=0)
    assert all(taken[one] >= min(most - 1, there[one]) for one in there)
    assert (
        drawn[: count // 2]
        == select(names, query, limit=count // 2 or None, classes=lambda: classes)[: count // 2]
    )


def test_another_seed_draws_others_and_unbalanced_ignores_the_classes() -> None:
    names, classes = [str(index) for index in range(1000)], ["a"] * 990 + ["b"] * 10
    drawn = [select(names, Query(samples=20, seed=seed), classes=lambda: classes) for seed in (0, 1)]
    assert set(drawn[0]) != set(drawn[1])
    assert sum(index >= 990 for index in drawn[0]) == 10
    plain = select(names, Query(samples=20, balanced=False), classes=lambda: classes)
    assert sum(index >= 990 for index in plain) < 5
    assert select(names, Query()) == list(range(1000))
