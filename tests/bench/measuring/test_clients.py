"""Clients that call at once, on calls of a known length."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from qcompile.bench.measuring.concurrent import time_clients
from qcompile.errors import ModelError


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
