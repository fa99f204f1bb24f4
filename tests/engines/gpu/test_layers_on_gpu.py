"""The search inside an engine on a real GPU: its builds, its debug tensors, and what it finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import onnx
import pytest
from layer_faults import perturbed

import qcompile
from qcompile.building import engine_graph
from qcompile.comparison.layers import LayerDiff, layer_diff
from qcompile.comparison.layers.rebuild import EngineSource
from qcompile.spec.tensorrt import TensorRTOptions

pytestmark = pytest.mark.gpu

pytest.importorskip("onnxruntime", reason="the reference runs on ONNX Runtime")

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
            str(reference), str(engine), samples=4, source=source, threshold_db=THRESHOLDS_DB[precision]
        )


@pytest.mark.parametrize(("weight", "tensors"), [("w1", ("c1", "r1")), ("w2", ("c2", "a", "r2"))])
def test_the_layer_with_other_weights_is_found(
    engine: Path, precision: str, weight: str, tensors: tuple[str, ...],
    tiny_file: Callable[..., Path], tmp_path: Path,
) -> None:  # fmt: skip
    model, reference = tiny_file("residual"), tmp_path / "reference.onnx"
    onnx.save(perturbed(onnx.load(model), weight, by=1.0), reference)
    diff = search(reference, engine, model, precision)
    assert diff.first_bad is not None, asdict(diff)
    assert diff.first_bad.tensor in tensors, asdict(diff)
    assert diff.engine is not None
    assert diff.engine.builds <= 3 + math.log2(diff.paired)


def test_an_engine_without_a_fault_is_not_built_again(
    engine: Path, precision: str, tiny_file: Callable[..., Path]
) -> None:
    model = tiny_file("residual")
    diff = search(model, engine, model, precision)
    assert diff, asdict(diff)
    assert diff.engine is not None
    assert diff.engine.builds == 0
