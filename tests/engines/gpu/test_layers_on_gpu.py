"""Engines beside ONNX Runtime on a real GPU: the search inside one, its builds, and what it finds.

EPContext files in ONNX Runtime with NVIDIA's plugin, which must load them without building anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from layer_faults import perturbed

import qcompile
from qcompile.bench.diff.layers.compare import layer_diff
from qcompile.bench.diff.layers.outcome import LayerDiff
from qcompile.bench.diff.layers.rebuild import EngineSource
from qcompile.building.build import engine_graph
from qcompile.building.deploy import package_ep_context
from qcompile.engines.gpu import find_gpu
from qcompile.spec.tensorrt import TensorRTOptions

pytestmark = pytest.mark.gpu

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

THRESHOLDS_DB = {"fp32": 60.0, "fp16": 30.0}
"""Below what TF32 and half precision may lose, above what the faults here do."""


@pytest.fixture(params=THRESHOLDS_DB)
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(precision: str, tiny_file: Callable[..., Path], tmp_path: Path) -> Path:
    """An engine of the residual model."""
    trt = pytest.importorskip("tensorrt")
    kept = ("none",) if trt.__version__.startswith("8.") else ()  # without cuBLAS and cuDNN
    path = tmp_path / "m.engine"
    options = TensorRTOptions(timing_cache="off", tactic_sources=kept)
    qcompile.build(tiny_file("residual"), path, target="tensorrt", precision=precision, tensorrt=options)
    return path


def search(reference: Path, engine: Path, model: Path, precision: str) -> LayerDiff:
    with engine_graph(engine, model) as (lowered, spec):
        profiles = qcompile.load_artifact(engine).manifest.proof["profiles"]
        source = EngineSource(Path(lowered.path), spec, lowered.layers, profiles=profiles)  # type: ignore[arg-type]
        return layer_diff(
            str(reference), str(engine), samples=4, source=source, threshold=THRESHOLDS_DB[precision]
        )


@pytest.mark.parametrize(("weight", "tensors"), [("w1", ("c1", "r1")), ("w2", ("c2", "a", "r2"))])
def test_the_layer_with_other_weights_is_found(
    engine: Path, precision: str, weight: str, tensors: tuple[str, ...],
    tiny_file: Callable[..., Path], tmp_path: Path,
) -> None:  # fmt: skip
    model, reference = tiny_file("residual"), tmp_path / "reference.onnx"
    onnx.save(perturbed(onnx.load(model), weight, by=1.0), reference)
    diff = search(reference, engine, model, precision)
    assert diff.first_bad is not None, diff.as_json()
    assert diff.first_bad.tensor in tensors, diff.as_json()
    assert diff.engine is not None
    assert diff.engine.builds <= 3 + math.log2(diff.pairs.paired)


def test_an_engine_without_a_fault_is_not_built_again(
    engine: Path, precision: str, tiny_file: Callable[..., Path]
) -> None:
    model = tiny_file("residual")
    diff = search(model, engine, model, precision)
    assert diff, diff.as_json()
    assert diff.engine is not None
    assert diff.engine.builds == 0


PROVIDER = "NvTensorRTRTXExecutionProvider"


@pytest.mark.parametrize("embed", [False, True])
def test_the_provider_computes_what_the_model_does(
    embed: bool, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    plugin = pytest.importorskip(
        "onnxruntime_ep_nv_tensorrt_rtx", reason="onnxruntime-ep-nv-tensorrt-rtx is not installed"
    )
    gpu = find_gpu()
    assert gpu is not None
    model = tiny_file("residual", batch=2)
    qcompile.build(model, tmp_path / "m.engine", target="tensorrt-rtx", gpus=[gpu.architecture])
    path = package_ep_context(tmp_path / "m.engine", tmp_path / "m_ctx.onnx", embed=embed).path
    if PROVIDER not in {device.ep_name for device in ort.get_ep_devices()}:
        ort.register_execution_provider_library(PROVIDER, plugin.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    assert devices, f"{PROVIDER} takes no GPU here"
    options = ort.SessionOptions()
    options.add_provider_for_devices(devices[:1], {})
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)}
    (found,) = ort.InferenceSession(str(path), options).run(None, feeds)
    (expected,) = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, feeds)
    assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()
