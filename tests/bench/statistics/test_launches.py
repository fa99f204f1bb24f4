"""What launches and rounds say of a level: against scipy, by hand, and by how often intervals cover."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from qcompile.bench.statistics.speedup import (
    PRIOR_DEGREES,
    PRIOR_SPREAD,
    correlation_time,
    half_width,
    level_of,
    median,
    percentile,
    split_launches,
    student_quantile,
)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 13, 30, 101])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_students_quantiles_are_those_of_scipy(confidence: float, degrees: int) -> None:
    expected = stats.t.ppf(0.5 + confidence / 2.0, degrees)
    assert student_quantile(confidence, degrees) == pytest.approx(expected, rel=1e-9)


def test_a_level_by_hand() -> None:
    level = level_of([[1.0, 2.0, 6.0], [3.0, 5.0, 4.0], [8.0, 9.0, 7.0], [50.0]])  # the last was cut off
    assert level.mean == pytest.approx((2 + 4 + 8) / 3)
    assert level.squares == pytest.approx((2 - 14 / 3) ** 2 + (4 - 14 / 3) ** 2 + (8 - 14 / 3) ** 2)
    assert (level.launches, level.rounds) == (3, 9)
    # Distances from the own median: 1 0 4, 1 1 0, 0 1 1; their median is 1, and 6 of 9 are free.
    variance = (1.4826 * 1.0) ** 2 * 9 / 6
    assert level.within == pytest.approx(math.pi / 2 * variance * level.correlation_rounds / 3)


def test_only_a_last_launch_that_was_cut_short_is_left_out() -> None:
    """The first has few rounds where their noise was not known yet; it counts as any."""
    noise = random.Random(7)
    launches = [[noise.random() for _ in range(count)] for count in (6, 31, 30, 14)]
    assert level_of(launches).launches == 3
    assert level_of(launches[:2]).launches == 2
    rests = [value - median(launch) for launch in launches[:2] for value in launch]
    deviation = 1.4826 * median([abs(rest) for rest in rests])
    level = level_of(launches[:2])
    expected = math.pi / 2 * deviation**2 * 37 / 35 * level.correlation_rounds * (1 / 6 + 1 / 31) / 2
    assert level.within == pytest.approx(expected)


def test_the_interval_of_one_level_by_hand() -> None:
    launches = [[0.01, 0.01, 0.01], [0.03, 0.03, 0.03], [0.02, 0.02, 0.02]]
    freedom = PRIOR_DEGREES + 2
    variance = (PRIOR_DEGREES * PRIOR_SPREAD**2 + 0.0002) / freedom
    expected = stats.t.ppf(0.975, freedom) * math.sqrt(variance / 3)
    assert half_width([level_of(launches)], 0.95) == pytest.approx(expected)


def test_the_interval_of_a_difference_by_hand() -> None:
    old, new = [[0.0] * 4, [0.02] * 4], [[0.0] * 4, [0.01] * 4, [0.02] * 4]
    freedom = PRIOR_DEGREES + 1 + 2
    squares = 2 * 0.01**2 + 2 * 0.01**2
    variance = (PRIOR_DEGREES * PRIOR_SPREAD**2 / 2 + squares) / freedom
    expected = stats.t.ppf(0.995, freedom) * math.sqrt(variance * (1 / 2 + 1 / 3))
    assert half_width([level_of(old), level_of(new)], 0.99) == pytest.approx(expected)


def test_a_single_launch_is_as_doubtful_as_two_processes_of_one_file() -> None:
    """However many rounds it has: they all come from the same two processes."""
    noise = random.Random(0)
    widths = [
        half_width([level_of([[noise.gauss(0.0, 0.01) for _ in range(rounds)]])], 0.95)
        for rounds in (8, 100, 1000)
    ]
    least = stats.t.ppf(0.975, PRIOR_DEGREES) * PRIOR_SPREAD
    assert widths[0] > widths[1] > widths[2] > least
    assert widths[2] == pytest.approx(least, rel=0.01)


@pytest.mark.parametrize("process", [0.0, 0.002, 0.01, 0.03])
@pytest.mark.parametrize("launches", [2, 5, 12])
def test_intervals_cover_the_true_level(process: float, launches: int) -> None:
    """Launches that differ less than is assumed make it too wide; three times more, too narrow at first."""
    noise = random.Random(launches)
    missed = 0
    for _ in range(400):
        series = []
        for _ in range(launches):
            own = noise.gauss(0.0, process)
            series.append([own + noise.gauss(0.0, 0.014) for _ in range(4)])
        level = level_of(series)
        missed += abs(level.mean) > half_width([level], 0.95)
    allowed = 0.25 if process == 0.03 and launches == 2 else 0.12 if process == 0.03 else 0.07
    assert missed / 400 <= allowed


def test_these_intervals_would_not_cover_if_rounds_were_counted() -> None:
    """What makes the launches necessary: many rounds of one launch, taken for independent."""
    noise = random.Random(3)
    missed = 0
    for _ in range(400):
        own = noise.gauss(0.0, 0.01)
        rounds = [own + noise.gauss(0.0, 0.014) for _ in range(40)]
        interval = stats.t.ppf(0.975, 39) * np.std(rounds, ddof=1) / math.sqrt(40)
        missed += abs(np.mean(rounds)) > interval
    assert missed / 400 > 0.5


def test_rounds_that_come_in_runs_count_as_fewer() -> None:
    noise = random.Random(5)
    independent = [noise.random() for _ in range(200)]
    in_fours = [value for value in independent[:50] for _ in range(4)]
    assert correlation_time(independent) < 1.6
    assert 2.5 < correlation_time(in_fours) < 6.0  # each four are one: (1 + 3/4 2 + 2/4 2 + 1/4 2) = 4
    assert correlation_time([1.0] * 20) == correlation_time([1.0, 2.0] * 20) == 1.0


@given(st.lists(st.lists(st.integers(-64, 64), min_size=2, max_size=6), min_size=1, max_size=8))
def test_a_level_moves_with_its_values_and_its_doubt_does_not(values: list[list[int]]) -> None:
    launches = [[value / 64 for value in launch] for launch in values]  # what 1 can be added to exactly
    level, moved = level_of(launches), level_of([[value + 1.0 for value in launch] for launch in launches])
    assert moved.mean == pytest.approx(level.mean + 1.0)
    assert half_width([moved], 0.95) == pytest.approx(half_width([level], 0.95))
    assert half_width([level], 0.95) < half_width([level], 0.99)


@given(st.lists(st.lists(st.floats(0.1, 9.0), max_size=5), min_size=1, max_size=6))
def test_launches_are_split_as_they_were_joined(launches: list[list[float]]) -> None:
    flat = [value for launch in launches for value in launch]
    assert split_launches(flat, [len(launch) for launch in launches]) == launches
    assert split_launches([*flat, 1.0], [len(launch) for launch in launches]) == [[*flat, 1.0]]


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_percentile_is_a_value_that_was_measured(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5
