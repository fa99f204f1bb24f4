"""Intervals that can be believed: exact coverage, verdicts, refusals."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.bench.compare import median, order_statistic, percentile, speedup
from qcompile.errors import InvalidOption


@pytest.mark.parametrize("n", [6, 7, 8, 10, 12])
def test_the_interval_covers_the_median_in_95_percent_of_all_sign_patterns(n: int) -> None:
    """Brute force: each ratio is above or below the true median with probability one half."""
    k = order_statistic(n)

    def covered(order: int) -> float:
        inside = 0
        for pattern in itertools.product((0, 1), repeat=n):
            below = n - sum(pattern)
            inside += order <= below <= n - order
        return inside / 2**n

    assert covered(k) >= 0.95
    assert covered(k + 1) < 0.95


def test_the_speedup_of_known_ratios_is_their_median_with_order_statistics() -> None:
    ratio = speedup([10.0, 20.0, 30.0, 40.0, 50.0, 60.0], [10.0] * 6)
    assert (ratio.value, ratio.low, ratio.high, ratio.rounds) == (3.5, 1.0, 6.0, 6)


def test_equal_artifacts_show_no_difference() -> None:
    noise = random.Random(0)
    different = 0
    for _ in range(200):
        first = [1.0 + 0.05 * noise.random() for _ in range(15)]
        second = [1.0 + 0.05 * noise.random() for _ in range(15)]
        different += speedup(first, second).verdict != "no difference"
    assert different <= 20  # 5% are expected; 10% would be a broken interval


def test_a_twice_as_fast_artifact_is_faster_and_the_other_way_round_slower() -> None:
    base = [2.0, 2.1, 1.9, 2.2, 2.0, 2.05, 1.95]
    fast = [value / 2 for value in base]
    assert speedup(base, fast).verdict == "faster"
    assert speedup(fast, base).verdict == "slower"


def test_drift_that_hits_both_alike_does_not_widen_the_interval() -> None:
    drift = [1.0, 1.5, 3.0, 0.7, 2.0, 1.1, 0.9]
    ratio = speedup([2 * d for d in drift], [1 * d for d in drift])
    assert ratio.low == ratio.high == 2.0


@pytest.mark.parametrize(("first", "second"), [([1.0] * 5, [1.0] * 5), ([1.0] * 6, [1.0] * 7)])
def test_too_few_or_unpaired_rounds_are_refused(first: list[float], second: list[float]) -> None:
    with pytest.raises(InvalidOption, match="rounds"):
        speedup(first, second)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_percentile_is_a_value_that_was_measured(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5
