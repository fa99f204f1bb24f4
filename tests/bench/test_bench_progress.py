"""What `bench` reports while it measures: phase, share of the artifacts, then share of the time limit."""

from __future__ import annotations

from typing import Any

import pytest
from commands import MakePath

import qcompile

pytestmark = pytest.mark.usefixtures("short_blocks")

LONG_S = 600.0


def test_progress_counts_the_artifacts_and_then_the_seconds_of_the_time_limit(tiny_file: MakePath) -> None:
    model, steps = str(tiny_file("mlp")), list[tuple[Any, ...]]()
    qcompile.benchmark(
        {"a": model, "b": model}, baseline="a", threads=1, max_time_s=LONG_S,
        decided=lambda timed: all(len(series.launches_ms) == 2 for series in timed.values()),
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    prepared = ("load a", "load b", "launch 1: warm up a", "launch 1: warm up b")
    assert steps[:4] == [(text, number % 2, 2) for number, text in enumerate(prepared)]
    texts, seconds, totals = zip(*steps[4:], strict=True)
    assert {"launch 2: load b", "launch 2: warm up b"} < set(texts)
    assert texts[0] == "launch 1, round 1"
    assert set(totals) == {LONG_S}
    assert [*seconds] == sorted(seconds)
