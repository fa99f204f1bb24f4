"""The verb: options that contradict each other, what is recorded, and graphs that others get wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mode_models import normal, run, snr_db, static, written
from written_models import model_of, stored

import qcompile
from qcompile.calibration import Method, observe, save_ranges
from qcompile.calibration.ranges_file import merge_files
from qcompile.compiler.quantize.int8.static import inspect_execution, require_executed
from qcompile.compiler.quantize.judge import logits_db
from qcompile.compiler.quantize.quantize import quantize
from qcompile.core.artifact import Artifact, load_artifact
from qcompile.core.processor import is_arm, isa_here, processor
from qcompile.data.batches import Data
from qcompile.engines.openvino import OpenVino
from qcompile.errors import BuildError, CalibrationError, InvalidOption, QCompileError, QuantizationError
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import read_graph
from qcompile.model.sessions.random_input import random_feeds
from qcompile.spec.words import GraphPrecision, GraphTarget

# What others get wrong, each behind a plain product; weights without values are filled with normal ones.
GRAPHS = {
    "a Gemm with factors": """(float[n,8] x) => (float[n,5] y) <float[8,8] v, float[8,5] w, float[5] b> {
        h = MatMul(x, v) y = Gemm <alpha = 0.5, beta = 3.0> (h, w, b) }""",
    "a bias of two axes": """(float[n,8] x) => (float[n,5] y) <float[8,8] v, float[8,5] w, float[1,5] b> {
        h = MatMul(x, v) y = Gemm(h, w, b) }""",
    "a bias of one value": """(float[n,8] x) => (float[n,5] y) <float[8,8] v, float[8,5] w, float[1] b> {
        h = MatMul(x, v) y = Gemm(h, w, b) }""",
    "a shared weight": """(float[n,8] x) => (float[n,8] y) <float[8,8] w, float[8] b> {
        h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, w, b) }""",
    "a batch of weights": """(float[n,2,7,8] x) => (float[n,2,7,5] y) <float[8,8] v, float[2,8,5] w> {
        h = MatMul(x, v) y = MatMul(h, w) }""",
    "an output before a Relu": """(float[n,4,8,8] x) => (float[n,4,6,6] c, float[n,4,6,6] y)
        <float[4,4,3,3] w> { c = Conv(x, w) y = Relu(c) }""",
    "an output that is read": """(float[n,8] x) => (float[n,8] h, float[n,5] y) <float[8,8] v, float[8,5] w> {
        h = MatMul(x, v) y = MatMul(h, w) }""",
    "a channel of zeros": """(float[n,2,4,4] x) => (float[n,2,4,4] y) <float[2,2,1,1] w = {0,0,1,2}> {
        y = Conv(x, w) }""",
    "attention": """(float[n,7,8] x) => (float[n,7,8] y) <float[8,8] q, float[8,8] k> {
        a = MatMul(x, q) b = MatMul(x, k) t = Transpose <perm = [0,2,1]> (b) s = MatMul(a, t)
        p = Softmax <axis = -1> (s) y = MatMul(p, x) }""",
}


def write(text: str, path: Path) -> Path:
    """Write a model in ONNX's text form; weights declared without values are normal ones."""
    onnx.save(model_of(text), path)
    return path


def calibrated(model: Path, data: Path | None = None) -> tuple[Path, Path]:
    """Ranges of a model, and the data they are of: random input unless given."""
    if data is None:
        data = model.with_suffix(".npz")
        np.savez(data, **random_feeds(model_io(read_graph(model).load()).inputs, extent=16))  # type: ignore[arg-type]
    graph, path = read_graph(model), model.with_suffix(".ranges")
    ranges = observe(graph, Data(str(data), graph.io.inputs, batch_size=1))
    ranges.method = Method("minmax")
    save_ranges(ranges, path)
    return path, data


def decibels(detail: str) -> float:
    """The number of a check that says "41.3 dB at output ..."."""
    return float(detail.split(" dB")[0])


@pytest.fixture
def observed(tiny_file: Callable[..., Path], samples: Callable[..., Path]) -> tuple[Path, Path, Path]:
    """The tiny residual model, its ranges and the data."""
    model = tiny_file("residual")
    return model, *calibrated(model, samples("residual"))


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_the_manifest_says_what_was_done_and_how_well(
    target: GraphTarget, observed: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, ranges, data = observed
    artifact = quantize(
        model, tmp_path / "q.onnx", ranges=ranges, target=target, exclude=["conv2"], data=str(data)
    )
    manifest = artifact.manifest
    assert (manifest.target, manifest.precision, manifest.stage) == (target, "int8", "quantize")
    own = {"isa": isa_here()} if target != "tensorrt" else {}
    assert manifest.options == {"exclude": ["conv2"], **own}  # what differs from the defaults
    assert manifest.proof["method"] == "minmax"
    assert manifest.sources["model"] == read_graph(model).digest()
    counts = {"int8": {"Conv": 1, "Gemm": 1}, "fp16": {}, "bf16": {}, "fp32": {"Conv": 1}}
    assert manifest.proof["nodes_by_precision"] == counts
    assert manifest.proof["left_in_float"] == {"conv2": "excluded by 'conv2'"}
    assert decibels(manifest.checks[0].detail) > 25
    assert [text.split(",")[0] for text in manifest.warnings] == (
        ["TensorRT has no good kernel for any layer"] if target == "tensorrt" else []
    )
    assert load_artifact(artifact.path).manifest.as_json() == manifest.as_json()


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
def test_a_quantized_graph_computes_what_the_float_one_does(
    text: str, target: GraphTarget, tmp_path: Path
) -> None:
    model = write(text, tmp_path / "m.onnx")
    ranges, data = calibrated(model)
    artifact = quantize(model, tmp_path / "q.onnx", ranges=ranges, target=target, data=str(data))
    assert decibels(artifact.manifest.checks[0].detail) > 25


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt"])
def test_a_weight_is_quantized_for_its_layer_alone_where_others_read_it_too(
    target: GraphTarget, tmp_path: Path
) -> None:
    # A lookup, an excluded layer and an output read floats; the second product has its channels elsewhere.
    text = """(int64[n,4] i) => (float[n,64] y, float[n,64] z, float[1024,64] w) {
        e = Gather(t, i) m = ReduceMean <axes = [1], keepdims = 0> (e) g = Gemm <transB = 1> (m, t)
        a = MatMul(g, t) r = Relu(a) [first] b = MatMul(r, v) [second] y = Gemm <transB = 1> (b, v)
        [left] z = MatMul(r, v) w = Identity(t) }"""
    weights = {"t": normal(1024, 64), "v": normal(64, 64) * np.linspace(0.01, 1, 64, dtype=np.float32)}
    onnx.save(model_of(text, **weights), model := tmp_path / "m.onnx")
    np.savez(data := tmp_path / "d.npz", i=np.random.default_rng(0).integers(0, 1024, (16, 4)))
    ranges, _ = calibrated(model, data)
    artifact = quantize(
        model,
        tmp_path / "q.onnx",
        ranges=ranges,
        target=target,
        exclude=["left"],
        search=False,
        data=str(data),
    )
    assert decibels(artifact.manifest.checks[0].detail) > 25
    proto = onnx.load(artifact.path)
    made_by = {name: node.op_type for node in proto.graph.node for name in node.output}
    reads = {node.name or node.op_type: node.input for node in proto.graph.node}
    np.testing.assert_array_equal(stored(proto)[reads["left"][1]], weights["v"])
    assert made_by[reads["second"][1]] == "DequantizeLinear"
    assert made_by.get(reads["Identity_w"][0]) is None


def test_what_diff_would_not_let_pass_is_not_handed_out_unless_allowed(
    observed: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, ranges, data = observed
    destroyed = {"ranges": ranges, "method": "percentile:5", "data": str(data)}
    with pytest.raises(QuantizationError, match=r"output 'y' has \d.\d dB.* SNR ≥ 15 dB") as caught:
        quantize(model, tmp_path / "q.onnx", **destroyed)  # type: ignore[arg-type]
    assert "`allow_loss`" in caught.value.hint
    assert not (tmp_path / "q.onnx").exists()
    artifact = quantize(model, tmp_path / "q.onnx", **destroyed, allow_loss=True)  # type: ignore[arg-type]
    (warning,) = artifact.manifest.warnings
    assert "SNR ≥ 15 dB" in warning
    assert [check.passed for check in artifact.manifest.checks] == [False]


def test_ranges_of_another_model_are_refused(
    observed: tuple[Path, Path, Path], tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    other = tiny_file("residual", opset=18, file="other.onnx")
    with pytest.raises(CalibrationError, match="observed on another model") as caught:
        quantize(other, tmp_path / "q.onnx", ranges=observed[1])
    assert "calibrate this very file" in caught.value.hint
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "static INT8 needs the ranges"),
        ({"mode": "dynamic", "target": "tensorrt"}, "only ONNX Runtime supports it"),
        ({"mode": "dynamic", "target": "openvino"}, "only ONNX Runtime supports it"),
        ({"precision": "int4"}, "int4 is for weights alone"),
        ({"precision": "int3"}, "one of int8, fp8, int4, fp16, bf16 is required"),
        ({"precision": "fp8"}, "fp8 with `target` onnxruntime: only TensorRT multiplies FP8"),
        ({"precision": "fp8", "target": "openvino"}, "fp8 with `target` openvino: only TensorRT multiplies"),
        ({"precision": "fp8", "target": "tensorrt", "mode": "dynamic"}, "fp8 with `mode` dynamic"),
        ({"precision": "fp8", "target": "tensorrt"}, "static FP8 needs the ranges"),
        ({"precision": "nvfp4", "target": "tensorrt"}, "one of int8, fp8, int4, fp16, bf16 is required"),
        ({"precision": "fp8", "target": "tensorrt", "layers": {"*": "int8"}}, "`layers` int8 is for static"),
        ({"mode": "dynamic", "float_precision": "fp16"}, "`float_precision` mixes .*; `mode` is dynamic"),
        ({"layers": {"*": "fp16"}, "float_precision": "bf16"}, "fp16 and bf16 in one graph"),
        ({"layers": {"*": "fp8"}}, "PATTERN=PRECISION is required\\n.*fp32, fp16, bf16 or int8"),
        ({"mode": "other"}, "one of static, dynamic, weights is required"),
        ({"mode": "weights", "precision": "int4", "rounding": "gptq"}, "needs samples"),
        ({"mode": "weights", "precision": "int4", "target": "tensorrt", "quant_format": "nbits"},
         "`quant_format` 'nbits' needs ONNX Runtime's own operators"),
    ],
)  # fmt: skip
def test_contradictory_options_are_refused_before_the_work(
    options: dict[str, str], message: str, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption, match=message):
        quantize(tiny_file("mlp"), tmp_path / "q.onnx", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "q.onnx").exists()


def test_nothing_to_quantize_is_refused_with_the_reason(tmp_path: Path) -> None:
    computed = """(float[n,4] x) => (float[n,4] y) <float[16] flat, int64[2] shape = {4,4}> {
        w = Reshape(flat, shape) y = MatMul(x, w) }"""
    upsampled = """(float[n,2,4,4] x) => (float[n,2,4,4] y) <float[2,2,1,1] w> {
        [upsample] y = ConvTranspose(x, w) }"""
    reason = "nothing to quantize: .*upsample.* no integer kernel"
    for text, message, hint in ((computed, "nothing to quantize", "simplify first"), (upsampled, reason, "")):
        model = write(text, tmp_path / "m.onnx")
        with pytest.raises(QuantizationError, match=message) as caught:
            quantize(model, tmp_path / "q.onnx", ranges=calibrated(model)[0], target="onnxruntime")
        assert hint in caught.value.hint
    for options, hint in (({}, "keep the model in float"), ({"exclude": ["*"]}, "narrow `exclude`")):
        with pytest.raises(QuantizationError, match="nothing to quantize") as caught:
            quantize(write(computed, tmp_path / "m.onnx"), tmp_path / "q.onnx", mode="weights", **options)
        assert hint in caught.value.hint


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_half_graph_without_a_half_tensor_is_refused(precision: GraphPrecision, tmp_path: Path) -> None:
    text = "(double[n,4] x) => (double[n,4] y) { h = MatMul(x, w) y = Relu(h) }"
    onnx.save(model_of(text, w=normal(4, 4).astype(np.float64)), tmp_path / "m.onnx")
    with pytest.raises(QuantizationError, match=r"no node could become .*16: it has no tensor"):
        quantize(tmp_path / "m.onnx", tmp_path / "h.onnx", precision=precision)


@pytest.mark.parametrize("first", ["int8", "fp16"])
@pytest.mark.parametrize("second", ["int8", "fp16"])
def test_a_model_is_not_quantized_a_second_time(
    first: str, second: str, observed: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, ranges, data = observed
    once = quantize(model, tmp_path / "once.onnx", ranges=ranges, precision=first).path  # type: ignore[arg-type]
    again, _ = calibrated(once, data)
    with pytest.raises(QCompileError, match=f"{first} already"):
        quantize(once, tmp_path / "twice.onnx", ranges=again, precision=second)  # type: ignore[arg-type]


def test_fp16_says_how_many_activations_its_ranges_do_not_hold(tmp_path: Path) -> None:
    text = """(float[n,4] x) => (float[n,4] y) <float[4,4] w, float[1] two = {2}> {
        m = MatMul(x, w) d = Mul(m, two) t = Tanh(d) y = MatMul(t, w) }"""
    model, data, ranges = write(text, tmp_path / "m.onnx"), tmp_path / "d.npz", tmp_path / "m.ranges"
    np.savez(data, x=np.ones((4, 4), np.float32))
    qcompile.calibrate(model, str(data), ranges, targets=["tensorrt"])
    partly = quantize(model, tmp_path / "a.onnx", ranges=ranges, precision="fp16", target="tensorrt")
    assert any("1 of 5 activations are not in the ranges" in text for text in partly.manifest.warnings)
    wholly = quantize(model, tmp_path / "b.onnx", data=str(data), precision="fp16", target="tensorrt")
    assert not any("not in the ranges" in text for text in wholly.manifest.warnings)


@pytest.mark.parametrize(("count", "words"), [(1, "1 sample"), (8, "8 samples"), (9, "")])
def test_few_samples_are_a_warning(count: int, words: str, tmp_path: Path) -> None:
    text = "(float[n,4] x) => (float[n,4] y) <float[4,4] v> { m = MatMul(x, v) y = Relu(m) }"
    model, data, usual = write(text, tmp_path / "m.onnx"), tmp_path / "d.npz", "; 64 to 256 are usual"
    np.savez(data, x=normal(9, 4))

    def few(artifact: Artifact) -> list[str]:
        return [warning for warning in load_artifact(artifact.path).manifest.warnings if usual in warning]

    ranges = qcompile.calibrate(model, str(data), tmp_path / "m.ranges", samples=count)
    assert few(ranges) == [f"calibrated on {words}{usual}"] * bool(words)
    made = quantize(model, tmp_path / "q.onnx", ranges=ranges.path, data=str(data))
    assert few(made) == few(ranges)
    spec = f"{data}?samples={count}"
    judged = quantize(model, tmp_path / "w.onnx", data=spec, precision="fp16", target="tensorrt")
    assert few(judged) == [f"the data has {words}{usual}"] * bool(words)
    parts = [qcompile.calibrate(model, str(data), tmp_path / n, samples=count, shard=f"{n}/2") for n in "12"]
    assert not any(map(few, parts))
    assert few(merge_files([part.path for part in parts], tmp_path / "whole")) == few(ranges)


def test_avx2_gets_weights_whose_pairs_fit_in_16_bits(residual: Path, tmp_path: Path) -> None:
    """It is right on every processor; the file for VNNI only there, so it is not run here."""
    largest, x = {}, str(tmp_path / "x.npz")
    ranges = qcompile.calibrate(residual, x, tmp_path / "m.ranges").path
    for name in ("avx512-vnni", "avx2"):
        artifact = qcompile.quantize(residual, tmp_path / f"{name}.onnx", ranges=ranges, isa=name)
        assert artifact.manifest.options["isa"] == name
        arrays = stored(onnx.load(artifact.path)).values()
        weights = [array.astype(int) for array in arrays if array.dtype == np.int8 and array.ndim > 1]
        assert len(weights) == 3
        depths = [w.transpose(0, 2, 3, 1).reshape(len(w), -1) if w.ndim == 4 else w for w in weights]
        pairs = [depth.reshape(len(depth), -1, 2) for depth in depths]
        sums = [np.where(pair * sign > 0, pair, 0).sum(-1) for pair in pairs for sign in (1, -1)]
        largest[name] = max(int(np.abs(values).max()) for values in sums)
        assert all(127 >= np.abs(w).max() > 64 for w in weights)
    assert largest["avx2"] <= 128 < largest["avx512-vnni"]
    seen = np.load(x)["x"]
    assert snr_db(run(residual, x=seen), run(artifact.path, x=seen)) > 30


def test_arm_gets_int8_activations_that_run(residual: Path, tmp_path: Path) -> None:
    artifact = static(residual, tmp_path, isa="neon")
    points = {n.input[2] for n in onnx.load(artifact.path).graph.node if n.op_type == "QuantizeLinear"}
    values = stored(onnx.load(artifact.path))
    assert {values[name].dtype.name for name in points} == {"int8"}
    x = np.load(tmp_path / "x.npz")["x"]
    assert snr_db(run(residual, x=x), run(artifact.path, x=x)) > 30
    assert artifact.manifest.proof["as_executed"]["int8"] == {"QLinearConv": 2, "QGemm": 1}  # type: ignore[index]


@pytest.mark.skipif("aarch64" in str(processor()).lower(), reason="ONNX Runtime fuses int8 activations there")
def test_what_onnx_runtime_does_not_fuse_is_named(residual: Path, tmp_path: Path) -> None:
    path = static(residual, tmp_path, isa="neon").path
    planned = ["conv1", "conv2", "gemm"]
    graph = read_graph(path)
    _, missed, _ = inspect_execution(graph, planned)
    assert missed == dict.fromkeys(["conv1", "conv2"], "ONNX Runtime computes it in fp32")
    said = r"executes 1 of 3 .* 99\.9% of the planned multiply-adds stay in float: conv1"
    with pytest.raises(QuantizationError, match=said) as caught:
        require_executed(graph.model, planned, missed)
    assert caught.value.data["nodes"] == ["conv1", "conv2"]
    (warning,) = require_executed(graph.model, planned, {"gemm": "for a test"})
    assert "0.1% of the planned multiply-adds stay in float: gemm" in warning
    assert require_executed(graph.model, planned, {}) == []


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
    assert any("speed does not apply to ARM" in text for text in manifest.warnings)
    proto = onnx.load(built.path)
    assert {node.domain for node in proto.graph.node} <= {"", "com.microsoft"}
    assert {array.dtype.name for array in stored(proto).values() if array.ndim == 4} == {"int8"}
    float_model = qcompile.build(model, tmp_path / "f.onnx", target="onnxruntime", isa="neon")
    assert {node.domain for node in onnx.load(float_model.path).graph.node} <= {"", "com.microsoft"}
    with qcompile.load(built.path) as runner, np.load(tmp_path / "x.npz") as samples:
        assert snr_db(run(model, x=samples["x"]), runner.infer({"x": samples["x"]})["y"]) > 25


@pytest.mark.parametrize("target", ["quantize", "onnxruntime", "openvino"])
def test_int8_that_is_slower_here_says_so(
    target: GraphTarget, observed: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run on the sample, and only where the file is for this processor."""

    def note(plain: Callable[[], object], other: Callable[[], object]) -> list[str]:
        return ["slower"] if plain() is not None and other() is not None else []

    model, ranges, data = observed
    home = "compiler.quantize.quantize" if target == "quantize" else "engines.build"
    monkeypatch.setattr(f"qcompile.{home}.slower_note", note)
    options: dict[str, Any] = {"ranges": ranges, "data": str(data)}
    if target != "quantize":
        options |= {"target": target, "precision": "int8"}
    work = qcompile.quantize if target == "quantize" else qcompile.build
    assert "slower" in work(model, tmp_path / "m.onnx", **options).manifest.warnings
    other = "avx2" if isa_here() != "avx2" else "avx512-vnni"
    made = work(model, tmp_path / "other.onnx", **options, isa=other)
    assert "slower" not in made.manifest.warnings


def test_a_float_file_that_the_runtime_refuses_fails_no_build(
    observed: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is built from after it was rewritten for the runtime; its speed is then not told."""

    def refused(_: OpenVino, artifact: str, **__: object) -> None:
        raise BuildError(f"{artifact}: OpenVINO refuses it")

    model, ranges, data = observed
    monkeypatch.setattr(OpenVino, "open", refused)
    made = qcompile.build(
        model, tmp_path / "m.onnx", target="openvino", precision="int8", ranges=ranges, data=str(data)
    )
    assert made.manifest.precision == "int8"


def test_methods_are_compared_by_the_logits_of_probabilities(tmp_path: Path) -> None:
    """Probabilities next to 0 and 1 have many decibels on the samples that judge, whatever is clipped."""
    generator = np.random.default_rng(1)
    logits, noise = generator.normal(0, 3, (2, 16, 10)), generator.normal(0, 0.1, (16, 10))
    centred, error = (values - values.mean(-1, keepdims=True) for values in (logits[0], noise))
    found = logits_db([_softmax(logits[0])], [_softmax(logits[0] + noise)])
    assert found == pytest.approx(10 * np.log10((centred**2).sum() / (error**2).sum()), abs=1e-6)
    assert logits_db([_softmax(logits[0])], [np.full((16, 10), np.nan)]) == -np.inf
    assert logits_db([logits[0]], [logits[0]]) is None
    text = (
        "(float[n,16] x) => (float[n,10] y) { h = MatMul(x, w) r = Relu(h) s = MatMul(r, v) y = Softmax(s) }"
    )
    generator = np.random.default_rng(0)
    weights = {"w": 3 * generator.standard_normal((16, 32)), "v": generator.standard_normal((32, 10))}
    model = written(tmp_path / "m.onnx", text, **{name: w.astype("f") for name, w in weights.items()})
    np.savez(tmp_path / "x.npz", x=(generator.standard_normal((64, 16)) ** 3).astype("f"))
    proof = static(model, tmp_path, method="auto").manifest.proof
    best, *others = proof["search"]  # type: ignore[misc]
    assert len(others) > 3
    for tried in others:
        least_db = 0.0 if "biases" in tried["tried"] else 0.2
        best = tried if tried.get("choice_db", -np.inf) >= best["choice_db"] + least_db else best
    others_than_auto = ("minmax", "percentile:99.99", "entropy")
    assert proof["method"] == (best["tried"] if best["tried"] in others_than_auto else "auto")


def _softmax(values: Any) -> Any:
    exponents = np.exp(values - values.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)
