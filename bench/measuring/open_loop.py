"""Serve requests that arrive at times of their own: an open loop, with a queue in front of the artifact.

A client of a closed loop waits for its answer before it asks again, so a slow answer delays the requests
behind it, and their wait is measured by nobody. Here the arrivals are drawn beforehand, and a latency counts
from the arrival that was drawn, however late the call begins.

    arrivals   |   |  |          |
    calls      [---][---][---]   [---]
    latencies  |---|   |-----|   |---|
                   |---|

The queue needs no thread that sends: requests are taken in the order of their arrivals, and one that has not
arrived yet is waited for.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError, first_line

SEED = 20261122
_SPIN_NS = 200_000  # what a sleep may come late
_OVERLOAD_BACKLOG = 100  # requests of each server: a stable queue is never so long in practice
_CHECKED_EVERY = 20  # requests
_TOLD_EVERY_NS = 5_000_000_000

Times = NDArray[np.int64]


class Clock(Protocol):
    """Nanoseconds that pass, and a wait until some of them have."""

    def now(self) -> int:
        """Return the time."""

    def wait_until(self, at: int) -> None:
        """Return at that time, at once where it has passed."""


class RealClock:
    """The machine's; the end of a wait spins, as a sleep ends late."""

    def now(self) -> int:
        """Return the time."""
        return time.perf_counter_ns()

    def wait_until(self, at: int) -> None:
        """Sleep, then look again and again; other threads of the process may run meanwhile."""
        clock = time.perf_counter_ns
        while (left := at - clock()) > 0:
            time.sleep((left - _SPIN_NS) / 1e9 if left > _SPIN_NS else 0.0)


@dataclass
class ServedArrivals:
    """What became of the requests, in the order of their arrivals.

    Attributes:
        latencies: Nanoseconds from the arrival to the end of the call, [n] of those that were answered.
        services: Nanoseconds of the call alone, [n].
        wall_ns: From the start, which is before the first arrival, to the last answer.
        backlog: The most requests that had arrived and waited behind the one that was begun.
        overloaded: Whether it was ended because the backlog grew, and would have gone on growing.
    """

    latencies: Times
    services: Times
    wall_ns: int
    backlog: int
    overloaded: bool


def poisson_arrivals(rate_per_s: float, count: int, *, seed: int = SEED) -> Times:
    """Return the times of requests that arrive independently of each other, in nanoseconds, int64 [count].

    The same seed gives the same pattern at each rate, stretched: rates and artifacts are compared on it.
    """
    gaps = np.random.Generator(np.random.PCG64(seed)).exponential(1.0, count)
    return (np.cumsum(gaps) * (1e9 / rate_per_s)).astype(np.int64)


def serve_arrivals(
    calls: Sequence[Callable[[], object]],
    arrivals: Times,
    *,
    clock: Clock | None = None,
    has_enough: Callable[[Sequence[int]], bool] | None = None,
    tell: Callable[[int], None] = lambda _: None,
) -> ServedArrivals:
    """Answer requests, each as soon as it has arrived and a server is free, in their order.

    Args:
        calls: One per server; a single one is served by this thread.
        arrivals: Nanoseconds from the start, ascending, [n], at least one.
        clock: Of the machine.
        has_enough: Given the latencies so far after each answer; no further request is begun after True.
        tell: Called every five seconds or so with the number of requests that were begun.

    Raises:
        ModelError: If a call fails.
    """
    line = _Line(arrivals.tolist(), len(calls), clock or RealClock(), has_enough or _never, tell)
    threads = [threading.Thread(target=line.serve, args=(call,), daemon=True) for call in calls[1:]]
    for thread in threads:
        thread.start()
    line.serve(calls[0])
    for thread in threads:
        thread.join()
    if line.failures:
        failure = line.failures[0]
        raise ModelError(f"open loop: a call fails: {first_line(failure)}") from failure
    return line.result()


def _never(_: Sequence[int]) -> bool:
    return False


class _Line:
    """The requests that stand in one line, and what came of them."""

    def __init__(
        self,
        arrivals: list[int],
        servers: int,
        clock: Clock,
        has_enough: Callable[[Sequence[int]], bool],
        tell: Callable[[int], None],
    ) -> None:
        self.arrivals, self.servers, self.clock = arrivals, servers, clock
        self.has_enough, self.tell = has_enough, tell
        self.lock = threading.Lock()
        self.taken, self.ended, self.overloaded = 0, False, False
        self.answered: list[tuple[int, int, int]] = []  # request, begin, end
        self.latencies: list[int] = []
        self.served_ns = 0
        self.failures: list[Exception] = []
        self.start = self.told = clock.now()

    def serve(self, call: Callable[[], object]) -> None:
        """Answer requests until there are no more."""
        while True:
            with self.lock:  # held by who waits for the next arrival: the others would wait for later ones
                if self.ended or self.taken == len(self.arrivals):
                    return
                request = self.taken
                self.taken += 1
                self.clock.wait_until(self.start + self.arrivals[request])
                begin = self.clock.now()
                self._look(request, begin)
            try:
                call()
            except Exception as error:  # a runtime may raise anything; it is raised again by the caller
                self.failures.append(error)
                self.ended = True
                return
            end = self.clock.now()
            with self.lock:
                self._count(request, begin, end)

    def result(self) -> ServedArrivals:
        """Return what was answered."""
        self.answered.sort()
        requests, begins, ends = np.array(self.answered, np.int64).T
        arrivals = np.array(self.arrivals, np.int64)
        arrived = np.searchsorted(arrivals, begins - self.start, side="right")
        return ServedArrivals(
            ends - self.start - arrivals[requests],
            ends - begins,
            int(ends.max()) - self.start,
            int((arrived - requests - 1).max()),
            self.overloaded,
        )

    def _count(self, request: int, begin: int, end: int) -> None:
        self.answered.append((request, begin, end))
        self.latencies.append(end - self.start - self.arrivals[request])
        self.served_ns += end - begin
        if self.has_enough(self.latencies):
            self.ended = True

    def _look(self, request: int, now: int) -> None:
        """Tell how far it is; end where the backlog is long, and more work arrives than the servers do."""
        if now - self.told >= _TOLD_EVERY_NS:
            self.told = now
            self.tell(request)
        if request % _CHECKED_EVERY or not self.answered:
            return
        waiting = bisect_right(self.arrivals, now - self.start) - request
        gap_ns = self.arrivals[-1] / len(self.arrivals)
        service_ns = self.served_ns / len(self.answered)
        if waiting > _OVERLOAD_BACKLOG * self.servers and service_ns >= gap_ns * self.servers:
            self.ended = self.overloaded = True
