"""`bench --device`: where each row runs, and what is said where the GPU is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qcompile
from qcompile.bench.recorder import Recorder
from qcompile.bench.results.row import Row
from qcompile.bench.runnables import choose_runnables
from qcompile.bench.statistics.speedup import Speedup
from qcompile.engines.gpu import why_no_gpu
from qcompile.errors import EngineUnavailable, InvalidOption

pytestmark = pytest.mark.usefixtures("short_blocks")

without_gpu = pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")


def placed(artifacts: dict[str, str], *devices: int | None, modes: tuple[str, ...] = ()) -> dict[str, str]:
    """Name of each artifact to its device."""
    from qcompile.bench.workers.interpreters import Interpreters

    runnables, _ = choose_runnables(
        artifacts, next(iter(artifacts)), trust=False, pythons=Interpreters(), torch_modes=modes,
        devices=devices,
    )  # fmt: skip
    return {runnable.name: runnable.device for runnable in runnables}


def test_every_artifact_runs_on_each_device_that_can_run_it(
    tiny_file: Callable[..., Path], torch_model: str, tmp_path: Path
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


@without_gpu
def test_a_missing_gpu_is_the_failure_of_its_row(tiny_file: Callable[..., Path]) -> None:
    results = qcompile.benchmark(
        {"model": str(tiny_file("mlp"))}, baseline="model", devices=["cpu", "cuda"], threads=1, max_time_s=0.5
    )
    on_cpu, on_gpu = results.rows
    assert (on_cpu.status, on_cpu.device, on_cpu.runs_on) == ("measured", "cpu", "CPU")
    assert (on_gpu.status, on_gpu.device, on_gpu.runs_on) == ("failed", "cuda:0", "GPU")
    assert "cannot run on GPU 0 here: this ONNX Runtime" in on_gpu.reason
    assert results.settings["devices"] == ["cpu", "cuda"]


@without_gpu
def test_a_baseline_on_a_missing_gpu_is_an_error(torch_model: str) -> None:
    with pytest.raises(EngineUnavailable, match="cannot run on GPU 0 here: this PyTorch"):
        qcompile.benchmark([], baseline=torch_model, inputs=["x:1x3x8x8"], devices=["cuda"])


def test_two_gpus_are_two_benches(torch_model: str) -> None:
    with pytest.raises(InvalidOption, match="the processor and one GPU"):
        qcompile.benchmark([], baseline=torch_model, devices=["cuda:0", "cuda:1"])


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


@pytest.mark.gpu
@pytest.mark.parametrize("spelling", ["onnx", "pytorch"])
def test_a_row_on_the_gpu_computes_what_the_processor_does(
    tiny_file: Callable[..., Path], torch_model: str, tmp_path: Path, spelling: str
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
    assert on_gpu.difference is not None
    assert on_gpu.difference.snr_db is not None
    assert on_gpu.difference.snr_db > 55.0  # TF32 at the worst
    assert "to the GPU" in on_gpu.contains
    assert any("compares devices" in text for text in on_gpu.warnings)
    assert json.loads(output.read_text())["environment"]["before"]["gpu"]["sm_clock_mhz"] > 0
