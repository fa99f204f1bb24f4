"""Levels, speed-ups and paired intervals: against scipy, plain loops, by coverage, on simulated machines."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from bench_simulation import MACHINES, simulate
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats

from qcompile.bench.results.row import Row
from qcompile.bench.results.statistics import (
    CONFIDENCE,
    PRIOR_DEGREES,
    PRIOR_SPREAD,
    SMALLEST_DIFFERENCE,
    correlation_time,
    half_width,
    level_of,
    percentile,
    speedup,
    student_quantile,
)
from qcompile.errors import InvalidOption


def launches(
    level: float, noise: random.Random, *, count: int = 6, process: float = 0.005
) -> list[list[float]]:
    """Launches of four rounds: processes differ by `process`, rounds by a percent."""
    return [
        [level * math.exp(own + noise.gauss(0.0, 0.01)) for _ in range(4)]
        for own in (noise.gauss(0.0, process) for _ in range(count))
    ]


def test_the_speedup_is_the_level_of_the_rounds_ratios() -> None:
    base = [[10.0, 12.0, 11.0, 10.0], [9.0, 10.0, 11.0, 30.0]]
    own = [[5.0, 4.0, 5.0, 4.0], [3.0, 4.0, 5.0, 6.0]]
    ratios = [[2.0, 3.0, 2.2, 2.5], [3.0, 2.5, 2.2, 5.0]]
    level = level_of([[math.log(value) for value in launch] for launch in ratios])
    found = speedup(base, own)
    assert found.value == pytest.approx(math.sqrt(math.sqrt(2.2 * 2.5) * math.sqrt(2.5 * 3.0)))
    half = half_width(level, CONFIDENCE)
    assert (found.low, found.high) == pytest.approx(
        (found.value / math.exp(half), found.value * math.exp(half))
    )
    assert (found.rounds, found.launches) == (8, 2)


def test_drift_that_hits_both_alike_does_not_widen_the_interval() -> None:
    drift = [[1.0, 1.5, 3.0, 0.7], [2.0, 1.1, 0.9, 1.2]]
    ratio = speedup([[2 * d for d in launch] for launch in drift], drift)
    still = speedup([[2.0] * 4] * 2, [[1.0] * 4] * 2)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((still.low, 2.0, still.high))


def test_what_an_artifact_has_alone_at_the_end_does_not_count() -> None:
    """An interrupted round, or a launch that only one of the two has begun."""
    noise = random.Random(2)
    base, own = launches(2.0, noise), launches(1.0, noise)
    more = [*base[:-1], [*base[-1], 2.5], [7.0]]
    assert speedup(more, own) == speedup(base, own)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([[1.0] * 7], [[1.0] * 7], "rounds in common; at least 8"),
        ([[1.0] * 20], [[1.0] * 4, [1.0] * 9], "rounds in common; at least 8"),
        ([[1.0] * 8], [[1.0] * 7 + [0.0]], "a latency is 0 ms or less"),
    ],
)
def test_too_few_rounds_in_common_and_what_is_no_latency_are_refused(
    first: list[list[float]], second: list[list[float]], words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        speedup(first, second)


def test_the_verdict_follows_from_the_interval_that_is_shown() -> None:
    """`1.21x [1.07, 1.37] no difference` was printed: the verdict had an interval of its own."""
    noise = random.Random(5)
    verdicts = set()
    for level in [0.9 + 0.01 * step for step in range(21)]:
        for count in (1, 2, 6):
            found = speedup(launches(1.0, noise, count=count + 1), launches(level, noise, count=count + 1))
            sure = found.low > 1.0 + SMALLEST_DIFFERENCE or found.high < 1.0 / (1.0 + SMALLEST_DIFFERENCE)
            assert (found.verdict != "no difference") == sure
            verdicts.add(found.verdict)
    assert verdicts == {"faster", "slower", "no difference"}


@given(st.lists(st.lists(st.floats(0.1, 10.0), min_size=4, max_size=8), min_size=2, max_size=8))
def test_intervals_lie_in_each_other_and_turn_round(ratios: list[list[float]]) -> None:
    ones = [[1.0] * len(launch) for launch in ratios]
    found, back = speedup(ratios, ones), speedup(ones, ratios)
    assert found.low < found.value < found.high
    assert back.value == pytest.approx(1.0 / found.value)
    assert (back.low, back.high) == pytest.approx((1.0 / found.high, 1.0 / found.low))
    assert found.correlation_rounds >= 1.0


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


def test_the_interval_of_a_level_by_hand() -> None:
    launches = [[0.0] * 4, [0.01] * 4, [0.02] * 4]
    freedom = PRIOR_DEGREES + 2
    variance = (PRIOR_DEGREES * PRIOR_SPREAD**2 + 2 * 0.01**2) / freedom
    expected = stats.t.ppf(0.995, freedom) * math.sqrt(variance / 3)
    assert half_width(level_of(launches), 0.99) == pytest.approx(expected)


def test_a_single_launch_is_as_doubtful_as_two_processes_of_one_file() -> None:
    """However many rounds it has: they all come from the same two processes."""
    noise = random.Random(0)
    widths = [
        half_width(level_of([[noise.gauss(0.0, 0.01) for _ in range(rounds)]]), 0.95)
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
        missed += abs(level.mean) > half_width(level, 0.95)
    allowed = 0.25 if process == 0.03 and launches == 2 else 0.12 if process == 0.03 else 0.07
    assert missed / 400 <= allowed


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
    assert half_width(moved, 0.95) == pytest.approx(half_width(level, 0.95))
    assert half_width(level, 0.95) < half_width(level, 0.99)


@given(st.lists(st.lists(st.floats(0.1, 9.0), max_size=5), min_size=1, max_size=6))
def test_launches_are_split_as_they_were_joined(launches: list[list[float]]) -> None:
    flat, counts = tuple(value for launch in launches for value in launch), tuple(map(len, launches))
    row = Row("net", "net.onnx", "onnxruntime", round_medians_ms=flat, launch_rounds=counts)
    assert row.launches_ms == [tuple(launch) for launch in launches]
    assert replace(row, round_medians_ms=(*flat, 1.0)).launches_ms == [(*flat, 1.0)]


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_percentile_is_a_value_that_was_measured(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


CALL_S = 0.06
BENCHES = 40


def verdicts(name: str, slower: float, *, seed: int) -> list[str]:
    """The verdict of each of many benches, each with launches of its own."""
    call_s = {"a": CALL_S, "b": CALL_S * (1.0 + slower)}
    runs = [
        simulate(
            MACHINES[name], 1000 * seed + number, call_s, launch_s=0.5, max_time_s=60.0, precision_target=0.01
        )[0]
        for number in range(BENCHES)
    ]
    return [speedup(launches["a"], launches["b"]).verdict for launches in runs]


@pytest.mark.parametrize("name", MACHINES)
def test_two_runs_of_one_file_are_rarely_called_different(name: str) -> None:
    found = verdicts(name, 0.0, seed=1)
    assert found.count("no difference") >= BENCHES * 0.95, found


@pytest.mark.parametrize(
    ("name", "slower"),
    [("quiet", 0.03), ("noisy", 0.03), ("a neighbour stays for seconds", 0.03), ("as measured", 0.03),
     ("crowded", 0.15), ("processes differ much", 0.05)],
)  # fmt: skip
def test_what_is_slower_is_called_slower_and_on_bad_machines_what_is_much_slower(
    name: str, slower: float
) -> None:
    found = verdicts(name, slower, seed=2)
    assert found.count("slower") >= 0.9 * BENCHES, found
    assert "faster" not in found
