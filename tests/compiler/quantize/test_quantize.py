"""The verb: options that contradict each other, what is recorded, and graphs that others get wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import qcompile
from qcompile.artifact import load_artifact
from qcompile.calibration import calibrate
from qcompile.compiler.quantize.quantize import quantize
from qcompile.errors import CalibrationError, InvalidOption, QCompileError, QuantizationError
from qcompile.model.onnx_file import load_onnx, model_io, save_onnx
from qcompile.model.random_input import random_feeds
from qcompile.model.weightless import fingerprint
from qcompile.processor import isa_here
from qcompile.spec.words import GraphTarget

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
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> tiny {text}')
    generator = np.random.default_rng(0)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        weight = (generator.standard_normal(shape) * 0.3).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, value.name))
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    save_onnx(model, path)
    return path


def calibrated(model: Path, data: Path | None = None) -> tuple[Path, Path]:
    """Ranges of a model, and the data they are of: random input unless given."""
    if data is None:
        data = model.with_suffix(".npz")
        np.savez(data, **random_feeds(model_io(load_onnx(model)).inputs, extent=16))  # type: ignore[arg-type]
    return calibrate(model, str(data), model.with_suffix(".ranges"), method="minmax").path, data


def decibels(detail: str) -> float:
    """The number of a check that says "41.3 dB at output ..."."""
    return float(detail.split(" dB")[0])


@pytest.fixture
def residual(tiny_file: Callable[..., Path], samples: Callable[..., Path]) -> tuple[Path, Path, Path]:
    """The tiny residual model, its ranges and the data."""
    model = tiny_file("residual")
    return model, *calibrated(model, samples("residual"))


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_the_manifest_says_what_was_done_and_how_well(
    target: GraphTarget, residual: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, ranges, data = residual
    artifact = quantize(
        model, tmp_path / "q.onnx", ranges=ranges, target=target, exclude=["conv2"], data=str(data)
    )
    manifest = artifact.manifest
    assert (manifest.target, manifest.precision, manifest.stage) == (target, "int8", "quantize")
    own = {"isa": isa_here()} if target != "tensorrt" else {}
    assert manifest.options == {"exclude": ["conv2"], **own}  # what differs from the defaults
    assert manifest.proof["method"] == "minmax"
    assert manifest.sources["model"] == fingerprint(model)
    assert manifest.proof["nodes_by_precision"] == {
        "int8": {"Conv": 1, "Gemm": 1},
        "fp16": {},
        "bf16": {},
        "fp32": {"Conv": 1},
    }
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


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_a_weight_in_a_constant_node_is_quantized_like_a_stored_one(
    target: GraphTarget, tmp_path: Path
) -> None:
    text = """(float[n,2] x) => (float[n,2] y) {
        w = Constant <value = float[2,2] {1.0, 2.0, -3.0, 0.5}> () y = MatMul(x, w) }"""
    model = write(text, tmp_path / "m.onnx")
    artifact = quantize(model, tmp_path / "q.onnx", ranges=calibrated(model)[0], target=target)
    assert artifact.manifest.proof["nodes_by_precision"]["int8"] == {"MatMul": 1}  # type: ignore[index]


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_ranges_of_the_default_method_keep_the_signal(
    target: GraphTarget, residual: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, _, data = residual
    ranges = calibrate(model, str(data), tmp_path / "default.ranges").path
    artifact = quantize(model, tmp_path / "q.onnx", ranges=ranges, target=target, data=str(data))
    assert decibels(artifact.manifest.checks[0].detail) > 20


def test_another_method_than_the_files_own_is_recorded_and_used(
    residual: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, ranges, _ = residual
    own = quantize(model, tmp_path / "a.onnx", ranges=ranges)
    other = quantize(model, tmp_path / "b.onnx", ranges=ranges, method="percentile:90")
    assert other.manifest.options["method"] == "percentile:90"
    assert own.path.read_bytes() != other.path.read_bytes()


def test_what_diff_would_not_let_pass_is_not_handed_out_unless_allowed(
    residual: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, ranges, data = residual
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
    residual: tuple[Path, Path, Path], tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    other = tiny_file("residual", opset=18, file="other.onnx")
    with pytest.raises(CalibrationError, match="observed on another model") as caught:
        quantize(other, tmp_path / "q.onnx", ranges=residual[1])
    assert "calibrate this very file" in caught.value.hint
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "static INT8 needs the ranges"),
        ({"mode": "dynamic", "target": "tensorrt"}, "only ONNX Runtime has such a mode"),
        ({"mode": "dynamic", "target": "openvino"}, "only ONNX Runtime has such a mode"),
        ({"precision": "int4"}, "int4 is for weights alone"),
        ({"precision": "int3"}, "one of int8, fp8, int4, nvfp4, mxfp8, fp16, bf16 is required"),
        ({"precision": "fp8"}, "fp8 with `target` onnxruntime: only TensorRT multiplies FP8"),
        (
            {"precision": "fp8", "target": "openvino"},
            "fp8 with `target` openvino: only TensorRT multiplies FP8",
        ),
        ({"precision": "fp8", "target": "tensorrt", "mode": "dynamic"}, "fp8 with `mode` dynamic"),
        ({"precision": "fp8", "target": "tensorrt"}, "static FP8 needs the ranges"),
        ({"precision": "nvfp4"}, "nvfp4 with `target` onnxruntime: only TensorRT multiplies NVFP4"),
        ({"precision": "mxfp8", "target": "openvino"}, "mxfp8 with `target` openvino: only TensorRT"),
        ({"precision": "nvfp4", "target": "tensorrt", "mode": "weights"}, "nvfp4 with `mode` weights"),
        ({"precision": "nvfp4", "target": "tensorrt"}, "static NVFP4 needs the ranges"),
        ({"precision": "mxfp8", "target": "tensorrt", "rounding": "gptq"}, "`rounding` gptq with mxfp8"),
        (
            {"precision": "fp8", "target": "tensorrt", "layers": {"*": "int8"}},
            "`layers` int8 is for static INT8",
        ),
        (
            {"mode": "dynamic", "float_precision": "fp16"},
            "`float_precision` mixes precisions in `mode` static; `mode` is dynamic",
        ),
        ({"layers": {"*": "fp16"}, "float_precision": "bf16"}, "fp16 and bf16 in one graph"),
        ({"layers": {"*": "fp8"}}, "PATTERN=PRECISION is required\\n.*fp32, fp16, bf16 or int8"),
        ({"mode": "other"}, "one of static, dynamic, weights is required"),
    ],
)
def test_contradictory_options_are_refused_before_the_work(
    options: dict[str, str], message: str, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption, match=message):
        quantize(tiny_file("mlp"), tmp_path / "q.onnx", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "q.onnx").exists()


def test_a_model_whose_weights_are_made_by_nodes_is_sent_to_simplify(tmp_path: Path) -> None:
    text = """(float[n,4] x) => (float[n,4] y) <float[16] flat, int64[2] shape = {4,4}> {
        w = Reshape(flat, shape) y = MatMul(x, w) }"""
    model = write(text, tmp_path / "m.onnx")
    with pytest.raises(QuantizationError, match="nothing to quantize") as caught:
        quantize(model, tmp_path / "q.onnx", ranges=calibrated(model)[0])
    assert "simplify first" in caught.value.hint


def test_a_model_without_an_integer_kernel_says_so(tmp_path: Path) -> None:
    text = """(float[n,2,4,4] x) => (float[n,2,4,4] y) <float[2,2,1,1] w> {
        [upsample] y = ConvTranspose(x, w) }"""
    model = write(text, tmp_path / "m.onnx")
    with pytest.raises(QuantizationError, match=r"nothing to quantize: .*upsample.* no integer kernel"):
        quantize(model, tmp_path / "q.onnx", ranges=calibrated(model)[0], target="onnxruntime")


@pytest.mark.parametrize("first", ["int8", "fp16"])
@pytest.mark.parametrize("second", ["int8", "fp16"])
def test_a_model_is_not_quantized_a_second_time(
    first: str, second: str, residual: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, ranges, data = residual
    once = quantize(model, tmp_path / "once.onnx", ranges=ranges, precision=first).path  # type: ignore[arg-type]
    again, _ = calibrated(once, data)
    with pytest.raises(QCompileError, match=f"{first} already"):
        quantize(once, tmp_path / "twice.onnx", ranges=again, precision=second)  # type: ignore[arg-type]


def test_fp16_keeps_inputs_and_outputs_and_is_measured(
    residual: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    artifact = quantize(residual[0], tmp_path / "h.onnx", precision="fp16", exclude=["Gemm"])
    assert artifact.manifest.io == model_io(load_onnx(residual[0])) == model_io(load_onnx(artifact.path))
    assert artifact.manifest.proof["nodes_by_precision"] == {
        "int8": {},
        "fp16": {"Conv": 2},
        "bf16": {},
        "fp32": {"Gemm": 1},
    }
    assert artifact.manifest.proof["left_in_float"] == {"gemm": "excluded by 'Gemm'"}
    assert decibels(artifact.manifest.checks[0].detail) > 40


def test_an_activation_that_overflows_float16_on_the_data_is_kept_in_float32_or_refused(
    tmp_path: Path,
) -> None:
    text = """(float[n,4] x) => (float[n,4] y) <float[1] large = {60000}, float[4,4] w> {
        a = Mul(x, large) b = Div(a, large) y = MatMul(b, w) }"""
    model = write(text, tmp_path / "m.onnx")
    x = np.full((2, 4), 9, np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    with suppress(QuantizationError), np.errstate(over="ignore", invalid="ignore"):
        half = quantize(model, tmp_path / "h.onnx", precision="fp16", data=str(tmp_path / "data.npz"))
        (found,) = ReferenceEvaluator(str(half.path)).run(None, {"x": x})  # float16 where the graph says so
        assert np.isfinite(found).all()


def test_fp16_says_how_many_activations_its_ranges_do_not_hold(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y)
        <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, float[1] two = {2}>
        { m = MatMul(x, w) d = Mul(m, two) t = Tanh(d) y = MatMul(t, w) }"""
    )
    model, data, ranges = tmp_path / "m.onnx", tmp_path / "d.npz", tmp_path / "m.ranges"
    onnx.save(made, model)
    np.savez(data, x=np.ones((4, 4), np.float32))
    qcompile.calibrate(model, str(data), ranges, targets=["tensorrt"])
    partly = quantize(model, tmp_path / "a.onnx", ranges=ranges, precision="fp16", target="tensorrt")
    assert any("1 of 5 activations are not in the ranges" in text for text in partly.manifest.warnings)
    wholly = quantize(model, tmp_path / "b.onnx", data=str(data), precision="fp16", target="tensorrt")
    assert not any("not in the ranges" in text for text in wholly.manifest.warnings)
