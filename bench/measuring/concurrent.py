"""Time inferences at once: clients of one artifact, one thread each, or several that one thread enqueues."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from ...engines.base import InFlight
from ...errors import ModelError, first_line
from ...tensors import Feeds


def time_clients(runners: Sequence[Any], feeds: Feeds, seconds: float) -> tuple[list[int], int]:
    """Let one client per runner call in a closed loop.

    Args:
        runners: One per client; the same one again where it takes calls from several threads.
        feeds: What every call is given.
        seconds: Begin no call after this.

    Returns:
        The nanoseconds of every call, and those from the common start to the end of the last call.
    """
    calls = [runner.prepare(feeds) for runner in runners]
    for call in calls:
        call()
    gate = threading.Barrier(len(calls) + 1)
    durations_ns: list[list[int]] = [[] for _ in calls]
    failures: list[Exception] = []
    deadline = 0

    def client(call: Any, durations: list[int]) -> None:
        clock = time.perf_counter_ns
        gate.wait()
        try:
            now = clock()
            while now < deadline or not durations:
                start = now
                call()
                now = clock()
                durations.append(now - start)
        except Exception as error:  # a runtime may raise anything; it is raised again by the caller
            failures.append(error)

    threads = [
        threading.Thread(target=client, args=pair, daemon=True)
        for pair in zip(calls, durations_ns, strict=True)
    ]
    for thread in threads:
        thread.start()
    begin = time.perf_counter_ns()
    deadline = begin + int(seconds * 1e9)
    gate.wait()
    for thread in threads:
        thread.join()
    wall_ns = time.perf_counter_ns() - begin
    if failures:
        raise ModelError(f"{len(calls)} clients: a call fails: {first_line(failures[0])}") from failures[0]
    return [ns for durations in durations_ns for ns in durations], wall_ns


_WARM_UP_ROUNDS = 3


def time_in_flight(inferences: Sequence[InFlight], seconds: float) -> tuple[list[int], int]:
    """Keep all inferences under way: as soon as the oldest is done, it is started again.

    Returns:
        The nanoseconds of each inference, from its start until its outputs were waited for, and those from
        the first start to the end of the last.
    """
    for _ in range(_WARM_UP_ROUNDS):
        for one in inferences:
            one.start()
        for one in inferences:
            one.wait()
    clock = time.perf_counter_ns
    durations_ns: list[int] = []
    begin = clock()
    deadline = begin + int(seconds * 1e9)
    started_ns = []
    for one in inferences:
        started_ns.append(clock())
        one.start()
    now = begin
    while now < deadline:
        for index, one in enumerate(inferences):
            one.wait()
            now = clock()
            durations_ns.append(now - started_ns[index])
            started_ns[index] = now
            one.start()
    for index, one in enumerate(inferences):
        one.wait()
        now = clock()
        durations_ns.append(now - started_ns[index])
    return durations_ns, now - begin
