"""`bench --device`: where each row runs, on every GPU, and what is said where the GPU is missing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import MakePath

import qcompile
from qcompile.bench import benchmark as every_gpu
from qcompile.bench.measure.recorder import Recorder
from qcompile.bench.measure.runnables import choose_runnables
from qcompile.bench.measure.side_figures import measure_gpu_latencies, sweep_concurrency
from qcompile.bench.results.results import BenchInterrupted, Results, load_results
from qcompile.bench.results.row import Row
from qcompile.bench.results.statistics import Speedup
from qcompile.core.progress import silent
from qcompile.engines import gpu as driver
from qcompile.engines.gpu import Gpu, find_gpus, parse_devices, why_no_gpu
from qcompile.errors import EngineUnavailable, InvalidOption
from qcompile.spec.measure import BenchSpec

pytestmark = pytest.mark.usefixtures("short_blocks")

without_gpu = pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")


def placed(artifacts: dict[str, str], *devices: int | None, modes: tuple[str, ...] = ()) -> dict[str, str]:
    """Name of each artifact to its device."""
    spec = BenchSpec(baseline=next(iter(artifacts)), torch_modes=modes)  # type: ignore[arg-type]
    runnables, _ = choose_runnables(artifacts, spec, devices)
    return {runnable.name: runnable.device for runnable in runnables}


def test_every_artifact_runs_on_each_device_that_can_run_it(
    tiny_file: MakePath, torch_model: str, tmp_path: Path
) -> None:
    model = tiny_file("mlp")
    built = qcompile.build(model, tmp_path / "built.onnx", target="onnxruntime").path
    openvino = qcompile.build(model, tmp_path / "vino.onnx", target="openvino").path
    plan = qcompile.build(model, tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"]).path
    artifacts = {"net": torch_model, "onnx": str(model), "built": str(built), "vino": str(openvino)}
    artifacts["plan"] = str(plan)
    alone = {"net": "cpu", "onnx": "cpu", "built": "cpu", "vino": "cpu", "plan": "cuda:0"}
    assert placed(artifacts) == placed(artifacts, None) == alone
    assert placed(artifacts, 1) == alone | {"net": "cuda:1", "onnx": "cuda:1", "plan": "cuda:1"}
    both = placed(artifacts, 1, None)
    assert both == {
        "net": "cuda:1", "net (cpu)": "cpu", "onnx": "cuda:1", "onnx (cpu)": "cpu", "built": "cpu",
        "vino": "cpu", "plan": "cuda:1",
    }  # fmt: skip
    assert placed({"net": torch_model}, None, 0, modes=("trace",)) == {
        "net": "cpu", "net (cuda:0)": "cuda:0", "net (trace)": "cpu", "net (cuda:0) (trace)": "cuda:0",
    }  # fmt: skip


def test_only_what_runs_on_a_gpu_has_a_gpus_clock_and_streams() -> None:
    class Worker:
        def __init__(self) -> None:
            self.asked: list[str] = []

        def ask(self, do: str, **_: object) -> dict[str, Any]:
            self.asked.append(do)
            times = {f"{kind}_ns": [2_000_000] for kind in ("compute", "with_transfers", "enqueue")}
            return {"ns": [10, 20], "wall_ns": 40, "at_rest": True} | times

    rows = [
        Row("base", "net.py:build", "pytorch"),
        Row("torch", "net.py:build", "pytorch", device="cuda:0"),
        Row("plan", "m.engine", "tensorrt", device="cuda:0"),
        Row("onnx", "m.onnx", "onnxruntime", device="cuda:0"),
    ]
    recorder, workers = Recorder(rows, "base"), {row.name: Worker() for row in rows}
    serving: Any = workers
    measure_gpu_latencies(serving, recorder)
    sweep_concurrency(serving, recorder, {"streams": [2]}, 4, silent)
    assert {name: one.asked for name, one in workers.items()} == {
        "base": [], "torch": ["gpu_times", "in_flight"], "plan": ["gpu_times", "in_flight"],
        "onnx": ["in_flight"],
    }  # fmt: skip
    latency = recorder["torch"].gpu_latency
    assert latency.compute_ms == 2.0
    (point,) = recorder["plan"].in_flight
    assert (point.count, point.throughput_per_s) == (2, pytest.approx(4 * 2 / 40e-9))


@without_gpu
def test_a_missing_gpu_is_the_failure_of_its_row(tiny_file: MakePath) -> None:
    results = qcompile.benchmark(
        {"model": str(tiny_file("mlp"))}, baseline="model", devices=["cpu", "cuda"], threads=1, max_time_s=0.5
    )
    on_cpu, on_gpu = results.rows
    assert (on_cpu.status, on_cpu.device, on_cpu.runs_on) == ("measured", "cpu", "CPU")
    assert (on_gpu.status, on_gpu.device, on_gpu.runs_on) == ("failed", "cuda:0", "GPU")
    assert "cannot run on GPU 0 here: this ONNX Runtime" in on_gpu.reason
    assert results.settings["devices"] == ["cpu", "cuda"]


def test_a_speedup_between_devices_says_so() -> None:
    ratio = Speedup(20.0, 19.0, 21.0, 20, "faster", launches=5)
    rows = [
        Row("base", "net.py:build", "pytorch"),
        Row("same", "a.onnx", "onnxruntime", speedup=ratio),
        Row("engine", "a.engine", "tensorrt", device="cuda:0", speedup=ratio),
        Row("lost", "b.engine", "tensorrt", device="cuda:0", status="not run"),
    ]
    recorder = Recorder(rows, "base")
    recorder.conclude(precision_target=0.5)
    assert [row.name for row in recorder.rows if row.warnings] == ["engine"]
    assert recorder["engine"].warnings[0].startswith("ran on cuda:0, the baseline on cpu")


def test_memory_on_a_gpu_is_asked_behind_each_round(
    tiny_file: MakePath, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What NVML tells is made here: a process that takes one more megabyte each time."""
    told = itertools.count(200_000_000, 1_000_000)
    nvml = SimpleNamespace(process_memory_bytes=lambda _: next(told))
    monkeypatch.setattr(every_gpu, "find_nvml", lambda _: (nvml, ""))
    monkeypatch.setattr(every_gpu.gpus, "parse_device", lambda _: 0)
    model, output = str(tiny_file("mlp")), tmp_path / "r.json"
    qcompile.benchmark({"a": model}, baseline="a", threads=1, max_time_s=0.01, output=output)
    (row,) = load_results(output).rows
    held = row.gpu_memory_rounds_bytes
    assert len(held) == sum(row.launch_rounds) == len(row.round_medians_ms)
    assert [*held, row.gpu_memory_bytes] == [*range(200_000_000, 200_000_000 + len(held) * 10**6 + 1, 10**6)]
    page = qcompile.report(output, tmp_path / "r.html").read_text()
    assert "Memory on the GPU, round after round" in page


@pytest.mark.gpu
@pytest.mark.parametrize("spelling", ["onnx", "pytorch"])
def test_a_row_on_the_gpu_computes_what_the_processor_does(
    tiny_file: MakePath, torch_model: str, tmp_path: Path, spelling: str
) -> None:
    """Not yet run on a GPU. Needs onnxruntime-gpu, or PyTorch with CUDA."""
    onnx_file = str(tiny_file("residual"))
    model, inputs = (onnx_file, []) if spelling == "onnx" else (torch_model, ["x:4x3x8x8"])
    data = tmp_path / "data.npz"
    channels = 4 if spelling == "onnx" else 3
    np.savez(data, x=np.random.default_rng(0).standard_normal((8, channels, 8, 8)).astype(np.float32))
    output = tmp_path / "results.json"
    results = qcompile.benchmark(
        {"model": model}, baseline="model", devices=["cpu", "cuda"], threads=1, max_time_s=2.0, batch_size=4,
        data=str(data), inputs=inputs, output=output, clients=[1, 2],
    )  # fmt: skip
    on_cpu, on_gpu = results.rows
    assert (on_cpu.status, on_gpu.status, on_gpu.reason) == ("measured", "measured", "")
    assert on_gpu.difference.snr_db is not None
    assert on_gpu.difference.snr_db > 55.0  # TF32 at the worst
    assert "to the GPU" in on_gpu.contains
    assert any("compares devices" in text for text in on_gpu.warnings)
    assert json.loads(output.read_text())["environment"]["before"]["gpu"]["sm_clock_mhz"] > 0


A10 = Gpu("Simulated A10", "sm86", 24 << 30, "12.8")
H200 = Gpu("Simulated H200", "sm90", 140 << 30, "12.8")


class Bench:
    """In place of `benchmark`: PyTorch runs anywhere, an engine on a GPU, OpenVINO on the processor."""

    def __init__(self, stop_at: str = "") -> None:
        self.asked: list[tuple[dict[str, str], BenchSpec]] = []
        self.stop_at = stop_at
        self.modes: dict[str, str] = {}

    def __call__(self, artifacts: dict[str, str], spec: BenchSpec, *, unbuilt: list[Row]) -> Results:
        self.asked.append((artifacts, spec))
        (device,) = spec.devices
        places = {"pytorch": device, "engine": device, "vino": "cpu"}
        rows = [
            Row(name, path, name, device=places[name], mode=self.modes.get(name, "eager"))
            for name, path in artifacts.items()
        ]
        if spec.cuda_graph and "engine" in places:
            rows.append(Row("engine (CUDA graph)", "m.engine", "engine", device=device, mode="cuda-graph"))
        settings = {"threads": 1, "inputs": {}}
        results = Results(
            baseline=spec.baseline, rows=[*rows, *unbuilt], environment={"gpu": device, "before": {}},
            settings=settings,
        )  # fmt: skip
        if device == self.stop_at:
            raise BenchInterrupted(results)
        return results


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Results]:
    """`measure(bench, ...)` measures three artifacts on every GPU."""
    monkeypatch.setattr(driver, "find_gpus", lambda: [A10, H200])
    artifacts = {"pytorch": "net.py:build", "engine": "m.engine", "vino": "m.onnx"}
    unbuilt = [Row("late", "", "tensorrt", status="failed")]

    def start(bench: Bench, **options: Any) -> Results:
        spec = BenchSpec(baseline="pytorch", devices=("all",), output=tmp_path / "results.json", **options)
        return every_gpu.measure_every_gpu(bench, artifacts, spec, None, unbuilt)

    return start


def test_each_gpu_is_measured_for_itself_and_the_processor_once(
    measure: Callable[..., Results], tmp_path: Path
) -> None:
    bench = Bench()
    results = measure(bench)
    assert [spec.devices for _, spec in bench.asked] == [("cuda:0",), ("cuda:1",)]
    first, second = (list(artifacts) for artifacts, _ in bench.asked)
    assert (first, second) == (["pytorch", "engine", "vino"], ["pytorch", "engine"])
    assert [(row.name, row.machine, row.device) for row in results.rows] == [
        ("pytorch", "cuda:0", "cuda:0"), ("engine", "cuda:0", "cuda:0"), ("vino", "cuda:0", "cpu"),
        ("late", "cuda:0", "cpu"), ("pytorch (cuda:1)", "cuda:1", "cuda:1"),
        ("engine (cuda:1)", "cuda:1", "cuda:1"),
    ]  # fmt: skip
    assert load_results(tmp_path / "results.json").as_json() == results.as_json()


@pytest.mark.parametrize("cuda_graph", [None, True])
def test_engines_with_graphs_are_measured_on_each_gpu_once(
    measure: Callable[..., Results], cuda_graph: bool | None
) -> None:
    """As a row of its own, the next GPU's bench adds it again; by default it is the engine's one row."""
    bench = Bench()
    bench.modes = {} if cuda_graph else {"engine": "cuda-graph"}
    measure(bench, cuda_graph=cuda_graph)
    assert list(bench.asked[1][0]) == ["pytorch", "engine"]


def test_what_was_measured_before_an_interruption_is_kept(
    measure: Callable[..., Results], tmp_path: Path
) -> None:
    with pytest.raises(BenchInterrupted) as stopped:
        measure(Bench(stop_at="cuda:1"))
    assert list(stopped.value.results.machines) == ["cuda:0", "cuda:1"]
    assert len(load_results(tmp_path / "results.json").rows) == 6


def test_all_stands_alone() -> None:
    assert parse_devices(["all"]) == (0,)
    with pytest.raises(InvalidOption, match="`devices` 'all': cpu, cuda or") as caught:
        parse_devices(["all", "cpu"])
    assert caught.value.hint == "give only all"


def test_gpus_are_counted_until_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [A10, H200]
    monkeypatch.setattr(driver, "find_gpu", lambda index=0: there[index] if index < 2 else None)
    assert find_gpus() == there


@without_gpu
def test_without_a_gpu_it_is_refused_with_the_reason(tiny_file: MakePath) -> None:
    model = str(tiny_file("mlp"))
    with pytest.raises(EngineUnavailable, match="`devices` all: no NVIDIA driver") as caught:
        qcompile.benchmark([model], baseline=model, devices=["all"])
    assert "`devices` cpu" in caught.value.hint
