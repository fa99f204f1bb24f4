"""Speed-ups that can be believed: pairs of rounds, verdicts, refusals."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.bench.statistics.speedup import (
    CONFIDENCE,
    SMALLEST_DIFFERENCE,
    half_width,
    level_of,
    speedup,
    verdict_of,
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
    half = half_width([level], CONFIDENCE)
    assert (found.low, found.high) == pytest.approx(
        (found.value / math.exp(half), found.value * math.exp(half))
    )
    assert (found.rounds, found.launches) == (8, 2)


def test_equal_artifacts_show_no_difference() -> None:
    noise = random.Random(0)
    verdicts = [speedup(launches(1.0, noise), launches(1.0, noise)).verdict for _ in range(200)]
    assert verdicts.count("no difference") >= 198


def test_a_twice_as_fast_artifact_is_faster_and_the_other_way_round_slower() -> None:
    noise = random.Random(1)
    base, fast = launches(2.0, noise), launches(1.0, noise)
    assert speedup(base, fast).verdict == "faster"
    assert speedup(fast, base).verdict == "slower"


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
    ("first", "second"), [([[1.0] * 7], [[1.0] * 7]), ([[1.0] * 20], [[1.0] * 4, [1.0] * 9])]
)
def test_too_few_rounds_in_common_are_refused(first: list[list[float]], second: list[list[float]]) -> None:
    with pytest.raises(InvalidOption, match="rounds in common; at least 8"):
        speedup(first, second)


def test_what_is_no_latency_is_refused() -> None:
    with pytest.raises(InvalidOption, match="a latency is 0 ms or less"):
        speedup([[1.0] * 8], [[1.0] * 7 + [0.0]])


def test_a_difference_must_be_sure_and_large_enough_to_matter() -> None:
    assert verdict_of(1.011, 1.2) == "faster"
    assert verdict_of(1.005, 1.2) == "no difference"
    assert verdict_of(0.9, 0.985) == "slower"
    assert verdict_of(0.9, 0.995) == "no difference"


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
