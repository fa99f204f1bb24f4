"""Inferences in flight, on a device of known speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import pytest

from qcompile.bench.measuring.concurrent import time_in_flight
from qcompile.engines.base import InFlight, Runner
from qcompile.errors import InvalidOption


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
    with pytest.raises(InvalidOption, match="`streams`: this runtime has one inference under way at a time"):
        Plain().in_flight({}, 2)  # type: ignore[abstract]
