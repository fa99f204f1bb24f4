"""`quantize` balances channels: INT8 loses less, and balanced or smoothed models compute the same numbers."""

from __future__ import annotations

import re
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
from onnx import numpy_helper
from written_models import model_of, normal, outputs_of, stored

import qcompile
from qcompile.compiler.check import OnnxReference
from qcompile.compiler.quantize.activations import ChannelRows, observe_rows
from qcompile.compiler.quantize.balance.equalize import equalizable_tensors, equalize
from qcompile.compiler.quantize.balance.smooth import (
    ALPHAS,
    best_factors,
    smooth,
    smoothable,
    smoothing_factors,
)
from qcompile.data.batches import Data
from qcompile.errors import CalibrationError
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.graph_edits import store_constants
from qcompile.model.graph.onnx_file import Graph
from qcompile.model.outputs.judgement import output_error
from qcompile.spec.words import GraphTarget

MODEL = Path("model.onnx")

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
    assert 1 <= equalize(Graph(model, MODEL), amax) <= 2, "a place whose factors are all 1 stays as it is"
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
    assert equalizable_tensors(Graph(model, MODEL)) == {"r": 1}
    equalize(Graph(model, MODEL), {"r": np.array(largest, np.float32)})
    assert tuple(stored(model)[name].ravel().tolist() for name in ("w1", "w2")) == expected


def test_a_depthwise_convolution_takes_all_that_activations_differ() -> None:
    generator = np.random.default_rng(1)
    model = mobile(generator)
    x = generator.standard_normal((16, 3, 8, 8)).astype(np.float32)
    amax = outputs_of(model, x, "r1")[0].max(axis=(0, 2, 3))
    assert amax.max() / amax[amax > 0].min() > 30
    # r1 feeds a convolution of two outputs per input: each has a scale of its own.
    assert equalize(Graph(model, MODEL), {"r1": amax}) == 1
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
    assert not equalizable_tensors(Graph(model, MODEL))
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
    assert not equalizable_tensors(Graph(model_of(text, **named), MODEL))


OUTLIER = np.array([1, 1, 300, 1, 1, 40, 1, 1], np.float32)


def rows_of(model: onnx.ModelProto, x: Floats) -> dict[str, ChannelRows]:
    """What the smoothable tensors hold on one input."""
    names = sorted(smoothable(Graph(model, MODEL)))
    found = [array.reshape(-1, array.shape[-1]) for array in outputs_of(model, x, *names)] if names else []
    return {n: ChannelRows(a.min(axis=0), a.max(axis=0), a) for n, a in zip(names, found, strict=True)}


NORM = "n = LayerNormalization(x, gain, bias)"
PLAIN_NORM = """m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) p = Pow(d, two) k = ReduceMean<axes=[-1]>(p)
    e = Add(k, tiny) r = Sqrt(e) q = Div(d, r) g = Mul(q, gain) n = Add(g, bias)"""
HEADS = "<int64[4] split = {0,-1,2,4}, int64[3] merge = {2,5,8}, int64[2] rows = {-1,8}>"
FORMS = {
    "a norm before products": (f"{{ {NORM} y = MatMul(n, w) z = MatMul(n, v) }}", 1, 0),
    "a norm in plain operators": (f"{{ {PLAIN_NORM} y = MatMul(n, w) z = MatMul(n, v) }}", 1, 0),
    "gain alone": ("{ n = LayerNormalization(x, gain) y = MatMul(n, w) z = MatMul(n, v) }", 1, 0),
    "post-norm with a residual": (f"{{ {NORM} m = MatMul(n, w) y = Add(m, n) z = MatMul(n, v) }}", 1, 1),
    "Gemm after Reshape": (
        f"{HEADS} {{ {NORM} f = Reshape(n, rows) a = Gemm(f, w, c) y = Reshape(a, merge) s = Shape(n)"
        " b = Gemm<transB=1>(f, v, c) z = Reshape(b, merge) t = Cast<to=1>(s) }", 1, 0,
    ),
    "Gemm after Reshape with a residual": (
        f"{HEADS} {{ {NORM} f = Reshape(n, rows) a = Gemm(f, w, c) r = Reshape(a, merge) y = Add(r, n)"
        " b = Gemm(f, v, c) z = Reshape(b, merge) }", 1, 1,
    ),
    "a GELU": (
        "{ o = Mul(x, gain) d = Erf(o) a = Add(d, one) g = Mul(o, a) y = MatMul(g, w) z = MatMul(g, v) }",
        1, 1,
    ),
    "the projection of values": (
        f"{HEADS} {{ k = MatMul(x, w) b = Add(k, bias) s = Reshape(b, split) t = Transpose<perm=[0,2,1,3]>(s)"
        " s2 = Reshape(x, split) t2 = Transpose<perm=[0,2,1,3]>(s2) u = Transpose<perm=[0,1,3,2]>(t2)"
        " q = MatMul(t2, u) h = Softmax(q) o = MatMul(h, t) i = Transpose<perm=[0,2,1,3]>(o)"
        " n = Reshape(i, merge) y = MatMul(n, v) z = Identity(x) }", 1, 0,
    ),
}  # fmt: skip


def form(name: str, seed: int) -> onnx.ModelProto:
    """A model of one of the forms, with outlier channels in front of its products."""
    generator = np.random.default_rng(seed)
    text, _, _ = FORMS[name]

    def normal(*shape: int) -> Floats:
        return generator.standard_normal(shape).astype(np.float32)

    weights: dict[str, Floats] = {
        "gain": normal(8) * OUTLIER, "bias": normal(8) * OUTLIER, "w": normal(8, 8) / OUTLIER[:, None],
        "v": normal(8, 8) / OUTLIER[:, None], "c": normal(8), "one": np.ones(1, np.float32),
        "two": np.full(1, 2, np.float32), "tiny": np.full(1, 1e-5, np.float32),
    }  # fmt: skip
    if "values" in name:  # outliers come out of the projection, and go into what reads it
        weights["w"] = normal(8, 8) * OUTLIER
    used = set(re.findall(r"\w+", text))
    read = {name: value for name, value in weights.items() if name in used}
    more = ", float[3] t" if "s = Shape" in text else ""
    return model_of(f"(float[2,5,8] x) => (float[2,5,8] y, float[2,5,8] z{more}) {text}", named=True, **read)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_form_computes_the_same_and_its_channels_come_closer(name: str, seed: int) -> None:
    _, places, multiplications = FORMS[name]
    model = form(name, seed)
    x = np.random.default_rng(seed).standard_normal((2, 5, 8)).astype(np.float32)
    before, count = outputs_of(model, x), len(model.graph.node)
    names = [node.output[0] for node in model.graph.node if node.op_type not in ("Shape", "Cast")]
    inside = outputs_of(model, x, *names)
    done = smooth(Graph(model, MODEL), rows_of(model, x))
    assert len(done.places) >= places, done
    assert len(model.graph.node) == count + multiplications
    onnx.checker.check_model(model)
    for found, expected in zip(outputs_of(model, x), before, strict=True):
        np.testing.assert_array_equal(found, expected)  # powers of two: to the last bit
    assert set(done.rescaled) <= {output for node in model.graph.node for output in node.output}
    pairs = zip(names, inside, outputs_of(model, x, *names), strict=True)
    assert {name for name, a, b in pairs if not np.array_equal(a, b)} <= set(done.rescaled)


def test_a_multiplication_stands_between_the_reshape_and_its_products() -> None:
    # Where QuantizeLinear follows at once, OpenVINO fuses both; a Mul in front of the Reshape is executed.
    model = form("Gemm after Reshape with a residual", 0)
    smooth(Graph(model, MODEL), rows_of(model, normal(2, 5, 8)))
    (mul,) = [node for node in model.graph.node if node.name.endswith("/smooth")]
    assert mul.input[0] == "f"
    assert [node.op_type for node in model.graph.node if mul.output[0] in node.input] == ["Gemm", "Gemm"]


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), alpha=st.floats(0, 1))
def test_the_factor_is_that_of_the_paper(seed: int, alpha: float) -> None:
    generator = np.random.default_rng(seed)
    amax, peaks = generator.uniform(0.01, 100, 6), generator.uniform(0.01, 10, 6)
    amax[2], peaks[4] = 0, 0  # of zeros: no factor
    exact = amax**alpha / np.where(peaks > 0, peaks, 1) ** (1 - alpha)
    found = smoothing_factors(amax, peaks, alpha)
    assert found[2] == found[4] == 1
    live = [0, 1, 3, 5]
    assert (np.abs(np.log2(found[live] / exact[live])) <= 0.5 + 1e-9).all()  # the next power of two
    np.testing.assert_array_equal(np.log2(found), np.round(np.log2(found)))


def int8_error(x: Floats, w: Floats, s: NDArray[np.float64]) -> float:
    """The squared error of a product of eight bits, by the power, in plain numpy: uint8 by int8."""
    a, b = x.astype(np.float64) / s, w.astype(np.float64) * s[:, None]
    low, high = min(a.min(), 0), max(a.max(), 0)
    scale = (high - low) / 255
    zero = np.round(-low / scale)
    a = (np.clip(np.round(a / scale) + zero, 0, 255) - zero) * scale
    steps = np.abs(b).max(axis=0) / 127
    b = np.round(b / steps) * steps
    exact = x.astype(np.float64) @ w
    return float(np.square(a @ b - exact).sum() / np.square(exact).sum())


@pytest.mark.parametrize("seed", range(4))
def test_the_strength_is_that_of_a_search_by_hand(seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = (generator.standard_normal((40, 8)) * OUTLIER).astype(np.float32)
    w = (generator.standard_normal((8, 5)) / OUTLIER[:, None] ** 0.5).astype(np.float32)
    errors = {0.0: int8_error(x, w, np.ones(8))}
    for alpha in ALPHAS:
        s = smoothing_factors(np.abs(x).max(axis=0).astype(float), np.abs(w).max(axis=1).astype(float), alpha)
        errors[alpha] = int8_error(x, w, s)
    rows = ChannelRows(x.min(axis=0), x.max(axis=0), x)
    alpha, _, gain_db = best_factors(rows, [w], symmetric=False)
    assert alpha == min(errors, key=errors.__getitem__)
    assert gain_db == pytest.approx(10 * np.log10(errors[0.0] / errors[alpha]), abs=0.05)


def test_even_channels_are_left_alone_and_the_reason_is_told() -> None:
    model = form("post-norm with a residual", 0)
    for tensor in model.graph.initializer:
        values = np.random.default_rng(1).standard_normal(tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    before = model.SerializeToString()
    done = smooth(Graph(model, MODEL), rows_of(model, x))
    assert not done.places
    assert not done.rescaled
    assert set(done.left_alone) == {"matmul1", "matmul3"}
    assert all("1.0 dB is required" in reason for reason in done.left_alone.values())
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("readers", "reason"),
    [
        ("y = MatMul(w, n)", "not a stored float32 matrix"),
        ("a = MatMul(n, w) y = MatMul(a, w)", "read elsewhere too"),
        ("t = Transpose(w) y = MatMul(n, t)", "not a stored float32 matrix"),
        ("y = Gemm<transA=1>(n, w)", "transposed"),
    ],
)
def test_what_cannot_be_smoothed_says_why(readers: str, reason: str) -> None:
    model = model_of(
        f"(float[8,8] x) => (float[N,M] y) {{ n = LayerNormalization(x, gain) {readers} }}",
        named=True, gain=np.ones(8, np.float32), w=np.ones((8, 8), np.float32),
    )  # fmt: skip
    before = model.SerializeToString()
    assert smoothable(Graph(model, MODEL)) == set()
    left = smooth(Graph(model, MODEL), {}).left_alone
    assert left
    assert all(reason in told for told in left.values())
    assert model.SerializeToString() == before


def test_a_normalized_output_of_the_model_stays_as_it_is() -> None:
    outlier = OUTLIER
    model = model_of(
        "(float[N,8] x) => (float[N,8] n, float[N,8] y) { n = LayerNormalization(x, g) y = MatMul(n, w) }",
        named=True, g=outlier, w=np.eye(8, dtype=np.float32)[::-1].copy() / outlier[:, None] + 0.01,
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((9, 8)).astype(np.float32)
    before = outputs_of(model, x)
    done = smooth(Graph(model, MODEL), rows_of(model, x))
    assert "n" not in done.rescaled
    np.testing.assert_array_equal(stored(model)["g"], outlier)
    np.testing.assert_array_equal(outputs_of(model, x)[0], before[0])
    np.testing.assert_allclose(outputs_of(model, x)[1], before[1], rtol=1e-6)


OBSERVED = """(float[N,4,6] x) => (float[N,4,5] y, float[M,3] z) <int64[2] rows = {-1,6}> {
    n = LayerNormalization(x, gain) y = MatMul(n, w) f = Reshape(n, rows) z = Gemm<transB=1>(f, v) }"""


def test_the_largest_magnitude_of_each_channel_is_found(tmp_path: Path) -> None:
    model = model_of(OBSERVED, gain=normal(6), w=normal(6, 5), v=normal(3, 6))
    x, file = normal(20, 4, 6, seed=4), tmp_path / "data.npz"
    np.savez(file, x=x)
    data = Data(str(file), model_io(model).inputs, batch_size=8)
    graph = Graph(model, tmp_path / "m.onnx")
    for limit in (None, 3, 8, 11):
        found = observe_rows(graph, {"n": -1, "z": 0, "y": 1}, data, limit)
        n, z, y = (np.abs(array) for array in outputs_of(model, x[:limit], "n", "z", "y"))
        np.testing.assert_allclose(found["n"].amax, n.max(axis=(0, 1)), rtol=1e-5)
        np.testing.assert_allclose(found["y"].amax, y.max(axis=(0, 2)), rtol=1e-5)
        np.testing.assert_allclose(found["z"].amax, z.max(axis=1).reshape(-1, 4).max(axis=0), rtol=1e-5)
    x[5, 0, 0] = np.nan
    np.savez(file, x=x)
    with pytest.raises(CalibrationError, match=r"data.npz\[0:8\] sample 5: tensor 'n' becomes NaN") as caught:
        observe_rows(graph, {"n": -1}, Data(str(file), model_io(model).inputs, batch_size=8))
    assert caught.value.data["tensor"] == "n"
