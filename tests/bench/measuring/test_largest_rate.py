"""The largest rate with p99 below a bound, on queues whose p99 is known, and when a rate is clear."""

from __future__ import annotations

import math

import numpy as np
import pytest
from virtual_queue import MS, Virtual

from qcompile.bench.measuring.enough import looks_at, tail_verdict
from qcompile.bench.measuring.largest_rate import find_largest_rate
from qcompile.bench.measuring.open_loop import poisson_arrivals, serve_arrivals
from qcompile.bench.measuring.under_load import arrival_point, requests_at
from qcompile.bench.results.under_load import ArrivalPoint


def p99_of_m_m_1(rate: float, service_ms: float = 5.0) -> float:
    return math.log(100.0) / (1e3 / service_ms - rate) * 1e3


def exact(rate: float) -> ArrivalPoint:
    """M/M/1 with calls of 5 ms on average, its p99 known to 10%."""
    if rate >= 200.0:
        return ArrivalPoint(rate, 190.0, 500, keeps_up=False)
    p99 = p99_of_m_m_1(rate)
    return ArrivalPoint(rate, rate, 5000, p99 / 6.6, p99 / 2, p99, p99 * 0.9, p99 * 1.1)


def test_it_is_the_rate_of_the_formula_between_rates_that_are_certain() -> None:
    for bound in (30.0, 60.0, 200.0):
        found = find_largest_rate(exact, 200.0, bound, resolution=0.01)
        truth = 200.0 - math.log(100.0) / bound * 1e3
        assert found.per_s is not None
        assert truth / 1.01 <= found.per_s <= truth
        assert found.low_per_s is not None
        assert found.high_per_s is not None
        assert p99_of_m_m_1(found.low_per_s) * 1.1 < bound
        assert found.low_per_s < truth < found.high_per_s
        assert found.high_per_s >= 200.0 or p99_of_m_m_1(found.high_per_s) * 0.9 >= bound


def test_a_rate_far_from_what_calls_in_turn_promise_is_found_too() -> None:
    for promised in (20.0, 60.0, 800.0):
        found = find_largest_rate(exact, promised, 60.0)
        assert found.per_s == pytest.approx(200.0 - math.log(100.0) / 60.0 * 1e3, rel=0.06)


def test_a_bound_below_the_calls_themselves_has_no_rate() -> None:
    asked: list[float] = []

    def measure(rate: float) -> ArrivalPoint:
        asked.append(rate)
        return exact(rate)

    found = find_largest_rate(measure, 200.0, 20.0)
    assert found.per_s is None
    assert found.low_per_s is None
    assert found.high_per_s == min(asked) == 12.5
    assert found.reason.startswith("p99 is not below 20 ms at 12.5 requests per second, and half of them")


def test_what_never_gets_slower_ends() -> None:
    found = find_largest_rate(
        lambda rate: ArrivalPoint(rate, rate, 600, 1.0, 1.0, 1.0, 1.0, 1.0), 100.0, 50.0
    )
    assert found.per_s == 25.0 * 2**8
    assert found.high_per_s is None


def test_a_simulated_runner_is_found_to_keep_the_bound() -> None:
    """M/D/1, calls of 5 ms: searched on 4000 requests, checked on 200,000 others."""

    def latencies(rate: float, count: int, seed: int) -> tuple[ArrivalPoint, np.ndarray]:  # type: ignore[type-arg]
        clock = Virtual([5 * MS] * count)
        served = serve_arrivals([clock.call], poisson_arrivals(rate, count, seed=seed), clock=clock)
        point = arrival_point(
            rate, served.latencies.tolist(), served.services.tolist(), served.wall_ns,
            backlog=served.backlog, overloaded=served.overloaded,
        )  # fmt: skip
        return point, served.latencies

    found = find_largest_rate(lambda rate: latencies(rate, 4000, 1)[0], 200.0, 25.0)
    assert found.per_s is not None
    assert found.low_per_s is not None
    assert found.high_per_s is not None
    assert found.low_per_s <= found.per_s <= found.high_per_s
    assert np.quantile(latencies(found.low_per_s, 100_000, 2)[1], 0.99) < 25 * MS
    assert np.quantile(latencies(found.high_per_s, 100_000, 2)[1], 0.99) > 25 * MS


def test_a_verdict_needs_the_whole_interval() -> None:
    assert tail_verdict(3.0, 4.0, 5.0) == "below"
    assert tail_verdict(None, 4.0, 5.0) == "below"
    assert tail_verdict(5.0, None, 5.0) == "above"
    for low, high in ((3.0, 5.0), (3.0, None), (None, None)):
        assert tail_verdict(low, high, 5.0) == "undecided"


def asked(latencies: list[int], bound: int) -> int:
    """How many of them were needed."""
    enough = looks_at(bound, len(latencies))
    seen: list[int] = []
    for one in latencies:
        seen.append(one)
        if enough(seen):
            break
    return len(seen)


def test_a_clear_rate_ends_at_the_first_look_and_a_close_one_goes_on() -> None:
    rng = np.random.default_rng(0)
    values = rng.exponential(1e6, 5000).astype(np.int64).tolist()  # p99 is 4.6e6
    assert asked(values, 40_000_000) == 600
    assert asked(values, 4_600_000) == 5000
    slow = asked(values, 100_000)  # 90% are over it: 50 + 10 * sqrt(50) of them are enough
    assert slow == pytest.approx(121 / 0.9, abs=15)


def test_every_rate_has_enough_requests_for_p99_and_no_more_than_needed() -> None:
    assert requests_at(20.0) == 600
    assert requests_at(100.0) == 1000
    assert requests_at(1e6) == 10_000


def test_a_point_of_an_overloaded_artifact_tells_no_latency() -> None:
    point = arrival_point(50.0, [5 * MS] * 10, [5 * MS] * 10, 100 * MS, backlog=120, overloaded=True)
    assert (point.keeps_up, point.p99_ms, point.backlog) == (False, None, 120)
    assert point.achieved_per_s == pytest.approx(100.0)
    assert point.busy == pytest.approx(0.5)
