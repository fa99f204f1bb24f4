"""A stage in a process of its own answers, says why it ended, and ends when nobody wants it any more."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from qcompile.cluster.bundle import StageKilled
from qcompile.cluster.plugin import Cancelled, _in_process, look


@pytest.fixture
def service() -> Any:
    """What a stage's process needs of a worker."""
    return SimpleNamespace(name="one", cores=1, worker=SimpleNamespace(nanny=None))


def test_a_process_answers_what_the_machine_has(service: Any) -> None:
    assert look(service)["onnxruntime"] > 0


def test_a_process_that_fails_says_its_last_lines(service: Any, tmp_path: Path) -> None:
    question = {"do": "find", "request": {"nothing": 1}, "folder": str(tmp_path)}
    with pytest.raises(
        StageKilled, match=r"worker one: the process of a stage ended \(exit code 1\)"
    ) as seen:
        _in_process(service, question, lambda: None, lambda *_: None)
    assert "ValidationError" in str(seen.value)


def test_a_process_that_nobody_wants_ends(service: Any) -> None:
    def check() -> None:
        raise Cancelled

    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(Cancelled):
        _in_process(service, {"do": "look"}, check, lambda *_: None)
    deadline = time.monotonic() + 10
    while {child.pid for child in psutil.Process().children()} - before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
