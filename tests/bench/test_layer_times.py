"""Times of layers: told by real runtimes, after everything else; who cannot tell says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import workers_here

import qcompile
from qcompile.bench.results.render import slowest_layers
from qcompile.bench.results.results import SCHEMA, load_results
from qcompile.bench.results.row import Row
from qcompile.engines.registry import engine
from qcompile.errors import EngineUnavailable

pytestmark = pytest.mark.usefixtures("short_blocks")


def test_runtimes_tell_the_times_of_what_they_execute(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
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
    assert "layer times: pytorch tells no time of single layers" in results.row("net").warnings
    assert all(row.status == "measured" and row.latency for row in results.rows)
    assert load_results(tmp_path / "r.json").as_json() == results.as_json()
    jsonschema.validate(results.as_json(), json.loads(SCHEMA.read_text()))


def test_nothing_is_timed_once_a_profiler_was_on(
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, model = workers_here.install(monkeypatch), str(tiny_file("mlp"))
    qcompile.benchmark(
        {"a": model, "b": model}, baseline="a", layer_times=True, batch_sizes=[2], clients=[2], threads=1,
        max_time_s=0.1,
    )  # fmt: skip
    assert workers.asked[-2:] == [("a", "layer_times"), ("b", "layer_times")]
    assert [do for _, do in workers.asked].count("layer_times") == 2
    fed = [do for of, do in workers.asked if of == "a" and do in ("feed", "layer_times")]
    assert fed[-3:] == ["feed", "feed", "layer_times"]  # batches of 2, then what was timed first


def test_on_a_gpu_onnx_runtime_tells_none() -> None:
    with pytest.raises(EngineUnavailable, match="on a GPU: its profile has the host's"):
        engine("onnxruntime").kernel_times("m.onnx", {}, device=0)


def test_the_slowest_are_shown_and_all_further_ones_together() -> None:
    times_ms = {f"layer {number}": float(number) for number in range(1, 13)}
    cells = slowest_layers(Row("a", "a.onnx", "onnxruntime", layer_times_ms=times_ms))
    assert cells[0] == ("layer 12", "12.0", "15.4%")
    assert cells[-3:] == [
        ("layer 3", "3.00", "3.8%"), ("2 further layers", "3.00", "3.8%"), ("together", "78.0", "100.0%"),
    ]  # fmt: skip
    assert len(cells) == 12


def test_files_without_times_and_with_odd_ones_are_read(tmp_path: Path) -> None:
    row = {"name": "a", "artifact": "a.onnx", "engine": "onnxruntime"}
    odd = {"layer_times_ms": {"x": 0.5, "none": None, "zero": 0, "late": float("nan")}}
    path = tmp_path / "r.json"
    path.write_text(json.dumps({
        "kind": "qcompile.results", "schema_version": 2, "baseline": "a", "settings": {}, "environment": {},
        "artifacts": [row, {**row, "name": "b", **odd}],
    }))  # fmt: skip
    assert [one.layer_times_ms for one in load_results(path).rows] == [{}, {"x": 0.5}]
