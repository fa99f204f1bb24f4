"""Curves over rates of arriving requests, and the largest rate whose p99 stays below a bound.

Every artifact meets the same pattern of arrivals at every rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import InvalidOption
from ...figures import figure
from ...progress import Progress
from ..recorder import Recorder
from ..results.under_load import ArrivalPoint
from ..statistics.launches import percentile
from ..statistics.tail import tail_interval
from ..workers.process import Worker
from .enough import FEWEST
from .largest_rate import find_largest_rate
from .open_loop import SEED
from .sweep import each_worker, warm

POINT_S = 10.0
_MOST = 10_000
_SEARCH_POINT_S = 30.0


def sweep_rates(
    workers: Mapping[str, Worker],
    recorder: Recorder,
    rates: Sequence[float],
    progress: Progress,
) -> None:
    """Measure every artifact over rates of arriving requests, all of them at one rate after the other."""
    for rate in rates:

        def step(name: str, worker: Worker, rate: float = rate) -> None:
            warm(worker)
            recorder.arrivals(name, measure_rate(worker, rate, requests_at(rate), progress))

        each_worker(workers, recorder, f"{figure(rate)} requests/s", step)


def find_rates(
    workers: Mapping[str, Worker], recorder: Recorder, p99_below_ms: float | None, progress: Progress
) -> None:
    """Search the largest rate of every artifact; the rates that were measured are points of its curve."""
    if p99_below_ms is None:
        return

    def step(name: str, worker: Worker) -> None:
        def measure(rate: float) -> ArrivalPoint:
            requests = requests_at(rate, _SEARCH_POINT_S)
            point = measure_rate(worker, rate, requests, progress, p99_below_ms)
            recorder.arrivals(name, point)
            return point

        call_ns = warm(worker)
        recorder.largest_rate(name, find_largest_rate(measure, 1e9 / call_ns, p99_below_ms))

    each_worker(workers, recorder, f"largest rate with p99 below {figure(p99_below_ms)} ms", step)


def requests_at(rate: float, seconds: float = POINT_S) -> int:
    """Return how many requests measure a rate: those of some seconds, and enough for p99."""
    return min(max(int(rate * seconds), FEWEST), _MOST)


def measure_rate(
    worker: Worker,
    rate: float,
    requests: int,
    progress: Progress,
    below_ms: float | None = None,
    seed: int = SEED,
) -> ArrivalPoint:
    """Let requests arrive at one rate.

    Args:
        worker: Has an artifact and its feeds.
        rate: Requests per second.
        requests: How many arrive; fewer where it does not keep up, or `below_ms` is decided before.
        progress: Told every five seconds or so.
        below_ms: What p99 is compared with.
        seed: Of the arrivals.
    """
    what = f"{worker.name}: {figure(rate)} requests/s"
    progress(what)
    answer = worker.ask(
        "arrivals", told=lambda done: progress(f"{what}: {done} of {requests}"),
        rate=rate, requests=requests, seed=seed, below_ms=below_ms,
    )  # fmt: skip
    if not answer["at_rest"]:
        worker.freeze()
    return arrival_point(
        rate, answer["ns"], answer["service_ns"], answer["wall_ns"], backlog=answer["backlog"],
        servers=answer["servers"], overloaded=answer["overloaded"],
    )  # fmt: skip


def arrival_point(
    rate: float,
    latencies_ns: Sequence[int],
    services_ns: Sequence[int],
    wall_ns: int,
    *,
    backlog: int,
    servers: int = 1,
    overloaded: bool = False,
) -> ArrivalPoint:
    """Return what was measured at a rate; latencies only where it keeps up."""
    requests = len(latencies_ns)
    achieved, busy = requests / (wall_ns / 1e9), sum(services_ns) / wall_ns / servers
    if overloaded:
        return ArrivalPoint(rate, achieved, requests, backlog=backlog, busy=busy, keeps_up=False)
    low, high = tail_interval(np.asarray(latencies_ns, np.int64))
    median, p90, p99 = (percentile(latencies_ns, share) / 1e6 for share in (0.5, 0.9, 0.99))
    return ArrivalPoint(
        rate, achieved, requests, median, p90, p99,
        None if low is None else low / 1e6, None if high is None else high / 1e6, backlog, busy,
    )  # fmt: skip


def check_load(rates: Sequence[float], p99_below_ms: float | None) -> None:
    """Refuse rates that are none, or that are given twice.

    Raises:
        InvalidOption: Naming the option.
    """
    if any(not 0 < rate < float("inf") for rate in rates) or len(set(rates)) != len(rates):
        shown = ", ".join(f"{rate:g}" for rate in rates)
        raise InvalidOption(f"`rates`: {shown}; different numbers above 0 are required", option="rates")
    if p99_below_ms is not None and not 0 < p99_below_ms < float("inf"):
        raise InvalidOption(
            f"`p99_below_ms`: {p99_below_ms:g}; a number above 0 is required", option="p99_below_ms"
        )
