"""A results file holds the runs that were written to it before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import workers_here

import qcompile
from qcompile.bench.results.results import load_results

pytestmark = pytest.mark.usefixtures("short_blocks")


def test_runs_written_to_one_file_are_its_history(
    tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers_here.install(monkeypatch)
    model, output = str(tiny_file("mlp")), tmp_path / "r.json"
    runs = [
        qcompile.benchmark({"a": model, "b": model}, baseline="a", output=output, threads=1, max_time_s=0.1)
        for _ in range(3)
    ]
    history = load_results(output).history
    assert [run["created"] for run in history] == [run.created for run in runs[:2]]
    b = runs[1].row("b")
    assert history[1]["artifacts"]["b"] == {
        "median_ms": b.latency.median_ms, "speedup": b.speedup.value, "low": b.speedup.low,
        "high": b.speedup.high, "accuracy": None,
    }  # fmt: skip
