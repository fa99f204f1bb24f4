"""CUDA graphs of a bench: by default where an inference can be captured, and every row says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import simulated_whole
import workers_here
from simulated_cuda import SimulatedGpu
from tensorrt_simulation import read_model
from workers_here import WorkersHere

import qcompile
from qcompile.bench.results.render import render
from qcompile.bench.results.results import Results, load_results
from qcompile.errors import ModelError

pytestmark = pytest.mark.usefixtures("short_blocks")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimulatedGpu:
    return simulated_whole.install(monkeypatch, tmp_path, "11.4")


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> WorkersHere:
    return workers_here.install(monkeypatch)


def build(name: str, folder: Path) -> tuple[Path, Path]:
    """A model, and the engine that is built of it."""
    model = folder / f"{name}.onnx"
    onnx.save(read_model(name), model)
    shapes = {f"{kind}_shapes": {"x": (rows, 4)} for kind, rows in (("min", 1), ("opt", 2), ("max", 8))}
    return model, qcompile.build(model, folder / f"{name}.engine", target="tensorrt", **shapes).path


def measure(name: str, folder: Path, **options: Any) -> Results:
    """An engine against the model it is built of."""
    model, engine = build(name, folder)
    artifacts = {"model": str(model), "engine": str(engine)}
    given = {"baseline": "model", "batch_size": 2, "threads": 1, "max_time_s": 0.2, **options}
    return qcompile.benchmark(artifacts, **given)


def refuse(gpu: SimulatedGpu, call: str) -> None:
    """Let a call of CUDA or of TensorRT fail from now on."""
    ordinary = gpu.enter
    gpu.enter = lambda name: name == call or ordinary(name)  # type: ignore[method-assign]


def modes(workers: WorkersHere, name: str = "engine") -> list[str]:
    """The modes that an artifact was loaded in, one a launch."""
    return [do.partition(" ")[2] for of, do in workers.asked if of == name and do.startswith("load")]


def test_by_default_the_one_row_of_an_engine_is_of_its_graph(gpu: SimulatedGpu, tmp_path: Path) -> None:
    results = measure("negate", tmp_path, output=tmp_path / "r.json")
    assert [(row.name, row.mode, row.status) for row in results.rows] == [
        ("model", "eager", "measured"), ("engine", "cuda-graph", "measured"),
    ]  # fmt: skip
    row = results.row("engine")
    assert render(row, "model").runtime == "TensorRT (cuda-graph)"
    assert "a CUDA graph of execute_async_v3" in row.contains
    assert not [text for text in row.warnings if "graph" in text]
    assert gpu.launches > 100
    assert results.settings["cuda_graph"] is None
    assert load_results(tmp_path / "r.json").row("engine").mode == "cuda-graph"


@pytest.mark.parametrize(
    ("name", "call", "reason"),
    [
        ("negate", "cuStreamBeginCapture", "it cannot be captured in a CUDA graph: "),
        ("nonzero", "", "output 'places': its shape depends on data, which no CUDA graph can capture"),
    ],
)
def test_an_engine_that_cannot_be_captured_runs_without_and_says_why(
    gpu: SimulatedGpu, workers: WorkersHere, tmp_path: Path, name: str, call: str, reason: str
) -> None:
    refuse(gpu, call)
    results = measure(name, tmp_path, max_time_s=0.5)
    row = results.row("engine")
    assert (row.mode, row.status) == ("eager", "measured")
    [said] = [text for text in row.warnings if text.startswith("measured without a CUDA graph: ")]
    assert reason in said
    assert "graph" not in row.contains
    assert gpu.launches == 0
    first, *later = modes(workers)
    assert first == "cuda-graph"
    assert set(later) == {"eager"}  # no further launch tries it
    assert row.cold_start is not None


def test_a_baseline_that_cannot_be_captured_is_measured_too(gpu: SimulatedGpu, tmp_path: Path) -> None:
    refuse(gpu, "cuStreamBeginCapture")
    results = measure("negate", tmp_path, baseline="engine")
    assert (results.baseline, results.row("engine").mode) == ("engine", "eager")
    assert results.row("model").speedup is not None


def test_layers_of_an_engine_are_timed_last_and_without_its_graph(
    workers: WorkersHere, tmp_path: Path
) -> None:
    results = measure("negate", tmp_path, layer_times=True, clients=[1])
    assert results.row("engine").layer_times_ms == {"Neg_y": 0.5}
    assert results.row("engine").mode == "cuda-graph"
    assert [do for name, do in workers.asked if name == "engine"][-1] == "layer_times"


def test_an_engine_that_fails_has_no_word_of_graphs(gpu: SimulatedGpu, tmp_path: Path) -> None:
    artifacts = dict(zip(("model", "engine"), map(str, build("negate", tmp_path)), strict=True))
    refuse(gpu, "execute_async_v3")
    options: dict[str, Any] = {"batch_size": 2, "threads": 1, "max_time_s": 0.2}
    row = qcompile.benchmark(artifacts, baseline="model", **options).row("engine")
    assert (row.status, row.warnings) == ("failed", ())
    assert "the engine failed" in row.reason
    with pytest.raises(ModelError, match="the engine failed"):
        qcompile.benchmark([artifacts["engine"]], baseline=artifacts["engine"], **options)


ENGINE, GRAPH = ("engine", "eager", "measured"), "engine (CUDA graph)"


@pytest.mark.parametrize(
    ("cuda_graph", "call", "rows"),
    [
        (True, "", [ENGINE, (GRAPH, "cuda-graph", "measured")]),
        (True, "cuStreamBeginCapture", [ENGINE, (GRAPH, "cuda-graph", "failed")]),
        (False, "", [ENGINE]),
    ],
)
def test_with_both_a_row_is_added_and_without_nothing_is_captured(
    gpu: SimulatedGpu, tmp_path: Path, cuda_graph: bool, call: str, rows: list[tuple[str, str, str]]
) -> None:
    refuse(gpu, call)
    results = measure("negate", tmp_path, cuda_graph=cuda_graph)
    assert [(row.name, row.mode, row.status) for row in results.rows[1:]] == rows
    assert not [text for row in results.rows for text in row.warnings if "CUDA graph" in text]
    assert bool(gpu.launches) == (cuda_graph and not call)
