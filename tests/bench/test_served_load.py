"""Requests that arrive at a server are sent to it at once, on connections of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from kserve_server import serving

import qcompile
from qcompile.bench.worker import WorkerSession


class SlowSession:
    """Of ONNX Runtime, whose runs take 30 ms more."""

    def __init__(self, session: Any) -> None:
        self.session, self.lock, self.inside, self.most = session, threading.Lock(), 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, *given: Any) -> Any:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(0.03)
        with self.lock:
            self.inside -= 1
        return self.session.run(*given)


def test_a_server_has_several_requests_at_once(tiny_file: Callable[..., Path]) -> None:
    session = WorkerSession(lambda _: None)
    with serving(tiny_file("mlp")) as (server, url), qcompile.load(f"kserve:{url}") as runner:
        slow = SlowSession(server.session)
        server.session = slow  # type: ignore[assignment]
        session.runner, session.feeds = runner, {"x": np.zeros((1, 16), np.float32)}
        request = {"do": "arrivals", "rate": 400.0, "requests": 40, "seed": 1}
        answer = session.answer(request)
    assert answer["servers"] == 16
    assert len(answer["ns"]) == len(answer["service_ns"]) == 40
    assert slow.most > 1
    assert all(ns >= 30e6 for ns in answer["service_ns"])
    # One after the other, the last would have waited for 39 calls of 30 ms.
    assert sum(answer["service_ns"]) > answer["wall_ns"]
