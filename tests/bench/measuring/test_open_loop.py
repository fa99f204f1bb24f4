"""Requests that arrive at times of their own: the queue in virtual time, its theory, and real calls."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from virtual_queue import MS, Virtual

from qcompile.bench.measuring.open_loop import ServedArrivals, poisson_arrivals, serve_arrivals
from qcompile.errors import ModelError


def served(arrivals: Sequence[int] | NDArray[np.int64], services: Sequence[int]) -> ServedArrivals:
    clock = Virtual(services)
    return serve_arrivals([clock.call], np.array(arrivals, np.int64), clock=clock)


def test_who_comes_while_another_is_served_waits_from_its_arrival_on() -> None:
    found = served([10, 12, 13, 40], [5, 5, 5, 5])
    assert found.latencies.tolist() == [5, 8, 12, 5]  # by hand: ends at 15, 20, 25, 45
    assert found.services.tolist() == [5, 5, 5, 5]
    assert found.wall_ns == 45
    assert found.backlog == 1  # the third, when the second was begun
    assert not found.overloaded


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60)), min_size=1, max_size=60))
def test_every_request_is_answered_once_and_never_faster_than_its_call(work: list[tuple[int, int]]) -> None:
    arrivals = np.cumsum([gap for gap, _ in work])
    services = [length for _, length in work]
    found = served(arrivals, services)
    assert len(found.latencies) == len(work)
    assert found.services.tolist() == services
    assert (found.latencies >= found.services).all()
    events: list[int] = []  # the ends of all before, as Lindley's recursion has them
    for at, length in zip(arrivals.tolist(), services, strict=True):
        events.append(max(at, events[-1] if events else 0) + length)
    assert (found.latencies + arrivals).tolist() == events
    assert found.wall_ns == events[-1]


@pytest.mark.parametrize("scv", [0.0, 1.0], ids=["M/D/1", "M/M/1"])
def test_mean_waits_are_those_of_pollaczek_and_khinchine(scv: float) -> None:
    load, service, n = 0.6, 5.0 * MS, 120_000
    arrivals = poisson_arrivals(load / (service / 1e9), n, seed=7)
    lengths = np.full(n, service)
    if scv:
        lengths = np.random.default_rng(3).exponential(service, n)
    found = served(arrivals, lengths.astype(np.int64).tolist())
    waits = found.latencies - found.services
    expected = load * service * (1.0 + scv) / (2.0 * (1.0 - load))
    blocks = waits.reshape(40, -1).mean(axis=1)  # long against the queue's memory
    error = blocks.std(ddof=1) / math.sqrt(len(blocks))
    assert abs(waits.mean() - expected) < 4.0 * error
    assert error < 0.04 * expected  # so that the comparison means something


def test_percentiles_of_m_m_1_are_exponential() -> None:
    load, service, n = 0.5, 1.0 * MS, 120_000
    lengths = np.random.default_rng(5).exponential(service, n).astype(np.int64)
    found = served(poisson_arrivals(load / (service / 1e9), n, seed=11), lengths.tolist())
    for share in (0.5, 0.9, 0.99):
        exact = -math.log(1.0 - share) * service / (1.0 - load)
        assert np.quantile(found.latencies, share) == pytest.approx(exact, rel=0.06)


def test_gaps_of_arrivals_are_exponential_and_independent() -> None:
    from scipy.stats import kstest

    rate = 250.0
    gaps = np.diff(poisson_arrivals(rate, 5000), prepend=0) / 1e9
    assert kstest(gaps, "expon", args=(0.0, 1.0 / rate)).pvalue > 0.01
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 3.0 / math.sqrt(5000)


def test_one_seed_is_one_pattern_that_rates_stretch() -> None:
    slow, fast = poisson_arrivals(10.0, 50), poisson_arrivals(40.0, 50)
    assert (poisson_arrivals(10.0, 50) == slow).all()
    assert np.allclose(slow / fast, 4.0, rtol=1e-5)
    assert (poisson_arrivals(10.0, 50, seed=1) != slow).any()
    assert (poisson_arrivals(10.0, 20) == slow[:20]).all()


def test_more_than_can_be_served_ends_early_and_a_long_queue_that_shrinks_does_not() -> None:
    found = served(np.arange(5000) * 8, [10] * 5000)  # 10 of work every 8
    assert found.overloaded
    assert 400 <= len(found.latencies) <= 600  # one more waits with every 5 of them, until there are 100
    assert found.backlog == pytest.approx(100, abs=25)
    burst = served([0] * 300 + [10_000 + 40 * i for i in range(300)], [10] * 600)
    assert not burst.overloaded
    assert len(burst.latencies) == 600
    assert burst.backlog == 299


def test_it_ends_when_it_has_enough() -> None:
    clock = Virtual([1] * 100)
    seen: list[int] = []

    def has_enough(latencies: Sequence[int]) -> bool:
        seen.append(len(latencies))
        return len(latencies) == 7

    found = serve_arrivals([clock.call], np.arange(100) * 10, clock=clock, has_enough=has_enough)
    assert len(found.latencies) == 7
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def sleeping(seconds: float, most: list[int]) -> Callable[[], None]:
    lock, inside = threading.Lock(), 0

    def call() -> None:
        nonlocal inside
        with lock:
            inside += 1
            most.append(inside)
        time.sleep(seconds)
        with lock:
            inside -= 1

    return call


def test_real_calls_begin_at_their_arrivals_and_not_before() -> None:
    arrivals = poisson_arrivals(400.0, 60, seed=2)
    begins: list[int] = []

    def call() -> None:
        begins.append(time.perf_counter_ns())

    start = time.perf_counter_ns()
    found = serve_arrivals([call], arrivals)
    assert len(begins) == len(found.latencies) == 60
    assert (np.array(begins) >= start + arrivals).all()
    assert (found.latencies >= found.services).all()
    assert found.wall_ns >= arrivals[-1]


def test_several_servers_take_from_one_queue_in_the_order_of_arrivals() -> None:
    most: list[int] = []
    call = sleeping(0.02, most)
    arrivals = np.zeros(12, np.int64)
    found = serve_arrivals([call] * 4, arrivals)
    assert len(found.latencies) == 12
    assert max(most) == 4
    # Three turns of four: the last ones wait for two whole calls, and a sleep never ends early.
    exact = [0] * 4
    expected = sorted(heapq.heapreplace(exact, exact[0] + 20 * MS) + 20 * MS for _ in range(12))
    assert (np.sort(found.latencies) >= np.array(expected) - MS).all()
    assert found.wall_ns >= 59 * MS


def test_a_call_that_fails_is_the_callers_error() -> None:
    def call() -> None:
        raise RuntimeError("the cable is out")

    for servers in (1, 3):
        with pytest.raises(ModelError, match="open loop: a call fails: the cable is out"):
            serve_arrivals([call] * servers, np.zeros(5, np.int64))


def test_progress_is_told_every_five_seconds_or_so() -> None:
    clock = Virtual([1500 * MS] * 20)
    told: list[int] = []
    serve_arrivals([clock.call], np.arange(20), clock=clock, tell=told.append)
    assert told == [4, 8, 12, 16]
