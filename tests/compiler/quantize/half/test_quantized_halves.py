"""INT8 with half in between: graphs with Q/DQ, through ONNX Runtime and the real TensorRT-RTX builder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from rtx_builds import rtx_build
from written_models import model_of, outputs_of

import qcompile
from qcompile.compiler.quantize.half.casts import Half, in_float32
from qcompile.compiler.quantize.half.precision import to_half
from qcompile.compiler.quantize.int8.placement import place_nodes, scaled_tensors
from qcompile.compiler.quantize.int8.static import quantize_static
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.model.graph.graph import count_weighted, infer_types, model_io, opset, producers
from qcompile.model.outputs.judgement import output_error
from qcompile.model.sessions.session import session_options

INPUT = "it quantizes 'x', which is float32"
Tiny = Callable[..., onnx.ModelProto]

TRANSFORMER = """(float[n,7,16] x) => (float[n,7,16] y) <float[16,16] q, float[16,16] k, float[16,16] v,
    float[16] g, float[16] c, float[16,32] up, float[32] b, float[32,16] down, float r = {0.25}> {
    l = LayerNormalization(x, g, c) ql = MatMul(l, q) kl = MatMul(l, k) vl = MatMul(l, v)
    t = Transpose <perm = [0,2,1]> (kl) s = MatMul(ql, t) d = Mul(s, r) p = Softmax <axis = -1> (d)
    a = MatMul(p, vl) h = Add(a, x) u = MatMul(h, up) ub = Add(u, b) e = Relu(ub) o = MatMul(e, down)
    y = Add(o, h) }"""


def run(model: onnx.ModelProto, x: NDArray[np.float32], *names: str) -> list[NDArray[np.float32]]:
    """Outputs of the graph as it is written, for TensorRT; of tensors inside where names are given.

    Integer kernels of ONNX Runtime's CPU would say nothing of TensorRT's.
    """
    inside = onnx.ModelProto()
    inside.CopyFrom(model)
    if names:
        del inside.graph.output[:]
        inside.graph.output.extend([onnx.ValueInfoProto(name=name) for name in names])
    session = onnxruntime.InferenceSession(
        inside.SerializeToString(), session_options(integers=False), providers=["CPUExecutionProvider"],
        disabled_optimizers=["WeightBiasQuantization"],
    )  # fmt: skip
    return list(session.run(None, {"x": x}))


def sample(model: onnx.ModelProto) -> NDArray[np.float32]:
    """Normal input: 64 rows, as in fewer a single value that is rounded the other way decides."""
    shape = [size if isinstance(size, int) else 64 for size in model_io(model).inputs[0].shape]
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model quantized for TensorRT, with the ranges of its sample."""
    ready = prepare_graph(model)
    placement = place_nodes(ready, "tensorrt", chosen=["*"])
    stored = {tensor.name for tensor in ready.graph.initializer}
    names = sorted(scaled_tensors(ready, placement) - stored)
    arrays = run(ready, sample(model), *names)
    limits = {
        name: (-float(np.abs(a).max()), float(np.abs(a).max())) for name, a in zip(names, arrays, strict=True)
    }
    return quantize_static(ready, placement, limits)


@pytest.fixture(params=["residual", "transformer"])
def quantized(request: pytest.FixtureRequest, tiny: Tiny) -> onnx.ModelProto:
    """A small convolutional net and a Transformer's block, in INT8."""
    return int8(tiny("residual")) if request.param == "residual" else int8(model_of(TRANSFORMER))


@cache
def simple() -> bytes:
    """Two MatMuls in INT8."""
    text = """(float[n,16] x) => (float[n,16] y) <float[16,16] w, float[16,16] v> {
        h = MatMul(x, w) y = MatMul(h, v) }"""
    return int8(model_of(text)).SerializeToString()


def with_scale(values: float, of: str) -> onnx.ModelProto:
    """`simple` with another scale of a tensor."""
    model = onnx.load_model_from_string(simple())
    node = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == of)
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
    shape = numpy_helper.to_array(scale).shape
    scale.CopyFrom(numpy_helper.from_array(np.full(shape, values, np.float32), scale.name))
    return model


def behind_dequantizers(model: onnx.ModelProto) -> bool:
    """Whether both operands of every product come right from DequantizeLinear."""
    made_by = producers(model.graph)
    products = [node for node in model.graph.node if node.op_type in ("Conv", "MatMul", "Gemm")]
    return all(made_by[name].op_type == "DequantizeLinear" for node in products for name in node.input[:2])


def test_int8_with_float16_in_between_computes_what_int8_does(quantized: onnx.ModelProto) -> None:
    mixed, kept = to_half(quantized)
    onnx.checker.check_model(mixed, full_check=True)
    assert set(kept.values()) <= {INPUT}
    assert opset(mixed) == 19
    assert model_io(mixed) == model_io(quantized)
    x = sample(quantized)
    assert (
        output_error(run(quantized, x)[0], run(mixed, x)[0]).snr_db > 40
    )  # a scale's 11 bits turn some integers


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_everything_between_the_integers_is_half(quantized: onnx.ModelProto, dtype: Half) -> None:
    mixed, kept = to_half(quantized, dtype)
    types = infer_types(mixed) | {
        tensor.name: {1: "float32", 10: "float16", 16: "bfloat16"}.get(tensor.data_type, "")
        for tensor in mixed.graph.initializer
    }
    outside = {value.name for value in (*mixed.graph.input, *mixed.graph.output)}
    nodes = [node for node in mixed.graph.node if node.name not in kept]
    inside = {name for node in nodes for name in (*node.input, *node.output)} - outside
    assert {types[name] for name in inside if name and "float" in types[name]} == {dtype}
    assert behind_dequantizers(mixed)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensorrt_builds_it_with_every_product_in_int8(quantized: onnx.ModelProto, dtype: Half) -> None:
    products = sum(count_weighted(quantized)["int8"].values())
    layers = rtx_build(to_half(quantized, dtype)[0], "SM86")[0]
    assert list(layers) == ["int8"]
    assert sum(layers["int8"].values()) == products >= 3


def test_weights_are_stored_as_the_integers_of_the_int8_graph(quantized: onnx.ModelProto) -> None:
    stored = {tensor.name for tensor in quantized.graph.initializer}
    makers = {
        node.output[0]: node.input[0] for node in quantized.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] in stored
    }  # fmt: skip
    assert makers
    mixed, _ = to_half(quantized)
    kept = {tensor.name: numpy_helper.to_array(tensor) for tensor in mixed.graph.initializer}
    for name, expected in zip(makers, run(quantized, sample(quantized), *makers), strict=True):
        np.testing.assert_array_equal(kept[name], expected)
    assert not set(makers.values()) & set(kept)
    assert mixed.ByteSize() < quantized.ByteSize()


def test_a_scale_that_float16_would_blur_keeps_its_pair_and_its_layer_in_float32() -> None:
    text = """(float[n,16] x) => (float[n,16] y) <float[16,16] w, float[16,16] v, float k = {0.0001}> {
        m = MatMul(x, w) h = Mul(m, k) y = MatMul(h, v) }"""
    model = int8(model_of(text))
    mixed, kept = to_half(model)
    onnx.checker.check_model(mixed, full_check=True)
    pair = ["h_QuantizeLinear", "h_DequantizeLinear"]
    assert [kept.pop(name).split(" is below ")[1] for name in pair] == [
        "float16's smallest normal number 6.1e-05"
    ] * 2
    assert kept == {
        "x_QuantizeLinear": INPUT,
        "MatMul_y": "'h_DequantizeLinear' in front of it stays in float32",
    }
    assert behind_dequantizers(mixed)
    assert rtx_build(mixed, "SM86")[0] == {"int8": {"MATRIX_MULTIPLY": 2}}
    x = sample(model)
    assert output_error(run(model, x)[0], run(mixed, x)[0]).snr_db > 40


@pytest.mark.parametrize(
    ("scale", "of", "node", "reason"),
    [
        (1e-9, "v", "MatMul_y", "its scale 1e-09 is below float16's smallest normal number 6.1e-05"),
        (1e-9, "h", "MatMul_h", "'h' reaches only 1.28e-07, all subnormal in float16"),
        (600.0, "h", "MatMul_y", "reaches 7.68e+04, beyond float16's 65504"),
    ],
)
def test_a_pair_whose_scale_float16_cannot_hold_stays_in_float32(
    scale: float, of: str, node: str, reason: str
) -> None:
    model = with_scale(scale, of=of)
    mixed, kept = to_half(model)
    onnx.checker.check_model(mixed, full_check=True)
    assert node in kept
    assert any(reason in text for text in kept.values())
    x = sample(model)
    if scale < 1:  # steps of 600 round all to zero
        assert np.abs(run(model, x)[0]).max() > 0
        assert output_error(run(model, x)[0], run(mixed, x)[0]).snr_db > 40


@settings(max_examples=25, deadline=None)
@example(20.4 * 2.0**-24)  # of float16's smallest number: to the nearest would be too small
@given(st.floats(1e-6, 6e-5))
def test_weights_of_a_subnormal_scale_lose_no_more_than_half_a_step(scale: float) -> None:
    model = with_scale(scale, of="w")
    weight = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w")
    small = (np.abs(weight) / np.abs(weight).max() * 127 * scale).astype(np.float32)
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    tensor.CopyFrom(numpy_helper.from_array(small, "w"))
    mixed, _ = to_half(model)
    stored = {t.name: numpy_helper.to_array(t) for t in mixed.graph.initializer}
    made = next(n for n in mixed.graph.node if n.input[0] == "w_QuantizeLinear_Output")
    integers, scales = stored[made.input[0]].astype(np.float64), stored[made.input[1]].astype(np.float64)
    assert scales.max() <= np.float32(scale) * (1 + 1 / 16)
    assert np.abs(integers * scales - small).max() <= scales.max() / 2 * (1 + 1e-5)


@pytest.mark.parametrize("version", [19, 21, 23])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_types_of_q_and_dq_follow_every_opset(version: int, dtype: Half) -> None:
    text = """(float[n,4] x) => (float[n,4] y) <float s = {0.02}, int8 z = {0}, float[4,4] w> {
        h = Relu(x) q = QuantizeLinear(h, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, w) }"""
    half, kept = to_half(model_of(text, opset=version), dtype)
    onnx.checker.check_model(half, full_check=True)
    assert (kept, opset(half)) == ({}, version)
    wanted = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}[dtype]
    assert {t.data_type for t in half.graph.initializer} == {wanted, TensorProto.INT8}
    text = """(float[n,4] x) => (float[n,4] y) { q, s, z = DynamicQuantizeLinear(x)
        [d] y = DequantizeLinear(q, s, z) }"""
    assert to_half(model_of(text, opset=version), dtype)[1]["d"] == "its scale is computed at run time"


BF16 = ml_dtypes.bfloat16
Floats = NDArray[np.float32]


def rounded(values: NDArray[Any]) -> Floats:
    """What bfloat16 keeps of float32 values."""
    return values.astype(BF16).astype(np.float32)


def whole(*shape: int, limit: int = 300, seed: int = 0) -> Floats:
    """Whole numbers: their products and sums are exact in float32, in whatever order."""
    return np.random.default_rng([seed, *shape]).integers(-limit, limit + 1, shape).astype(np.float32)


LINEAR = "(float[n,16] x) => (float[n,8] y) { m = MatMul(x, w) a = Add(m, b) y = Relu(a) }"


@pytest.mark.parametrize("optimize", [True, False])
def test_every_result_is_rounded_where_bfloat16_rounds_it(optimize: bool) -> None:
    w, b, x = whole(16, 8), whole(8), whole(5, 16)
    half, kept = to_half(model_of(LINEAR, opset=22, w=w, b=b), "bfloat16")
    assert not kept
    found = outputs_of(in_float32(half), x, optimize=optimize)[0]
    product = rounded(rounded(x) @ rounded(w))
    expected = np.maximum(rounded(product + rounded(b)), 0)
    np.testing.assert_array_equal(found, expected)
    assert np.any(found != np.maximum(x @ w + b, 0))


def test_integers_and_scales_of_a_quantized_graph_are_computed_alike() -> None:
    body = """(float[n,8] x) => (float[n,4] y) {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear <axis = 1> (w, t)
        y = MatMul(d, v) }"""
    weights = {
        "s": np.float32(0.3),
        "z": np.int8(0),
        "w": whole(8, 4, limit=127).astype(np.int8),
        "t": np.array([0.01, 0.5, 0.3, 1.7], np.float32),
    }
    half, kept = to_half(
        model_of(body, opset=22, **{name: np.asarray(value) for name, value in weights.items()}), "bfloat16"
    )
    x = whole(3, 8, limit=30)
    scale, scales = (rounded(np.asarray(weights[name])) for name in ("s", "t"))
    assert all("float32" in reason for reason in kept.values())
    read = np.float32(0.3) if kept else scale  # the input of the model is float32
    integers = np.clip(np.rint(x / read), -128, 127)
    values, weight = rounded(integers * scale), rounded(weights["w"].astype(np.float32) * scales)
    np.testing.assert_allclose(
        outputs_of(in_float32(half), x, optimize=True)[0], rounded(values @ weight), rtol=2**-7
    )


@pytest.mark.parametrize("operator", ["Constant", "ConstantOfShape"])
def test_constants_that_nodes_hold_become_float32_too(operator: str) -> None:
    inputs, bits = "(k)" if operator == "ConstantOfShape" else "()", 0x3DCD  # of 0.1
    text = f"""(float[1] x) => (float[1] y) <int64[1] k = {{1}}> {{ h = Cast <to = 16> (x)
        c = {operator} <value = bfloat16[1] {{{bits}}}> {inputs} s = Add(h, c) y = Cast <to = 1> (s) }}"""
    model = model_of(text, opset=22)
    x = np.array([3.0], np.float32)
    expected = rounded(x + rounded(np.array([0.1], np.float32)))
    np.testing.assert_array_equal(outputs_of(in_float32(model), x, optimize=True)[0], expected)


def test_a_mask_of_infinity_is_no_overflow(tmp_path: Path) -> None:
    """Scores of masked attention hold infinity by intent; a value beyond float16 beside it is still found."""
    generator = np.random.default_rng(0)
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    weight = generator.standard_normal((4, 4)).astype(np.float32)
    model = model_of(
        """(float[N,4,4] x) => (float[N,4,4] y) {
        s = MatMul(x, w) m = Add(s, mask) p = Softmax(m) b = Mul(p, large) c = Div(b, large)
        y = MatMul(c, w) }""",
        named=True, w=weight, mask=mask, large=np.array(1e6, np.float32),
    )  # fmt: skip
    onnx.save(model, tmp_path / "masked.onnx")
    np.savez(tmp_path / "x.npz", x=generator.standard_normal((3, 4, 4)).astype(np.float32))
    half = qcompile.quantize(
        tmp_path / "masked.onnx", tmp_path / "half.onnx", precision="fp16", target="tensorrt",
        data=str(tmp_path / "x.npz"),
    )  # fmt: skip
    assert any("65504" in reason for reason in half.manifest.proof["left_in_float"].values())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "left", "warned"),
    [
        ("q = Mul(h, h) s = ReduceSum(q, last) n = Sqrt(s) y = Div(h, n)", {"ReduceSum_s", "Sqrt_n"}, False),
        ("s = Tanh(h) n = Add(s, large) y = Sub(n, large)", set(), True),
    ],
    ids=["a sum of squares", "digits that float16 lacks"],
)
def test_what_has_no_scale_is_looked_at_too_and_what_is_lost_is_told(
    body: str, left: set[str], warned: bool, tmp_path: Path
) -> None:
    """The sum of squares of an L2 norm was not observed: an encoder in FP16 had -9 dB, without a word. And
    ONNX Runtime rounds nothing between operators of which it has no half kernel: no loss was seen."""
    text = f"(float[N,32] x) => (float[N,32] y) <int64[1] last = {{-1}}, float large = {{5e4}}> {{ {body} }}"
    model = model_of(text.replace("{ ", "{ h = MatMul(x, w) "), w=50 * np.eye(32, dtype=np.float32))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.linspace(0.8, 1.6, 12 * 32, dtype=np.float32).reshape(12, 32))
    half = qcompile.quantize(
        tmp_path / "m.onnx", tmp_path / "h.onnx", precision="fp16", target="tensorrt",
        data=str(tmp_path / "x.npz"), rules=("embedding",),
    )  # fmt: skip
    assert half.manifest.proof["left_in_float"].keys() == left  # type: ignore[attr-defined]
    assert ["is required" in text for text in half.manifest.warnings] == [True] * warned


def test_what_int8_has_no_scale_for_is_looked_at_where_float16_stands_beside_it(tmp_path: Path) -> None:
    """INT8 for TensorRT of an encoder with an L2 norm was refused: its sum of squares became infinite."""
    generator = np.random.default_rng(0)
    model = model_of(
        """(float[N,32] x) => (float[N,32] y) {
        h = MatMul(x, w) q = Mul(h, h) s = ReduceSum(q, last) n = Sqrt(s) y = Div(h, n) }""",
        w=40 * generator.standard_normal((32, 32)).astype(np.float32), last=np.array([-1]),
    )  # fmt: skip
    path, data = tmp_path / "m.onnx", str(tmp_path / "x.npz")
    onnx.save(model, path)
    np.savez(data, x=generator.standard_normal((16, 32)).astype(np.float32))
    qcompile.calibrate(path, data, tmp_path / "r", targets=["tensorrt"])
    made = qcompile.quantize(
        path, tmp_path / "q.onnx", ranges=tmp_path / "r", target="tensorrt", float_precision="fp16", data=data
    )
    assert "Sqrt_n" in made.manifest.proof["left_in_fp32"]  # type: ignore[operator]
