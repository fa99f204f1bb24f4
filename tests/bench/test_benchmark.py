"""`bench` on real artifacts: the numbers hang together, failures stay alone, layers are timed last."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import onnxruntime
import pytest
import workers_here
from commands import MakePath

import qcompile
from qcompile.bench.measure import rounds
from qcompile.bench.measure.artifacts import describe, timing_feeds
from qcompile.bench.measure.rounds import StopRule, TimingSeries
from qcompile.bench.results.render import slowest_layers
from qcompile.bench.results.results import SCHEMA, load_results
from qcompile.bench.results.row import MOST_CALLS, Energy, Row
from qcompile.engines.registry import engine
from qcompile.errors import DataError, EngineUnavailable, InvalidOption
from qcompile.spec.measure import BenchOptions
from qcompile.spec.tensors import ModelIO, parse_input

pytestmark = pytest.mark.usefixtures("short_blocks")

LONG_S = 600.0
"""Time for what no test waits for."""


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that hangs is given up after a tenth of the usual time."""
    monkeypatch.setattr(rounds, "_LEAST_PATIENCE_S", 3.0)


def test_results_hang_together(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    model = tiny_file("residual")
    results = qcompile.benchmark(
        {"a": str(model), "b": str(model)},
        baseline="a",
        output=tmp_path / "results.json",
        data=str(samples("residual", 32)),
        evaluation=str(samples("residual", 32)),
        batch_size=4,
        threads=1,
        max_time_s=3.0,
    )
    a, b = results.rows
    assert results.settings["metric"] == "top1"  # chosen by the labels
    assert results.settings["metric_note"] == "top1: labels are one class per sample"
    told_by_rows = {"torch_modes", "models", "python", "timeout_s"}
    assert vars(BenchOptions()).keys() - told_by_rows <= results.settings.keys()
    assert a.latency is not None
    figures = msgspec.to_builtins(a.latency)
    assert figures["min"] <= figures["median"] <= figures["p90"] <= figures["p99"] <= figures["max"]
    quantiles = a.latency_quantiles_ms
    assert list(quantiles) == sorted(quantiles)
    assert (quantiles[0], quantiles[100]) == (figures["min"], figures["max"])
    assert quantiles[50] == pytest.approx(figures["median"])
    step = -(-figures["calls"] // MOST_CALLS)
    assert len(a.calls_ms) == -(-figures["calls"] // step)
    assert figures["min"] * 0.999 <= min(a.calls_ms) <= max(a.calls_ms) <= figures["max"] * 1.001
    assert a.warm_up.calls > 0
    cold = msgspec.to_builtins(a.cold_start)
    assert cold["total"] == pytest.approx(cold["process"] + cold["load"] + cold["first_result"])
    assert cold["load"] == a.load_ms
    assert a.energy is not None
    assert isinstance(a.energy, Energy)
    assert a.size_ratio == 1.0
    assert a.packages["onnxruntime"] == results.environment["packages"]["onnxruntime"]
    assert a.speedup is None
    assert b.speedup.low <= b.speedup.value <= b.speedup.high
    # what one of the two has alone does not count, and neither does a last launch that was cut short
    shared = [min(one, other) for one, other in zip(a.launch_rounds, b.launch_rounds, strict=True)]
    assert len(shared) - b.speedup.launches in (0, 1)
    assert b.speedup.rounds == sum(shared[: b.speedup.launches]) >= 8
    # 4 samples per call: throughput and latency are two views of the same calls
    assert b.throughput_per_s is not None
    assert 4e3 / b.latency.max_ms <= b.throughput_per_s <= 4e3 / b.latency.min_ms
    arrays = np.load(samples("residual", 32))
    scores = onnxruntime.InferenceSession(str(model)).run(None, {"x": arrays["x"]})[0]
    assert a.accuracy.value == pytest.approx((scores.argmax(1) == arrays["labels"]).mean())
    assert (b.accuracy.value, b.accuracy.samples) == (a.accuracy.value, 32)
    assert b.difference.snr_db == math.inf
    assert a.size_bytes == model.stat().st_size
    assert results.settings["inputs"] == {"x": "4x4x8x8"}
    environment = results.environment
    assert environment["after"]["cpu_ticks"]["busy_s"] > environment["before"]["cpu_ticks"]["busy_s"]
    assert environment["noise"]["noisy"] == bool(environment["noise"]["reasons"])
    assert load_results(tmp_path / "results.json").as_json() == results.as_json()
    jsonschema.validate(results.as_json(), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    ("model", "options", "words", "hint"),
    [
        ("fixed", {"batch_size": 8}, "first axis of the model is fixed at 1", "dynamic batch"),
        ("fixed", {"batch_sizes": [1, 2]}, "fixed at 1", ""),
        ("mlp", {"clients": [2, 2]}, r"`clients` \[2, 2\]: different numbers", ""),
        ("mlp", {"streams": [2, 2]}, r"`streams` \[2, 2\]: different numbers", ""),
        ("mlp", {"streams": [1, 2]}, "`streams`: inferences are in flight on a GPU", "`clients`"),
        ("mlp", {"cuda_graph": True}, "no artifact is an engine of TensorRT", "`target` tensorrt"),
        ("mlp", {"devices": ["cuda:0", "cuda:1"]}, "the processor and one GPU", ""),
        ("mlp", {"torch_modes": ["trace"]}, "`torch_modes`: no artifact is a PyTorch MODEL", ""),
        ("mlp", {"models": {"mlp.onnx": "net.py:f"}}, "the name 'mlp.onnx' is taken", ""),
        ("mlp", {"evaluation": "x.npz", "metric": "top1"}, "has no labels", ""),
    ],
)
def test_what_does_not_fit_is_refused(
    tiny_file: MakePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str,
    options: dict[str, Any], words: str, hint: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.ones((4, 16), np.float32))
    path = str(tiny_file("residual", batch=1) if model == "fixed" else tiny_file("mlp"))
    error = DataError if "evaluation" in options else InvalidOption
    with pytest.raises(error, match=words) as caught:
        qcompile.benchmark([path], baseline=path, threads=1, max_time_s=0.2, **options)
    assert hint in caught.value.hint


FAULTY = """
import os, signal, sys, time, torch

class Faulty(torch.nn.Module):
    calls = 0

    def forward(self, x):
        Faulty.calls += 1
        if Faulty.calls == {call}:
            print("at the end of its tether", file=sys.stderr, flush=True)
            {fault}
        time.sleep(0.004)
        return x

def build():
    return Faulty(), (torch.ones(1, 16),)
"""


FAULTS = {
    "aborts": ("os.abort()", 40, "SIGABRT"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", 40, "SIGKILL, out of memory?"),
    "hangs": ("time.sleep(600)", 40, "gave no answer to 'time' for"),
    "has no memory": ("raise MemoryError('no more')", 40, "MemoryError: no more"),
    "does not start": ("raise RuntimeError('no weights')", 1, "no weights"),
}
"""What an artifact does, at which call, and what its row says of it."""


def faulty(folder: Path, name: str) -> str:
    fault, call, _ = FAULTS[name]
    path = folder / f"{name.replace(' ', '_')}.py"
    path.write_text(FAULTY.format(fault=fault, call=call))
    return f"{path}:build"


def test_what_dies_hangs_or_runs_out_of_memory_leaves_the_others_their_numbers(
    tiny_file: MakePath, tmp_path: Path
) -> None:
    good = str(tiny_file("mlp"))
    results = qcompile.benchmark(
        {"good": good, **{name: faulty(tmp_path, name) for name in FAULTS}, "other": good},
        baseline="good", output=tmp_path / "r.json", threads=1, max_time_s=0.5,
    )  # fmt: skip
    for name, (_, _, reason) in FAULTS.items():
        row = results.row(name)
        assert (row.status, row.latency) == ("failed", None)
        assert reason in row.reason
        assert "at the end of its tether" in row.output_tail
    assert results.row("other").latency is not None
    assert results.row("other").speedup.rounds >= 8
    jsonschema.validate(json.loads((tmp_path / "r.json").read_text()), json.loads(SCHEMA.read_text()))


SLOWS_DOWN = """
import time, torch

class SlowsDown(torch.nn.Module):
    calls = 0
    def forward(self, x):
        SlowsDown.calls += 1
        time.sleep(0.004 if SlowsDown.calls < 90 else 0.2)
        return x

def build():
    return SlowsDown(), (torch.ones(1, 16),)
"""


def test_a_baseline_that_becomes_slow_is_measured_with_fewer_calls_and_not_taken_for_hung(
    tiny_file: MakePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: blocks planned for calls of 4 ms last 50 times as long, beyond all patience."""
    monkeypatch.setattr(rounds, "BLOCK_S", 0.15)
    (tmp_path / "slow.py").write_text(SLOWS_DOWN)
    results = qcompile.benchmark(
        {"slow": f"{tmp_path / 'slow.py'}:build", "other": str(tiny_file("mlp"))},
        baseline="slow", threads=1, max_time_s=0.5,
    )  # fmt: skip
    slow = results.row("slow")
    assert slow.status == "measured", slow.reason
    assert slow.latency.max_ms > 190
    assert results.row("other").speedup is not None


ONCE = """
from pathlib import Path
import torch

def build():
    marks = Path(__file__).with_name("marks")
    marks.write_text((marks.read_text() if marks.exists() else "") + ".")
    if len(marks.read_text()) > 1:
        raise RuntimeError("not again")
    return torch.nn.Tanh(), (torch.ones(1, 16),)
"""


def after(launches: int) -> StopRule:
    """Stop after so many launches, however long they take."""

    def decided(timed: Mapping[str, TimingSeries], /) -> bool:
        return max(len(series.launches_ms) for series in timed.values()) >= launches

    return decided


def test_every_launch_is_a_process_of_its_own(tiny_file: MakePath, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import os\nfrom pathlib import Path\nimport torch\n\ndef build():\n"
        "    with Path(__file__).with_name('processes').open('a') as file:\n"
        "        print(os.getpid(), file=file)\n"
        "    return torch.nn.Tanh(), (torch.ones(1, 16),)\n"
    )
    results = qcompile.benchmark(
        {"onnx": str(tiny_file("mlp")), "net": f"{path}:build"}, baseline="onnx", threads=1,
        max_time_s=LONG_S, decided=after(2),
    )  # fmt: skip
    base, net = results.rows
    assert len(net.launch_rounds) == 2
    assert net.speedup.launches in (1, 2)  # a last launch of few rounds does not count
    assert [len(launch) for launch in net.launches_ms] == [len(launch) for launch in base.launches_ms]
    processes = (tmp_path / "processes").read_text().split()
    assert len(set(processes) - {str(os.getpid())}) >= 2


@pytest.mark.parametrize("baseline", ["onnx", "net"])
def test_an_artifact_that_does_not_start_again_has_failed_and_the_others_go_on(
    tiny_file: MakePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, baseline: str
) -> None:
    workers_here.install(monkeypatch)
    path = tmp_path / "net.py"
    path.write_text(ONCE)
    results = qcompile.benchmark(
        {"onnx": str(tiny_file("mlp")), "net": f"{path}:build"}, baseline=baseline, threads=1,
        max_time_s=LONG_S, decided=after(2),
    )  # fmt: skip
    onnx, net = results.row("onnx"), results.row("net")
    assert (net.status, onnx.status) == ("failed", "measured")
    assert "not again" in net.reason
    assert onnx.latency is not None
    assert onnx.speedup is None
    assert len(onnx.launch_rounds) >= 2


def test_of_one_launch_the_interval_is_wide_and_curves_are_over_batch_sizes_and_clients(
    tiny_file: MakePath,
) -> None:
    model = str(tiny_file("mlp"))
    entry = qcompile.benchmark(
        {"a": model, "b": model}, baseline="a", batch_sizes=[1, 32], clients=[1, 2], threads=1, max_time_s=0.2
    ).row("b")
    assert entry.speedup.launches == 1
    assert entry.speedup.high / entry.speedup.low > 1.06
    assert [text for text in entry.warnings if "comes from one launch" in text]
    assert [point.count for point in entry.batches] == [1, 32]
    for point in entry.batches:  # which of them is faster is the machine's to say
        assert point.median_ms > 0
        assert point.throughput_per_s > 0
    assert [point.count for point in entry.concurrency] == [1, 2]
    assert all(point.median_ms <= point.p99_ms for point in entry.concurrency)
    assert not entry.output_tail


def test_pytorch_runs_in_its_other_modes_as_rows_of_their_own(
    torch_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers_here.install(monkeypatch)
    results = qcompile.benchmark(
        [], baseline=torch_model, torch_modes=["trace", "freeze"], inputs=["x:2x3x8x8"], threads=1,
        max_time_s=0.3,
    )  # fmt: skip
    assert [(entry.mode, entry.name) for entry in results.rows] == [
        ("eager", "net.py:build"), ("trace", "net.py:build (trace)"), ("freeze", "net.py:build (freeze)"),
    ]  # fmt: skip
    assert [entry.status for entry in results.rows] == ["measured"] * 3
    assert results.rows[2].contains == "host to host: one forward(), traced and frozen"


def test_further_models_are_measured_as_they_are(torch_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workers_here.install(monkeypatch)
    results = qcompile.benchmark(
        {"net": torch_model}, baseline="net", models={"again": torch_model}, torch_modes=["half"],
        inputs=["x:2x3x8x8"], threads=1, max_time_s=0.1,
    )  # fmt: skip
    assert [(row.name, row.mode, row.precision) for row in results.rows] == [
        ("net", "eager", "fp32"), ("again", "eager", "fp32"), ("net (half)", "half", "fp16"),
    ]  # fmt: skip
    net, again, half = results.rows
    assert net.parameters is not None
    assert net.parameters == again.parameters == half.parameters
    assert net.weights_bytes == again.weights_bytes
    assert (half.size_ratio, again.size_ratio) == (pytest.approx(2.0, rel=0.01), 1.0)
    assert again.memory_ratio == pytest.approx(1.0, rel=0.2)


def test_the_worker_of_an_engine_runs_in_the_interpreter_it_is_given(
    tiny_file: MakePath, tmp_path: Path
) -> None:
    packages, model = tmp_path / "packages", str(tiny_file("mlp"))
    packages.mkdir()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    pythons = [f"onnxruntime={python}"]
    [entry] = qcompile.benchmark([model], baseline=model, python=pythons, threads=1, max_time_s=0.2).rows
    assert entry.interpreter == str(python)
    (packages / "onnxruntime.py").write_text("raise ImportError('a broken package')\n")
    with pytest.raises(InvalidOption, match=r"cannot run here: .*a broken package"):
        qcompile.benchmark([model], baseline=model, python=pythons)


IO = ModelIO((parse_input("x:[batch,length,2]"),), ())
SOURCE = """
import numpy as np

def falling(lengths=(5, 5, 3)):
    for length in lengths:
        yield np.full((4, length, 2), length, np.float32)

def equal():
    return falling((5, 5, 5))

def graphs():
    for nodes in (40, 50):
        yield {"atoms": np.zeros(nodes, np.int64), "edges": np.full((2, 90), nodes - 1)}
"""


@pytest.fixture
def data(tmp_path: Path) -> str:
    (tmp_path / "lines.py").write_text(SOURCE)
    return f"{tmp_path}/lines.py:falling"


@pytest.mark.parametrize(("batch_size", "samples"), [(None, 4), (3, 3), (8, 8)])
def test_batches_of_one_length_are_joined(batch_size: int | None, samples: int, data: str) -> None:
    assert timing_feeds(IO, data, batch_size=batch_size)["x"].shape == (samples, 5, 2)


def test_a_graph_is_timed_whole(data: str) -> None:
    """Where `edges` are fixed at 2, the nodes are no samples to cut: edges would name what is not there."""
    io = ModelIO((parse_input("atoms:[nodes]:int64"), parse_input("edges:[2,edges]:int64")), ())
    feeds = timing_feeds(io, data.removesuffix("falling") + "graphs", batch_size=2)
    assert {name: array.shape for name, array in feeds.items()} == {"atoms": (40,), "edges": (2, 90)}


@pytest.mark.parametrize(
    ("name", "batch_size", "words", "hint"),
    [
        ("falling", 12, r"'x' has batches of \[batch,5,2\] and \[batch,3,2\]; the 12 timed",
         "measure batches of 4, or let the first batch hold 12"),
        ("equal", 13, "holds 12 samples; a batch of 13 is required", ""),
    ],
)  # fmt: skip
def test_batches_that_cannot_be_joined_are_refused(
    data: str, name: str, batch_size: int, words: str, hint: str
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        timing_feeds(IO, data.removesuffix("falling") + name, batch_size=batch_size)
    assert hint in caught.value.hint


def test_a_graph_quantized_for_tensorrt_warns_elsewhere(tiny_file: MakePath) -> None:
    model = tiny_file("mlp")
    for target, warned in (("tensorrt", 1), ("onnxruntime", 0)):
        made = qcompile.quantize(model, model.with_name(f"{target}.onnx"), mode="weights", target=target)
        said = describe(str(made.path)).warnings
        assert len(said) == warned
        assert all("quantized for tensorrt but run by onnxruntime" in text for text in said)


def test_runtimes_tell_the_times_of_what_they_execute(tiny_file: MakePath, tmp_path: Path) -> None:
    model, net = tiny_file("residual"), tmp_path / "net.py"
    net.write_text("import torch\ndef build():\n    return torch.nn.Flatten().eval()\n")
    openvino = qcompile.build(model, tmp_path / "vino.onnx", target="openvino").path
    results = qcompile.benchmark(
        {"onnx": str(model), "vino": str(openvino), "net": f"{net}:build"}, baseline="onnx", layer_times=True,
        threads=1, max_time_s=0.2, output=tmp_path / "r.json",
    )  # fmt: skip
    onnx_ms, vino_ms = (results.row(name).layer_times_ms for name in ("onnx", "vino"))
    assert "gemm" in onnx_ms
    assert "relu1" not in onnx_ms  # fused: what is timed is the session that is measured
    assert any(name.startswith("conv2") for name in vino_ms)
    assert all(taken_ms > 0.0 for taken_ms in (*onnx_ms.values(), *vino_ms.values()))
    assert results.row("net").layer_times_ms == {}
    assert "layer times: pytorch reports no time per layer" in results.row("net").warnings
    assert all(row.status == "measured" and row.latency for row in results.rows)
    assert load_results(tmp_path / "r.json").as_json() == results.as_json()
    jsonschema.validate(results.as_json(), json.loads(SCHEMA.read_text()))


def test_nothing_is_timed_once_a_profiler_was_on(
    tiny_file: MakePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, model = workers_here.install(monkeypatch), str(tiny_file("mlp"))
    qcompile.benchmark(
        {"a": model, "b": model}, baseline="a", layer_times=True, batch_sizes=[2], clients=[2], threads=1,
        max_time_s=0.1,
    )  # fmt: skip
    assert workers.asked[-2:] == [("a", "layer_times"), ("b", "layer_times")]
    assert [do for _, do in workers.asked].count("layer_times") == 2
    asked = [do for of, do in workers.asked if of == "a"]
    assert asked[asked.index("clients") - 1] == "feed"  # after batches of 2, what was timed first


def test_on_a_gpu_onnx_runtime_tells_none() -> None:
    with pytest.raises(EngineUnavailable, match="on a GPU: its profile has only host times"):
        engine("onnxruntime").kernel_times("m.onnx", {}, device=0)


def test_the_slowest_are_shown_and_all_further_ones_together() -> None:
    times_ms = {f"layer {number}": float(number) for number in range(1, 13)}
    cells = slowest_layers(Row("a", "a.onnx", "onnxruntime", layer_times_ms=times_ms))
    assert cells[0] == ("layer 12", "12.0", "15.4%")
    assert cells[-3:] == [
        ("layer 3", "3.00", "3.8%"), ("2 further layers", "3.00", "3.8%"), ("together", "78.0", "100.0%"),
    ]  # fmt: skip
    assert len(cells) == 12
