"""The interval of p99: against the binomial distribution of scipy, and on queues whose p99 is known."""

from __future__ import annotations

import numpy as np
import pytest

from qcompile.bench.statistics.tail import correlation_time, tail_interval


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [600, 2500])
def test_ranks_are_those_of_the_binomial_distribution(share: float, n: int) -> None:
    from scipy.stats import binom

    low, high = tail_interval(np.random.default_rng(1).permutation(n) + 1, share)
    assert low is not None
    assert high is not None
    tau = 1.0  # a permutation has no memory; its estimate may say a little more
    assert binom.cdf(low - 1, n, share) <= 0.005 * 2**tau
    assert binom.sf(high - 1, n, share) <= 0.005 * 2**tau
    assert low <= np.ceil(share * n) <= high


def test_few_values_have_no_upper_end() -> None:
    rng = np.random.default_rng(2)
    assert tail_interval(rng.permutation(500))[1] is None
    assert tail_interval(rng.permutation(100))[1] is None
    assert tail_interval(np.zeros(0, np.int64)) == (None, None)
    assert tail_interval(np.array([5]))[1] is None


def test_equal_latencies_have_an_interval_of_no_width() -> None:
    assert tail_interval(np.full(1000, 7)) == (7.0, 7.0)


def test_marks_in_runs_count_as_one() -> None:
    rng = np.random.default_rng(4)
    alone = rng.random(20_000) < 0.05
    assert correlation_time(alone) == pytest.approx(1.0, abs=0.25)
    assert correlation_time(np.repeat(alone, 8)) == pytest.approx(8.0, rel=0.15)
    assert correlation_time(np.zeros(10, bool)) == 1.0


def test_intervals_of_a_queue_cover_its_p99_where_those_of_independent_values_do_not() -> None:
    """M/M/1 at 50%: latencies are exponential with mean 2, so p99 is 2 ln 100."""
    rng, truth = np.random.default_rng(5), 2.0 * np.log(100.0)
    covered = naive = 0
    for _ in range(60):
        n = 3000
        arrivals, services = np.cumsum(rng.exponential(2.0, n)), rng.exponential(1.0, n)
        ends = services.cumsum()
        ends += np.maximum.accumulate(arrivals - np.concatenate(([0.0], ends[:-1])))
        latencies = ends - arrivals
        low, high = tail_interval((latencies * 1e6).astype(np.int64))
        covered += (low or 0.0) <= truth * 1e6 <= (high or np.inf)
        low, high = tail_interval(rng.permutation((latencies * 1e6).astype(np.int64)))
        naive += (low or 0.0) <= truth * 1e6 <= (high or np.inf)
    assert covered >= 54
    assert naive <= 50
