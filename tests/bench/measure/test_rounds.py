"""Orders of rounds, warm-up, clients at once and inferences in flight, on calls of a known length."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.bench.measure.rounds import LIMIT_S, balanced_orders, change_significance, is_stable, warm_up
from qcompile.bench.worker import time_clients, time_in_flight
from qcompile.engines.base import InFlight, Runner
from qcompile.errors import InvalidOption, ModelError


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


class Sleeper:
    """A runner whose calls take 5 ms and can overlap, but for those that hold the lock."""

    def __init__(self, lock: threading.Lock | None = None) -> None:
        self.lock, self.calls = lock, 0

    def prepare(self, feeds: Any) -> Any:
        def call() -> None:
            self.calls += 1
            if self.lock is None:
                time.sleep(0.005)
                return
            with self.lock:
                time.sleep(0.005)

        return call


def test_calls_that_overlap_keep_their_latency_and_share_the_time() -> None:
    one = Sleeper()
    found, wall_ns = time_clients([one] * 4, {}, 0.2)
    assert one.calls == len(found) + 4  # each client once before the clock
    assert min(found) >= 5e6
    assert 0.2e9 <= wall_ns < 2e9
    assert sum(found) > 2.0 * wall_ns  # four at once


def test_calls_that_cannot_overlap_wait_for_each_other() -> None:
    found, wall_ns = time_clients([Sleeper(threading.Lock())] * 4, {}, 0.2)
    assert len(found) * 5e6 <= wall_ns  # one at a time
    # On average: a lock may be given to the same client again and again, while the others wait in one call.
    assert sum(found) / len(found) > 10e6


def test_a_call_longer_than_the_time_is_made_once_by_each_client() -> None:
    found, _ = time_clients([Sleeper()] * 2, {}, 0.0001)
    assert len(found) >= 2


def test_a_call_that_fails_is_the_callers_error() -> None:
    class Failing(Sleeper):
        def prepare(self, feeds: Any) -> Any:
            calls = iter([None, None])

            def call() -> None:
                try:
                    next(calls)
                except StopIteration:
                    raise RuntimeError("the second is too much") from None

            return call

    with pytest.raises(ModelError, match="1 clients: a call fails: the second is too much"):
        time_clients([Failing()], {}, 0.1)


class Device:
    """Works on all that was started at once, 4 ms each, and notes what happens in which order."""

    def __init__(self, count: int) -> None:
        self.done_at = [0.0] * count
        self.under_way: set[int] = set()
        self.most = 0
        self.finished: list[int] = []

    def inferences(self) -> Sequence[InFlight]:
        count = len(self.done_at)
        return [InFlight(partial(self.start, index), partial(self.wait, index)) for index in range(count)]

    def start(self, index: int) -> None:
        assert index not in self.under_way, "started twice"
        self.under_way.add(index)
        self.most = max(self.most, len(self.under_way))
        self.done_at[index] = time.perf_counter() + 0.004

    def wait(self, index: int) -> None:
        self.under_way.remove(index)
        self.finished.append(index)
        time.sleep(max(self.done_at[index] - time.perf_counter(), 0.0))


@pytest.mark.parametrize("count", [1, 3])
def test_all_are_kept_under_way_and_the_oldest_is_waited_for(count: int) -> None:
    device = Device(count)
    durations_ns, wall_ns = time_in_flight(device.inferences(), 0.05)
    assert device.most == count
    assert not device.under_way
    assert device.finished == [index % count for index in range(len(device.finished))]
    assert len(device.finished) == len(durations_ns) + 3 * count  # the warm-up does not count
    assert min(durations_ns) >= 4e6
    assert wall_ns >= 0.05e9
    if count > 1:
        assert sum(durations_ns) > wall_ns  # they overlap


def test_a_run_longer_than_the_time_counts_once() -> None:
    durations_ns, _ = time_in_flight(Device(2).inferences(), 0.0)
    assert len(durations_ns) == 2


def test_a_runtime_without_streams_says_so() -> None:
    class Plain(Runner):
        infer = prepare = close = None  # type: ignore[assignment]

    Plain.__abstractmethods__ = frozenset()
    with pytest.raises(InvalidOption, match="`streams`: this runtime runs one inference at a time"):
        Plain().in_flight({}, 2)  # type: ignore[abstract]
