"""ONNX Runtime's engine: the proof counts what will run, and the runner converts nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import parser

from qcompile.artifact import Artifact, Manifest
from qcompile.calibration import calibrate
from qcompile.compiler.quantize.quantize import quantize
from qcompile.engines import load
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine
from qcompile.errors import BuildError, DataError, IntentNotReached, ModelError
from qcompile.model.onnx_file import count_operators, load_onnx
from qcompile.model.output_error import output_error
from qcompile.model.weightless import fingerprint
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import GraphTarget, Precision

MakeFile = Callable[..., Path]


def build(
    model: Path, precision: Precision, *, output: str = "built.onnx", fallback: bool = False
) -> Artifact:
    """Build for ONNX Runtime."""
    spec = BuildSpec(target="onnxruntime", precision=precision, allow_fallback=fallback)
    return build_engine(BuildRequest(str(model), model.with_name(output), spec))


def normal(*shape: int) -> NDArray[np.float32]:
    """Normal float32 values."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.fixture
def quantized(tiny_file: MakeFile, samples: MakeFile, tmp_path: Path) -> Callable[[GraphTarget], Path]:
    """`quantized("tensorrt")` returns the tiny residual model with Q/DQ for a target."""

    def make(target: GraphTarget) -> Path:
        model = tiny_file("residual")
        ranges = calibrate(model, str(samples("residual")), tmp_path / "r.ranges", method="minmax").path
        return quantize(model, tmp_path / f"{target}.onnx", ranges=ranges, target=target).path

    return make


def layers_by_precision(manifest: Manifest) -> dict[str, Any]:
    """The layers of each precision that has any; all three are planned and reached."""
    assert manifest.proof["planned_in_precision"] == manifest.proof["reached_in_precision"] == 3
    found = manifest.proof["layers_by_precision"]
    assert isinstance(found, dict)
    assert set(found) == {"int8", "fp16", "bf16", "fp32"}
    return {precision: layers for precision, layers in found.items() if layers}


def test_the_proof_of_fp32_counts_every_layer_that_computes(tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    manifest = build(model, "fp32").manifest
    assert layers_by_precision(manifest) == {"fp32": {"Conv": 2, "Gemm": 1}}
    assert manifest.sources == {"model": fingerprint(model), "graph": fingerprint(model)}
    assert manifest.tools["onnxruntime"] == onnxruntime.__version__
    assert manifest.device["architecture"]
    assert manifest.checks[0].passed


def test_the_proof_of_int8_counts_integer_kernels_which_compute_what_the_model_does(
    quantized: Callable[[GraphTarget], Path], tiny_file: MakeFile
) -> None:
    artifact = build(quantized("onnxruntime"), "int8")
    assert layers_by_precision(artifact.manifest) == {"int8": {"QLinearConv": 2, "QGemm": 1}}
    x = normal(8, 4, 8, 8)
    with load(artifact.path) as int8, load(tiny_file("residual")) as fp32:
        assert output_error(fp32.infer({"x": x})["y"], int8.infer({"x": x})["y"]).snr_db > 20


def test_what_computes_in_float_here_is_not_called_int8(
    quantized: Callable[[GraphTarget], Path], tiny_file: MakeFile
) -> None:
    model = quantized("tensorrt")
    for path in (model, tiny_file("residual")):
        with pytest.raises(IntentNotReached, match="int8 was asked for"):
            build(path, "int8")
    kept = build(model, "int8", fallback=True)
    computed = count_operators(load_onnx(kept.path))
    assert not {"QLinearConv", "com.microsoft::QLinearConv"} & set(computed)
    assert kept.manifest.proof["reached_in_precision"] == 0


def test_fp16_that_is_computed_in_fp32_is_not_reached_and_kept_where_that_is_allowed(
    tiny_file: MakeFile, tmp_path: Path
) -> None:
    half = quantize(tiny_file("mlp"), tmp_path / "half.onnx", precision="fp16").path
    said = r"fp16 was asked for; 0 of 2 layers .* \(2 in fp32\)"
    with pytest.raises(IntentNotReached, match=said) as caught:
        build(half, "fp16")
    assert caught.value.data["proof"]
    assert "`allow_fallback`" in caught.value.hint
    assert not (tmp_path / "built.onnx").exists()
    artifact = build(half, "fp16", fallback=True)
    (warning,) = artifact.manifest.warnings
    assert warning.startswith("fp16 was asked for; 0 of 2 layers")
    assert artifact.manifest.proof["reached_in_precision"] == 0


def test_a_model_without_layers_that_compute_is_built_in_fp32(tiny_file: MakeFile) -> None:
    with load(build(tiny_file("elementwise"), "fp32").path) as runner:
        found = runner.infer({"x": np.zeros((2, 4), np.float32)})["y"]
    np.testing.assert_allclose(found, np.full((2, 4), 1.5))


def test_a_model_that_the_runtime_refuses_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
        tiny (float[n,3] x) => (float[n,3] y) { y = com.example.Unknown(x) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(BuildError, match=r"ONNX Runtime refuses it: .*Unknown"):
        build(tmp_path / "m.onnx", "fp32")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_the_runner_takes_any_batch_and_names_its_outputs(tiny_file: MakeFile) -> None:
    with load(tiny_file("residual")) as runner:
        assert [str(tensor) for tensor in runner.io.inputs] == ["x:[batch,4,8,8]:float32"]
        assert [str(tensor) for tensor in runner.io.outputs] == ["y:[batch,3]:float32"]
        for batch in (1, 5):
            assert runner.infer({"x": normal(batch, 4, 8, 8)})["y"].shape == (batch, 3)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"x": normal(2, 16).astype(np.float64)}, "input 'x' is float64; float32 is required"),
        ({"x": normal(2, 16).astype(np.float16)}, "input 'x' is float16; float32 is required"),
        ({"x": normal(2, 15)}, r"input 'x' has shape 2x15; \[batch,16\] is required"),
        ({"x": normal(16)}, r"input 'x' has shape 16; \[batch,16\] is required"),
        ({"z": normal(2, 16)}, "no input 'z' in the model; it takes x"),
        ({}, "input 'x' is missing"),
    ],
)
def test_feeds_that_do_not_fit_are_refused_and_never_converted(
    feeds: dict[str, NDArray[np.generic]], message: str, tiny_file: MakeFile
) -> None:
    with load(tiny_file("mlp")) as runner:
        with pytest.raises(DataError, match=message):
            runner.infer(feeds)
        with pytest.raises(DataError, match=message):
            runner.time(feeds, 1)


def test_time_returns_as_many_positive_nanoseconds_as_asked_for(tiny_file: MakeFile) -> None:
    with load(tiny_file("mlp"), threads=1) as runner:
        for iterations in (1, 7):
            durations = runner.time({"x": normal(4, 16)}, iterations)
            assert (durations.shape, durations.dtype) == ((iterations,), np.int64)
            assert (durations > 0).all()
        assert runner.contains == "host to host: one session.run()"


def test_a_model_that_fails_while_it_runs_is_an_error_of_the_model(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        tiny (float[n,m] x, float[k,l] z) => (float[a,b] y) { y = Add(x, z) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    with load(tmp_path / "m.onnx") as runner, pytest.raises(ModelError, match="ONNX Runtime fails"):
        runner.infer({"x": normal(2, 3), "z": normal(4, 5)})
