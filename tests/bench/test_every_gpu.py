"""`devices` all: every GPU of the machine, each for itself. No GPU is here: they are the tests' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qcompile
from qcompile.bench import benchmark as every_gpu
from qcompile.bench.results.results import BenchInterrupted, Results, load_results
from qcompile.bench.results.row import Row
from qcompile.engines import gpu as driver
from qcompile.engines.gpu import Gpu, find_gpus, parse_devices, why_no_gpu
from qcompile.errors import EngineUnavailable, InvalidOption

without_gpu = pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")
A10 = Gpu("Simulated A10", "sm86", 24 << 30, "12.8")
H200 = Gpu("Simulated H200", "sm90", 140 << 30, "12.8")


class Bench:
    """In place of `benchmark`: PyTorch runs anywhere, an engine on a GPU, OpenVINO on the processor."""

    def __init__(self, stop_at: str = "") -> None:
        self.asked: list[dict[str, Any]] = []
        self.stop_at = stop_at
        self.modes: dict[str, str] = {}

    def __call__(self, **asked: Any) -> Results:
        self.asked.append(asked)
        (device,) = asked["devices"]
        places = {"pytorch": device, "engine": device, "vino": "cpu"}
        rows = [
            Row(name, path, name, device=places[name], mode=self.modes.get(name, "eager"))
            for name, path in asked["artifacts"].items()
        ]
        if asked["cuda_graph"] and "engine" in places:
            rows.append(Row("engine (CUDA graph)", "m.engine", "engine", device=device, mode="cuda-graph"))
        settings = {"threads": 1, "inputs": {}}
        results = Results(
            asked["baseline"], [*rows, *asked["unbuilt"]], {"gpu": device, "before": {}}, settings
        )
        if device == self.stop_at:
            raise BenchInterrupted(results)
        return results


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.setattr(every_gpu, "find_gpus", lambda: [A10, H200])
    artifacts = {"pytorch": "net.py:build", "engine": "m.engine", "vino": "m.onnx"}
    unbuilt = [Row("late", "", "tensorrt", status="failed")]
    return {
        "artifacts": artifacts, "baseline": "pytorch", "devices": ("all",), "models": None,
        "output": tmp_path / "results.json", "history": None, "unbuilt": unbuilt, "cuda_graph": None,
    }  # fmt: skip


def test_each_gpu_is_measured_for_itself_and_the_processor_once(options: dict[str, Any]) -> None:
    bench = Bench()
    results = every_gpu.measure_every_gpu(bench, options)
    assert [asked["devices"] for asked in bench.asked] == [("cuda:0",), ("cuda:1",)]
    assert [list(asked["artifacts"]) for asked in bench.asked] == [
        ["pytorch", "engine", "vino"],
        ["pytorch", "engine"],
    ]
    assert [(row.name, row.machine, row.device) for row in results.rows] == [
        ("pytorch", "cuda:0", "cuda:0"),
        ("engine", "cuda:0", "cuda:0"),
        ("vino", "cuda:0", "cpu"),
        ("late", "cuda:0", "cpu"),
        ("pytorch (cuda:1)", "cuda:1", "cuda:1"),
        ("engine (cuda:1)", "cuda:1", "cuda:1"),
    ]
    assert load_results(options["output"]).as_json() == results.as_json()


@pytest.mark.parametrize("cuda_graph", [None, True])
def test_engines_with_graphs_are_measured_on_each_gpu_once(
    options: dict[str, Any], cuda_graph: bool | None
) -> None:
    """As a row of its own, the next GPU's bench adds it again; by default it is the engine's one row."""
    bench = Bench()
    bench.modes = {} if cuda_graph else {"engine": "cuda-graph"}
    every_gpu.measure_every_gpu(bench, options | {"cuda_graph": cuda_graph})
    assert list(bench.asked[1]["artifacts"]) == ["pytorch", "engine"]


def test_what_was_measured_before_an_interruption_is_kept(options: dict[str, Any]) -> None:
    with pytest.raises(BenchInterrupted) as stopped:
        every_gpu.measure_every_gpu(Bench(stop_at="cuda:1"), options)
    assert list(stopped.value.results.machines) == ["cuda:0", "cuda:1"]
    assert len(load_results(options["output"]).rows) == 6


def test_all_stands_alone() -> None:
    assert parse_devices(["all"]) == (0,)
    with pytest.raises(InvalidOption, match="`devices` 'all': cpu, cuda or") as caught:
        parse_devices(["all", "cpu"])
    assert caught.value.hint == "all stands alone"


def test_gpus_are_counted_until_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [A10, H200]
    monkeypatch.setattr(driver, "find_gpu", lambda index=0: there[index] if index < 2 else None)
    assert find_gpus() == there


@without_gpu
def test_without_a_gpu_it_is_refused_with_the_reason(tiny_file: Callable[..., Path]) -> None:
    model = str(tiny_file("mlp"))
    with pytest.raises(EngineUnavailable, match="`devices` all: no NVIDIA driver") as caught:
        qcompile.benchmark([model], baseline=model, devices=["all"])
    assert "`devices` cpu" in caught.value.hint
