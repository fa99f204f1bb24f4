"""Smoothed Transformers compute the same numbers, and their outlier channels shrink."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper
from written_models import model_of, outputs_of

from qcompile.calibration import Data
from qcompile.compiler.activations import channel_amax
from qcompile.compiler.balancing.smooth import smooth, smoothable
from qcompile.compiler.int8.placement import plan
from qcompile.compiler.int8.static import quantize_static
from qcompile.compiler.prepare import prepared
from qcompile.errors import CalibrationError, InvalidOption, ModelError
from qcompile.model.fidelity import fidelity
from qcompile.model.onnx_file import model_io

Floats = NDArray[np.float32]


def stored(model: onnx.ModelProto) -> dict[str, Floats]:
    """The initializers."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def prenorm(generator: np.random.Generator) -> onnx.ModelProto:
    """Outlier channels 1 and 4 of a norm; it is read by a MatMul, and by a Gemm behind a Reshape."""

    def normal(*shape: int) -> Floats:
        return generator.standard_normal(shape).astype(np.float32)

    outlier = np.array([1, 64, 1, 1, 64, 1], np.float32)
    return model_of(
        """(float[N,4,6] x) => (float[N,4,5] y, float[M,3] z) <int64[2] rows = {-1,6}> {
        n = LayerNormalization(x, gain, bias) y = MatMul(n, w) f = Reshape(n, rows)
        z = Gemm<transB=1>(f, v, c) }""",
        gain=normal(6) * outlier,
        bias=normal(6) * outlier,
        w=normal(6, 5) / outlier[:, None],
        v=normal(3, 6) / outlier,
        c=normal(3),
    )


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), alpha=st.floats(0, 1))
def test_the_same_numbers_are_computed_to_the_last_bit(seed: int, alpha: float) -> None:
    generator = np.random.default_rng(seed)
    model, x = prenorm(generator), generator.standard_normal((3, 4, 6)).astype(np.float32)
    amax = {"n": generator.uniform(0, 100, 6).astype(np.float32)}
    before = outputs_of(model, x)
    assert smooth(model, amax, alpha) == {"smoothed": 1, "left alone": 0}
    for found, expected in zip(outputs_of(model, x), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_factor_is_that_of_the_paper() -> None:
    model = model_of(
        """(float[N,4] x) => (float[N,1] y, float[N,1] z) {
        n = LayerNormalization(x, gain, bias) y = MatMul(n, w) z = MatMul(n, v) }""",
        gain=np.array([64, 1, 2, 3], np.float32),
        bias=np.array([8, 0, 1, 1], np.float32),
        w=np.array([[0.25], [1], [0], [5]], np.float32),
        v=np.array([[-1], [-4], [0], [5]], np.float32),
    )
    assert smoothable(model) == {"n"}
    # sqrt(64 / 1) = 8, sqrt(1 / 4) = 1/2; nothing reads the third channel, the fourth was always zero.
    smooth(model, {"n": np.array([64, 1, 7, 0], np.float32)})
    found = stored(model)
    assert found["gain"].tolist() == [8, 2, 2, 3]
    assert found["bias"].tolist() == [1, 0, 1, 1]
    assert found["w"].ravel().tolist() == [2, 0.5, 0, 5]
    assert found["v"].ravel().tolist() == [-8, -2, 0, 5]


def test_alpha_says_how_much_moves_into_the_weights() -> None:
    texts = {0.0: [4.0, 0.25], 0.5: [16.0, 0.5], 1.0: [64.0, 1.0]}  # max|X|^alpha / max|W|^(1-alpha)
    for alpha, factors in texts.items():
        model = model_of(
            """(float[N,2] x) => (float[N,1] y) {
            n = LayerNormalization(x, gain) y = MatMul(n, w) }""",
            gain=np.ones(2, np.float32),
            w=np.array([[0.25], [4]], np.float32),
        )
        smooth(model, {"n": np.array([64, 1], np.float32)}, alpha)
        np.testing.assert_array_equal(1 / stored(model)["gain"], factors)


@pytest.mark.parametrize(
    "readers",
    [
        "m = MatMul(n, w) y = Add(m, n)",  # post-norm, as BERT
        "y = MatMul(n, w) z = Exp(n)",
        "y = MatMul(w, n)",
        "a = MatMul(n, w) y = MatMul(a, w)",  # a shared weight
        "t = Transpose(w) y = MatMul(n, t)",  # a weight made by a node
        "f = Reshape(n, rows) y = MatMul(f, w)",  # channels do not stay channels
    ],
)
def test_what_cannot_be_folded_is_left_alone(readers: str) -> None:
    rows = "<int64[2] rows = {-1,4}>"
    width = 4 if "rows" in readers else 8
    model = model_of(
        f"(float[8,8] x) => (float[N,M] y) {rows} {{ n = LayerNormalization(x, gain) {readers} }}",
        gain=np.ones(8, np.float32),
        w=np.ones((width, width), np.float32),
    )
    before = model.SerializeToString()
    assert smoothable(model) == set()
    assert smooth(model, {"n": np.ones(8, np.float32)})["smoothed"] == 0
    assert model.SerializeToString() == before


def test_a_normalized_output_of_the_model_is_left_alone() -> None:
    model = model_of(
        "(float[N,8] x) => (float[N,8] n, float[N,8] y) { n = LayerNormalization(x, g) y = MatMul(n, w) }",
        g=np.ones(8, np.float32),
        w=np.ones((8, 8), np.float32),
    )
    assert smoothable(model) == set()


def test_wrong_options_say_so() -> None:
    model = prenorm(np.random.default_rng(0))
    with pytest.raises(InvalidOption, match=r"alpha -1"):
        smooth(model, {}, -1)
    with pytest.raises(ModelError, match=r"'n': \(5,\) channels observed; 6 are read"):
        smooth(model, {"n": np.ones(5, np.float32)})


@pytest.fixture
def observed(tmp_path: Path) -> tuple[Path, Floats, Data]:
    """The file of a model, samples, and the samples as data of batches of 8."""
    model = prenorm(np.random.default_rng(3))
    x = np.random.default_rng(4).standard_normal((20, 4, 6)).astype(np.float32)
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=x)
    data = Data(str(tmp_path / "data.npz"), model_io(model).inputs, batch_size=8)
    return tmp_path / "model.onnx", x, data


@pytest.mark.parametrize("limit", [None, 3, 8, 11])
def test_the_largest_magnitude_of_each_channel_is_found(
    limit: int | None, observed: tuple[Path, Floats, Data]
) -> None:
    path, x, data = observed
    seen: list[int] = []
    found = channel_amax(
        path, {"n": -1, "z": 0, "y": 1}, data, limit, lambda _, done=0, __=None: seen.append(done)
    )
    n, z, y = (np.abs(array) for array in outputs_of(onnx.load(path), x[:limit], "n", "z", "y"))
    np.testing.assert_allclose(found["n"], n.max(axis=(0, 1)), rtol=1e-5)
    np.testing.assert_allclose(found["y"], y.max(axis=(0, 2)), rtol=1e-5)
    np.testing.assert_allclose(found["z"], z.max(axis=1).reshape(-1, 4).max(axis=0), rtol=1e-5)
    assert seen == list(range(1, len(x[:limit]) + 1))


def test_values_that_are_not_finite_name_the_tensor_and_the_sample(
    tmp_path: Path, observed: tuple[Path, Floats, Data]
) -> None:
    path, x, data = observed
    x[5, 0, 0] = np.nan
    np.savez(tmp_path / "data.npz", x=x)
    with pytest.raises(CalibrationError, match=r"data.npz\[0:8\] sample 5: tensor 'n' becomes NaN") as caught:
        channel_amax(path, ["n"], data)
    assert caught.value.data["tensor"] == "n"


def test_a_tensor_that_is_not_there_is_named(observed: tuple[Path, Floats, Data]) -> None:
    path, _, data = observed
    with pytest.raises(ModelError, match="no node makes the tensor 'q'"):
        channel_amax(path, ["q"], data)


def test_int8_of_outlier_channels_becomes_accurate(observed: tuple[Path, Floats, Data]) -> None:
    path, x, data = observed
    model = onnx.load(path)
    before_db = int8_snr_db(model, x)
    smooth(model, channel_amax(path, smoothable(model), data))
    assert before_db + 10 < int8_snr_db(model, x)


def int8_snr_db(model: onnx.ModelProto, x: Floats) -> float:
    """How much of the first output INT8 keeps, with ranges of the very samples."""
    ready = prepared(model)
    names = [name for node in ready.graph.node for name in node.output]
    ranges = {
        n: (float(v.min()), float(v.max())) for n, v in zip(names, outputs_of(ready, x, *names), strict=True)
    }
    found = outputs_of(quantize_static(ready, plan(ready, "onnxruntime"), ranges), x)
    return fidelity(outputs_of(model, x)[0], found[0]).snr_db
