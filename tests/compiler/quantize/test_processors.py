"""The placement for each processor, and what ONNX Runtime executes of it here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from mode_models import normal, run, snr_db, static, stored, written

import qcompile
from qcompile.compiler.quantize.int8.static import executed, require_executed
from qcompile.errors import QuantizationError
from qcompile.processor import is_arm, processor


def test_avx2_gets_weights_whose_pairs_fit_in_16_bits(residual: Path, tmp_path: Path) -> None:
    """It is right on every processor; the file for VNNI only there, so it is not run here."""
    largest, x = {}, str(tmp_path / "x.npz")
    ranges = qcompile.calibrate(residual, x, tmp_path / "m.ranges").path
    for name in ("avx512-vnni", "avx2"):
        artifact = qcompile.quantize(residual, tmp_path / f"{name}.onnx", ranges=ranges, isa=name)
        assert artifact.manifest.options["isa"] == name
        weights = [a.astype(int) for a in stored(artifact.path).values() if a.dtype == np.int8 and a.ndim > 1]
        assert len(weights) == 3
        depths = [w.transpose(0, 2, 3, 1).reshape(len(w), -1) if w.ndim == 4 else w for w in weights]
        pairs = [depth.reshape(len(depth), -1, 2) for depth in depths]
        largest[name] = max(
            int(np.abs(np.where(p * s > 0, p, 0).sum(-1)).max()) for p in pairs for s in (1, -1)
        )
        assert all(127 >= np.abs(w).max() > 64 for w in weights)
    assert largest["avx2"] <= 128 < largest["avx512-vnni"]
    seen = np.load(x)["x"]
    assert snr_db(run(residual, x=seen), run(artifact.path, x=seen)) > 30


def test_arm_gets_int8_activations_that_run(residual: Path, tmp_path: Path) -> None:
    artifact = static(residual, tmp_path, isa="neon")
    points = {n.input[2] for n in onnx.load(artifact.path).graph.node if n.op_type == "QuantizeLinear"}
    values = stored(artifact.path)
    assert {values[name].dtype.name for name in points} == {"int8"}
    x = np.load(tmp_path / "x.npz")["x"]
    assert snr_db(run(residual, x=x), run(artifact.path, x=x)) > 30
    assert artifact.manifest.proof["as_executed"]["int8"] == {"QLinearConv": 2, "QGemm": 1}  # type: ignore[index]


@pytest.mark.skipif("aarch64" in str(processor()).lower(), reason="ONNX Runtime fuses int8 activations there")
def test_what_onnx_runtime_does_not_fuse_is_named(residual: Path, tmp_path: Path) -> None:
    path = static(residual, tmp_path, isa="neon").path
    planned = ["conv1", "conv2", "gemm"]
    _, missed = executed(path, planned)
    assert missed == dict.fromkeys(["conv1", "conv2"], "ONNX Runtime computes it in fp32")
    said = r"executes 1 of 3 .* 99\.9% of the planned multiply-adds stay in float: conv1"
    with pytest.raises(QuantizationError, match=said) as caught:
        require_executed(path, planned, missed)
    assert caught.value.data["nodes"] == ["conv1", "conv2"]
    (warning,) = require_executed(path, planned, {"gemm": "for a test"})
    assert "0.1% of the planned multiply-adds stay in float: gemm" in warning
    assert require_executed(path, planned, {}) == []


def test_what_is_executed_is_what_a_session_says(residual: Path, tmp_path: Path) -> None:
    artifact = static(residual, tmp_path, exclude=["conv2"])
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(artifact.path), options, providers=["CPUExecutionProvider"])
    computes = ("QLinearConv", "QGemm", "QLinearMatMul", "Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul")
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    computing = {name: count for name, count in kinds.items() if name in computes}
    found = artifact.manifest.proof["as_executed"]
    assert isinstance(found, Mapping)
    assert dict(sum((Counter(part) for part in found.values()), Counter())) == computing
    assert found["int8"] == {"QLinearConv": 1, "QGemm": 1}


def test_a_planned_node_that_is_not_fused_is_left_out_of_the_plan(tmp_path: Path) -> None:
    body = """(float[n,4,8,8] x) => (float[n,4,6,6] y) {
        [conv1] c = Conv(x, w, b) r = Relu(c) late = ReduceMean <axes = [0,2,3], keepdims = 0> (r)
        [conv10] d = Conv <pads = [1,1,1,1]> (r, v, late) y = Relu(d) }"""
    weights = {"w": normal(4, 4, 3, 3), "b": normal(4), "v": normal(4, 4, 3, 3)}
    model = written(tmp_path / "m.onnx", body, **weights)
    np.savez(tmp_path / "x.npz", x=normal(16, 4, 8, 8))
    artifact = static(model, tmp_path)
    proof = artifact.manifest.proof
    assert proof["left_in_float"] == {"conv10": "ONNX Runtime computes it in fp32"}
    executed_in = {"int8": {"QLinearConv": 1}, "fp16": {}, "bf16": {}, "fp32": {"FusedConv": 1}}
    assert proof["as_executed"] == executed_in
    quantized = [node for node in onnx.load(artifact.path).graph.node if node.op_type == "QuantizeLinear"]
    assert len(quantized) == 2  # of conv1's input and output alone
    with np.load(tmp_path / "x.npz") as samples:
        x = samples["x"]
    assert snr_db(run(model, x=x), run(artifact.path, x=x)) > 25


@pytest.mark.skipif(is_arm(), reason="there it is built for this processor")
def test_a_build_for_arm_keeps_every_layer_in_int8_and_no_layout_of_this_processor(tmp_path: Path) -> None:
    """Depthwise convolutions, too, which ONNX Runtime on x86 computes in float where activations are int8."""
    body = """(float[n,8,8,8] x) => (float[n,8,8,8] y) {
        [expand] a = Conv(x, w) b = Relu(a)
        [depthwise] c = Conv <group = 16, pads = [1,1,1,1]> (b, v) d = Relu(c)
        [project] y = Conv(d, u) }"""
    weights = {"w": normal(16, 8, 1, 1), "v": normal(16, 1, 3, 3), "u": normal(8, 16, 1, 1)}
    model = written(tmp_path / "m.onnx", body, **weights)
    np.savez(tmp_path / "x.npz", x=normal(16, 8, 8, 8))
    ranges = qcompile.calibrate(model, str(tmp_path / "x.npz"), tmp_path / "m.ranges")
    built = qcompile.build(
        model, tmp_path / "arm.onnx", target="onnxruntime", precision="int8", isa="neon", strict=True,
        ranges=ranges.path, data=str(tmp_path / "x.npz"),
    )  # fmt: skip
    manifest = built.manifest
    assert manifest.proof["layers_by_precision"]["int8"] == {"QLinearConv": 3}  # type: ignore[index]
    assert dict(manifest.device) == {"processor": "ARM", "architecture": "aarch64", "isa": "neon"}
    assert any("speed says nothing about ARM" in text for text in manifest.warnings)
    proto = onnx.load(built.path)
    assert {node.domain for node in proto.graph.node} <= {"", "com.microsoft"}
    assert {array.dtype.name for array in stored(built.path).values() if array.ndim == 4} == {"int8"}
    float_model = qcompile.build(model, tmp_path / "f.onnx", target="onnxruntime", isa="neon")
    assert {node.domain for node in onnx.load(float_model.path).graph.node} <= {"", "com.microsoft"}
    with qcompile.load(built.path) as runner, np.load(tmp_path / "x.npz") as samples:
        assert snr_db(run(model, x=samples["x"]), runner.infer({"x": samples["x"]})["y"]) > 25
