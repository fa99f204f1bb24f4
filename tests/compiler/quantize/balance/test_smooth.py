"""Smoothed Transformers compute the same numbers, and their outlier channels shrink."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper
from written_models import model_of, normal, outputs_of, stored

from qcompile.compiler.quantize.activations import Rows, observe_rows
from qcompile.compiler.quantize.balance.smooth import (
    ALPHAS,
    best_factors,
    smooth,
    smoothable,
    smoothing_factors,
)
from qcompile.data.batches import Data
from qcompile.errors import CalibrationError
from qcompile.model.onnx_file import model_io

Floats = NDArray[np.float32]
OUTLIER = np.array([1, 1, 300, 1, 1, 40, 1, 1], np.float32)


def rows_of(model: onnx.ModelProto, x: Floats) -> dict[str, Rows]:
    """What the smoothable tensors hold on one input."""
    names = sorted(smoothable(model))
    found = [array.reshape(-1, array.shape[-1]) for array in outputs_of(model, x, *names)] if names else []
    return {n: Rows(a.min(axis=0), a.max(axis=0), a) for n, a in zip(names, found, strict=True)}


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
    done = smooth(model, rows_of(model, x))
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
    smooth(model, rows_of(model, normal(2, 5, 8)))
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
    rows = Rows(x.min(axis=0), x.max(axis=0), x)
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
    done = smooth(model, rows_of(model, x))
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
    assert smoothable(model) == set()
    left = smooth(model, {}).left_alone
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
    done = smooth(model, rows_of(model, x))
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
    for limit in (None, 3, 8, 11):
        found = observe_rows(model, {"n": -1, "z": 0, "y": 1}, data, limit)
        n, z, y = (np.abs(array) for array in outputs_of(model, x[:limit], "n", "z", "y"))
        np.testing.assert_allclose(found["n"].amax, n.max(axis=(0, 1)), rtol=1e-5)
        np.testing.assert_allclose(found["y"].amax, y.max(axis=(0, 2)), rtol=1e-5)
        np.testing.assert_allclose(found["z"].amax, z.max(axis=1).reshape(-1, 4).max(axis=0), rtol=1e-5)
    x[5, 0, 0] = np.nan
    np.savez(file, x=x)
    with pytest.raises(CalibrationError, match=r"data.npz\[0:8\] sample 5: tensor 'n' becomes NaN") as caught:
        observe_rows(model, {"n": -1}, Data(str(file), model_io(model).inputs, batch_size=8))
    assert caught.value.data["tensor"] == "n"
