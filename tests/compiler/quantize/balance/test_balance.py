"""`quantize` balances channels where it has data: INT8 loses less, and the proof says what was done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mode_models import written
from numpy.typing import NDArray
from written_models import model_of, normal, outputs_of, stored

import qcompile
from qcompile.compiler.check import OnnxReference
from qcompile.compiler.quantize.balance.equalize import equalizable, equalize
from qcompile.model.graph_edits import store_constants
from qcompile.model.judgement import output_error
from qcompile.spec.words import GraphTarget

Floats = NDArray[np.float32]


def data(path: Path, *shape: int) -> str:
    np.savez(path, x=normal(*shape))
    return str(path)


def hostile(folder: Path) -> tuple[Path, str]:
    """Convolutions and products in a row, whose channels are scaled up here and down there."""
    factors = np.ones(8, np.float32)
    factors[:2] = 1500
    conv, kernel = normal(8, 4, 3, 3), normal(8, 8, 3, 3)
    product, head = normal(8, 16), normal(16, 5)
    rows = np.repeat(factors, 2)
    model = written(
        folder / "hostile.onnx",
        """(float[N,4,6,6] x) => (float[N,5] y) { c1 = Conv<pads=[1,1,1,1]>(x, w1, b1) r1 = Relu(c1)
        c2 = Conv<pads=[1,1,1,1]>(r1, w2) r2 = Relu(c2) g = GlobalAveragePool(r2) f = Flatten(g)
        m = MatMul(f, w3) r3 = Relu(m) y = MatMul(r3, w4) }""",
        w1=conv * factors.reshape(-1, 1, 1, 1), b1=normal(8) * factors,
        w2=kernel / factors.reshape(1, -1, 1, 1), w3=product * rows, w4=head / rows[:, None],
    )  # fmt: skip
    return model, data(folder / "data.npz", 24, 4, 6, 6)


def snr_of_int8(
    model: Path, spec: str, target: GraphTarget, *, balance: bool
) -> tuple[float, Mapping[str, Any]]:
    """Calibrated and quantized: the ratio at the outputs in dB, and the proof.

    ONNX Runtime makes integer kernels of its own graphs alone: those for others run as they are written.
    """
    ranges = qcompile.calibrate(model, spec, model.with_suffix(".ranges"), targets=[target], method="minmax")
    made = qcompile.quantize(
        model, model.with_suffix(".q.onnx"), ranges=ranges.path, target=target, only=["*"], data=spec,
        balance=balance, correct_bias=False, allow_loss=True,
    )  # fmt: skip
    x = np.load(spec)["x"]
    (expected,) = OnnxReference(model)({"x": x})
    (found,) = OnnxReference(made.path, integers=target == "onnxruntime")({"x": x})
    return output_error(expected, found).snr_db, made.manifest.proof


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt"])
def test_quantize_balances_a_hostile_network_by_itself(target: GraphTarget, tmp_path: Path) -> None:
    model, spec = hostile(tmp_path)
    plain_db, plain = snr_of_int8(model, spec, target, balance=False)
    even_db, proof = snr_of_int8(model, spec, target, balance=True)
    assert plain_db < 12 < 25 < even_db
    assert "equalized_pairs" not in plain
    assert proof["equalized_pairs"] == 2


def test_outliers_of_a_norm_move_into_the_weights(tmp_path: Path) -> None:
    outlier = np.array([1, 1, 200, 1, 1, 1, 1, 1], np.float32)
    model = written(
        tmp_path / "m.onnx",
        """(float[N,3,8] x) => (float[N,3,4] y) {
        n = LayerNormalization(x, gain, bias) m = MatMul(n, w) y = Tanh(m) }""",
        gain=normal(8) * outlier, bias=normal(8, 1)[:, 0] * outlier, w=normal(8, 4) / outlier[:, None],
    )  # fmt: skip
    spec = data(tmp_path / "d.npz", 16, 3, 8)
    plain_db, _ = snr_of_int8(model, spec, "onnxruntime", balance=False)
    even_db, proof = snr_of_int8(model, spec, "onnxruntime", balance=True)
    assert even_db > plain_db + 10
    assert "into 'gain', 'bias'" in proof["smoothed"]["n"]


X = "float[N,C,H,W]"


def uneven(generator: np.random.Generator, *shape: int) -> Floats:
    """Normal values whose channels, along the first axis, differ by factors of up to 2^12."""
    factors = np.exp2(generator.uniform(-6, 6, shape[0])).reshape(-1, *[1] * (len(shape) - 1))
    return (generator.standard_normal(shape) * factors).astype(np.float32)


def mobile(generator: np.random.Generator, between: str = "Relu") -> onnx.ModelProto:
    """Convolution, depthwise, grouped and pointwise convolution: x [n,3,8,8] to y [n,5,4,4]."""
    pool = "p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r3)"
    return model_of(
        f"""({X} x) => ({X} y) {{
        c1 = Conv<pads=[1,1,1,1]>(x, w1, b1) r1 = {between}(c1)
        c2 = Conv<pads=[1,1,1,1], group=8>(r1, w2, b2) r2 = {between}(c2)
        c3 = Conv<group=2>(r2, w3, b3) r3 = {between}(c3) {pool} y = Conv(p, w4) }}""",
        w1=uneven(generator, 8, 3, 3, 3), b1=uneven(generator, 8), w2=uneven(generator, 16, 1, 3, 3),
        b2=uneven(generator, 16), w3=uneven(generator, 6, 8, 1, 1), b3=uneven(generator, 6),
        w4=uneven(generator, 5, 6, 1, 1),
    )  # fmt: skip


def products(generator: np.random.Generator) -> onnx.ModelProto:
    """MatMul with bias, Gemm either way round, a Reshape in between: x [n,2,6] to y [2n,4]."""
    return model_of(
        """(float[N,2,6] x) => (float[M,4] y) <int64[2] rows = {-1,8}> {
        m = MatMul(x, w1) h = Add(b1, m) r = Relu(h) f = Reshape(r, rows)
        g = Gemm<transB=1, alpha=0.5, beta=2.0>(f, w2, b2) a = LeakyRelu<alpha=0.1>(g) y = Gemm(a, w3) }""",
        w1=uneven(generator, 8, 6).T.copy(), b1=uneven(generator, 8), w2=uneven(generator, 7, 8),
        b2=uneven(generator, 7), w3=uneven(generator, 7, 4),
    )  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["Relu", "LeakyRelu", "Identity", "products"]))
def test_layers_compute_the_same_numbers_to_the_last_bit(seed: int, kind: str) -> None:
    generator = np.random.default_rng(seed)
    model = products(generator) if kind == "products" else mobile(generator, kind)
    shape, widths = (
        ((3, 2, 6), {"f": 8, "a": 7}) if kind == "products" else ((2, 3, 8, 8), {"r1": 8, "r2": 16})
    )
    x = generator.standard_normal(shape).astype(np.float32)
    amax = {name: generator.uniform(0, 9, width).astype(np.float32) for name, width in widths.items()}
    (before,) = outputs_of(model, x)
    assert 1 <= equalize(model, amax) <= 2, "a place whose factors are all 1 stays as it is"
    np.testing.assert_array_equal(outputs_of(model, x)[0], before)


def pointwise(w1: list[float], w2: list[float], between: str = "r = Relu(c)") -> onnx.ModelProto:
    """One channel to several to one, with biases of 1: the weights are what is asked about."""
    return model_of(
        f"({X} x) => ({X} y) {{ c = Conv(x, w1, b1) {between} y = Conv(r, w2) }}",
        w1=np.array(w1, np.float32).reshape(-1, 1, 1, 1),
        b1=np.ones(len(w1), np.float32),
        w2=np.array(w2, np.float32).reshape(1, -1, 1, 1),
    )


@pytest.mark.parametrize(
    ("weights", "largest", "expected"),
    [
        # s = sqrt(32 / 0.5) = 8, sqrt(1 / 4) = 1/2
        (([1.0, 1.0], [0.5, 4.0]), [32, 1], ([0.125, 2.0], [4.0, 2.0])),
        # Channels of zeros are left alone; of the last, s = sqrt(8 / 0.5) = 4.
        (([0.0, 8.0, 8.0], [1.0, 0.0, 0.5]), [0, 1, 8], ([0.0, 8.0, 2.0], [1.0, 0.0, 2.0])),
    ],
)
def test_the_factor_is_the_root_of_activations_by_weights(
    weights: tuple[list[float], ...], largest: list[float], expected: tuple[list[float], ...]
) -> None:
    model = pointwise(*weights)
    assert equalizable(model) == {"r": 1}
    equalize(model, {"r": np.array(largest, np.float32)})
    assert tuple(stored(model)[name].ravel().tolist() for name in ("w1", "w2")) == expected


def test_a_depthwise_convolution_takes_all_that_activations_differ() -> None:
    generator = np.random.default_rng(1)
    model = mobile(generator)
    x = generator.standard_normal((16, 3, 8, 8)).astype(np.float32)
    amax = outputs_of(model, x, "r1")[0].max(axis=(0, 2, 3))
    assert amax.max() / amax[amax > 0].min() > 30
    # r1 feeds a convolution of two outputs per input: each has a scale of its own.
    assert equalize(model, {"r1": amax}) == 1
    after = outputs_of(model, x, "r1")[0].max(axis=(0, 2, 3))
    np.testing.assert_array_less(after[amax > 0], 1.42)
    np.testing.assert_array_less(0.70, after[amax > 0])


@pytest.mark.parametrize(
    "between",
    [
        "zero = Constant<value_float=0.0>() six = Constant<value_float=6.0>() r = Clip(c, zero, six)",
        "r = Sigmoid(c)",
        "r = Add(c, b1)",
        "r = Relu(c) other = Exp(r)",
    ],
)
def test_what_does_not_commute_with_factors_keeps_layers_apart(between: str) -> None:
    model = pointwise([8.0, 0.5], [0.5, 8.0], between)
    store_constants(model.graph)  # which alone changes the file
    before = model.SerializeToString()
    assert not equalizable(model)
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    "text",
    [
        f"({X} x) => ({X} y) {{ c = Conv(x, k) y = Conv(c, k) }}",  # one weight for two layers
        f"({X} x) => ({X} c, {X} y) {{ c = Conv(x, k) y = Conv(c, v) }}",  # an output of the model
        # A pool over the channels.
        """(float[N,2,3] x) => (float[N,2,3] y) {
        m = MatMul(x, w) p = MaxPool<kernel_shape=[3], pads=[1,1]>(m) y = MatMul(p, u) }""",
    ],
)
def test_values_that_are_read_elsewhere_keep_layers_apart(text: str) -> None:
    kernel, w = uneven(np.random.default_rng(0), 2, 2, 1, 1), np.diag([8.0, 0.5, 1.0]).astype(np.float32)
    weights = {"k": kernel, "v": kernel[::-1].copy(), "w": w, "u": w[::-1].copy()}
    named = {name: array for name, array in weights.items() if f" {name})" in text}
    assert not equalizable(model_of(text, **named))
