"""Warm-up ends when the latency has stopped changing, on latencies that are known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.bench.measuring.warm_up import LIMIT_S, change_significance, is_stable, warm_up


class Artifact:
    """Calls whose latency is a function of the seconds since the start; time passes only in calls."""

    def __init__(self, latency_ns: Callable[[float], float]) -> None:
        self.latency_ns, self.now_s = latency_ns, 0.0

    def time_calls(self, iterations: int) -> Sequence[int]:
        found = []
        for _ in range(iterations):
            found.append(round(self.latency_ns(self.now_s)))
            self.now_s += found[-1] / 1e9
        return found

    def clock(self) -> float:
        return self.now_s


def noisy(level: float, noise: random.Random) -> float:
    """Skewed, as latencies are."""
    return level * (1.0 + 0.02 * noise.random() + 0.3 * (noise.random() < 0.05))


def test_a_steady_artifact_is_warm_soon() -> None:
    noise = random.Random(0)
    seconds = []
    for _ in range(50):
        one = Artifact(lambda _: noisy(1e6, noise))
        found = warm_up(one.time_calls, clock=one.clock)
        assert found.stable
        assert found.calls * 1e-3 == pytest.approx(found.seconds, rel=0.2)
        seconds.append(found.seconds)
    assert sorted(seconds)[25] < 0.5
    assert max(seconds) < LIMIT_S / 2


@pytest.mark.parametrize("change_s", [0.15, 0.28, 1.5])
def test_a_change_of_level_that_is_seen_is_waited_out(change_s: float) -> None:
    """A compiler that works in the background: 20% slower until it is done, with a first hump behind it."""
    noise = random.Random(1)
    one = Artifact(lambda now: noisy(1.2e6 - 2e5 * min(now / change_s, 1.0), noise))
    found = warm_up(one.time_calls, clock=one.clock)
    assert found.stable
    assert found.seconds > change_s
    assert found.call_ns < 1.05e6


def test_what_never_settles_is_given_up_and_said() -> None:
    one = Artifact(lambda now: 1e6 * (1.0 + now))
    found = warm_up(one.time_calls, limit_s=2.0, clock=one.clock)
    assert not found.stable
    assert 2.0 <= found.seconds < 2.3


def test_calls_longer_than_the_limit_are_not_called_stable() -> None:
    one = Artifact(lambda _: 4e9)
    found = warm_up(one.time_calls, clock=one.clock)
    assert (found.calls, found.stable) == (3, False)


def test_the_significance_is_that_of_pettitts_definition() -> None:
    def by_definition(values: Sequence[float]) -> int:
        return max(
            abs(sum((a > b) - (a < b) for a, b in product(values[:t], values[t:])))
            for t in range(1, len(values) + 1)
        )

    noise = random.Random(2)
    for n in (12, 17, 30):
        values = [noise.random() + (i > n // 3) for i in range(n)]
        import math

        expected = 2.0 * math.exp(-6.0 * by_definition(values) ** 2 / (n**3 + n**2))
        assert change_significance(values) == pytest.approx(min(expected, 1.0))


def test_of_steady_blocks_few_are_called_changing() -> None:
    noise = random.Random(3)
    wrong = sum(not is_stable([noise.gauss(1.0, 0.1) for _ in range(12)]) for _ in range(1000))
    assert wrong < 60  # 5% by the test's level; Pettitt's approximation is on the safe side


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40), st.floats(0.5, 2.0))
def test_the_significance_is_a_probability_and_knows_no_unit(values: list[float], unit: float) -> None:
    found = change_significance(values)
    assert 0.0 <= found <= 1.0
    exact = [value * 2.0 ** round(unit) for value in values]
    assert change_significance(exact) == found
