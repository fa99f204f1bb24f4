"""Throughput of several inferences in flight, all enqueued by one thread."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...engines.base import InFlight

_WARM_UP_ROUNDS = 3


def time_in_flight(inferences: Sequence[InFlight], seconds: float) -> tuple[list[int], int]:
    """Keep all inferences under way: as soon as the oldest is done, it is started again.

    Args:
        inferences: Each with memory and a stream of its own.
        seconds: Start none after this.

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
