"""A network to tune, and latencies that a test gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hostile_network import Case, network

from qcompile.bench.results.results import Results
from qcompile.bench.results.row import Latency, Row
from qcompile.pipeline.tune import trials


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Case]:
    def files(batch: int = 0, *, hostile: bool = True, with_labels: bool = True) -> Case:
        model, x, labels = network(batch, hostile=hostile)
        onnx.save(model, tmp_path / "net.onnx")
        np.savez(tmp_path / "data.npz", x=x, **({"labels": labels} if with_labels else {}))
        return Case(tmp_path / "net.onnx", str(tmp_path / "data.npz"), x, labels, tmp_path / "out")

    return files


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`timed({"int8": 1, "fp32": 2})` gives latencies by what is in a trial's name."""

    def give(latency_ms: Mapping[str, float]) -> None:
        def benchmark(artifacts: Mapping[str, str], *, baseline: str, **_: Any) -> Results:
            assert all(Path(path).is_file() for path in artifacts.values())
            rows = []
            for name, path in artifacts.items():
                mixed = 0.01 * ("mix" in name)
                known = next(v for part, v in latency_ms.items() if part in name)
                rows.append(Row(name, path, name.split("-")[0], latency=Latency(median_ms=known + mixed)))
            return Results(baseline=baseline, rows=rows, environment={}, settings={})

        monkeypatch.setattr(trials, "benchmark", benchmark)

    return give
