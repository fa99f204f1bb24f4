"""Intervals that can be believed: exact coverage, verdicts, refusals."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.bench.compare import (
    FEWEST_ROUNDS,
    Speedup,
    correlation_time,
    median,
    order_statistic,
    percentile,
    speedup,
)
from qcompile.errors import InvalidOption


@pytest.mark.parametrize(("n", "confidence"), [(8, 0.95), (10, 0.95), (12, 0.95), (8, 0.99), (12, 0.99)])
def test_the_interval_covers_the_median_in_so_many_of_all_sign_patterns(n: int, confidence: float) -> None:
    """Brute force: each ratio is above or below the true median with probability one half."""
    k = order_statistic(n, confidence)

    def covered(order: int) -> float:
        inside = 0
        for pattern in itertools.product((0, 1), repeat=n):
            below = n - sum(pattern)
            inside += order <= below <= n - order
        return inside / 2**n

    assert covered(k) >= confidence
    assert covered(k + 1) < confidence


def test_with_fewer_rounds_there_would_be_no_interval_for_a_verdict() -> None:
    assert 2 / 2**FEWEST_ROUNDS <= 0.01 < 2 / 2 ** (FEWEST_ROUNDS - 1)


def test_the_speedup_of_known_ratios_is_their_median_with_order_statistics() -> None:
    ratios = [5.0, 2.0, 7.0, 1.0, 9.0, 3.0, 8.0, 4.0, 10.0, 6.0]
    ratio = speedup([10.0 * value for value in ratios], [10.0] * 10)
    assert ratio.correlation_rounds == 1.0
    assert (ratio.value, ratio.low, ratio.high, ratio.rounds) == (5.5, 2.0, 9.0, 10)
    assert (ratio.sure_low, ratio.sure_high) == (1.0, 10.0)


def test_equal_artifacts_show_no_difference() -> None:
    noise = random.Random(0)
    different = 0
    for _ in range(200):
        first = [1.0 + 0.05 * noise.random() for _ in range(15)]
        second = [1.0 + 0.05 * noise.random() for _ in range(15)]
        different += speedup(first, second).verdict != "no difference"
    assert different <= 4


def test_a_twice_as_fast_artifact_is_faster_and_the_other_way_round_slower() -> None:
    base = [2.0, 2.1, 1.9, 2.2, 2.0, 2.05, 1.95, 2.1]
    fast = [value / 2 for value in base]
    assert speedup(base, fast).verdict == "faster"
    assert speedup(fast, base).verdict == "slower"


def test_drift_that_hits_both_alike_does_not_widen_the_interval() -> None:
    drift = [1.0, 1.5, 3.0, 0.7, 2.0, 1.1, 0.9, 1.2]
    ratio = speedup([2 * d for d in drift], [1 * d for d in drift])
    assert ratio.low == ratio.high == 2.0


@pytest.mark.parametrize(("first", "second"), [([1.0] * 7, [1.0] * 7), ([1.0] * 8, [1.0] * 9)])
def test_too_few_or_unpaired_rounds_are_refused(first: list[float], second: list[float]) -> None:
    with pytest.raises(InvalidOption, match="rounds"):
        speedup(first, second)


def test_a_difference_must_be_sure_and_larger_than_two_processes_differ() -> None:
    def verdict(sure_low: float, sure_high: float) -> str:
        return Speedup(1.0, sure_low, sure_high, 20, sure_low, sure_high).verdict

    assert verdict(1.011, 1.2) == "faster"
    assert verdict(1.005, 1.2) == "no difference"
    assert verdict(0.9, 0.985) == "slower"
    assert verdict(0.9, 0.995) == "no difference"


def test_rounds_that_come_in_runs_count_as_fewer() -> None:
    noise = random.Random(5)
    independent = [noise.random() for _ in range(200)]
    in_fours = [value for value in independent[:50] for _ in range(4)]
    assert correlation_time(independent) < 1.6
    assert 2.5 < correlation_time(in_fours) < 6.0  # each four are one: (1 + 3/4 2 + 2/4 2 + 1/4 2) = 4
    assert correlation_time([1.0] * 20) == correlation_time([1.0, 2.0] * 20) == 1.0


def test_the_interval_covers_the_median_although_rounds_are_not_independent() -> None:
    """A first-order process of memory 0.7: without the correction a third of the intervals miss."""
    noise = random.Random(6)
    missed = 0
    for _ in range(200):
        level, base = noise.gauss(0.0, 1.0), []
        for _ in range(100):
            level = 0.7 * level + noise.gauss(0.0, 0.51**0.5)
            base.append(2.0 ** (level / 100))
        ratio = speedup(base, [1.0] * 100)
        missed += not ratio.low <= 1.0 <= ratio.high
    assert missed <= 24  # 5% of intervals that are exact; 12% of what can be estimated from 100 rounds


@given(st.lists(st.floats(0.1, 10.0), min_size=8, max_size=60))
def test_intervals_lie_in_each_other_around_the_value(ratios: list[float]) -> None:
    found = speedup(ratios, [1.0] * len(ratios))
    assert found.sure_low <= found.low <= found.value <= found.high <= found.sure_high
    assert min(ratios) <= found.sure_low
    assert found.sure_high <= max(ratios)
    assert 1.0 <= found.correlation_rounds <= len(ratios)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_percentile_is_a_value_that_was_measured(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5
