"""What is not right with samples or model is named, with the sample."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from calibrated import (
    SAMPLES,
    MakePath,
    function_from,
    function_of,
    half_product,
    normal,
    npz,
    observed,
    save,
)

from qcompile.calibration import calibrate
from qcompile.errors import CalibrationError, DataError


@pytest.mark.parametrize(("bad", "what"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("threads", [1, 2])
def test_nan_in_the_data_is_an_error_naming_input_and_sample(
    tiny_file: MakePath, tmp_path: Path, bad: float, what: str, threads: int
) -> None:
    x = np.zeros((9, 16), np.float32)
    x[5, 3] = bad
    spec = npz(tmp_path / "data.npz", x=x)
    with pytest.raises(DataError, match=rf"data\.npz\[5:6\]: input 'x' holds {what}") as caught:
        calibrate(tiny_file("mlp"), spec, tmp_path / "mlp.ranges", threads=threads)
    assert caught.value.data == {"tensor": "x", "sample": "data.npz[5:6]"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "mlp.onnx"]
    by_function = function_of(tmp_path / "d", np.split(x, [4]))
    with pytest.raises(DataError, match=rf"samples batch 1 sample 1: input 'x' holds {what}"):
        observed(tiny_file("mlp"), by_function, threads=threads)


def test_nan_in_an_input_that_is_not_observed_is_an_error_too(tmp_path: Path) -> None:
    signature = "(float[n] x, float[n] z) => (float[n] y, float[n] e)"
    model = save(tmp_path / "m.onnx", "e = Exp(z) y = Relu(x)", signature)
    x, z = np.zeros(2, np.float32), np.array([0, np.nan], np.float32)
    with pytest.raises(DataError, match=r"d\.npz\[1:2\]: input 'z' holds NaN"):
        observed(model, npz(tmp_path / "d.npz", x=x, z=z))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_that_overflows_is_an_error_naming_tensor_and_sample(tmp_path: Path, threads: int) -> None:
    model = save(tmp_path / "m.onnx", "e = Exp(x) y = Add(e, x)", "(float[n, 2] x) => (float[n, 2] y)")
    x = np.ones((6, 2), np.float32)
    x[3, 1] = 1000
    spec = npz(tmp_path / "data.npz", x=x)
    with pytest.raises(CalibrationError, match="tensor 'e' holds infinity at") as caught:
        calibrate(model, spec, tmp_path / "r", threads=threads)
    assert caught.value.data == {"tensor": "e", "sample": "data.npz[3:4]"}
    assert "the input is finite" in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "m.onnx"]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_earliest_bad_sample_is_the_one_that_is_named(tmp_path: Path, threads: int) -> None:
    """The earliest takes longest: others are found to be bad before it."""
    model = save(tmp_path / "m.onnx", "e = Exp(x) y = Add(e, x)", "(float[n, w] x) => (float[n, w] y)")
    small = np.zeros((1, 1), np.float32)
    long = np.zeros((1, 300_000), np.float32)
    long[0, -1] = 1000
    spec = function_of(tmp_path / "d", [small, small, small, long, small + np.nan, small + np.inf, small])
    for _ in range(5):
        with pytest.raises(CalibrationError, match="tensor 'e' holds infinity at samples batch 3,"):
            observed(model, spec, threads=threads)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_model_that_fails_on_the_first_sample_names_it(tmp_path: Path, size: int) -> None:
    body = "r = Reshape(x, s) y = Sigmoid(r)"
    model = save(
        tmp_path / "m.onnx", body, "(float[n, w] x) => (float[k, 3] y)", s=np.array([-1, 3], np.int64)
    )
    spec = function_of(tmp_path / "d", [normal(size, 4 if size != 4 else 5)])
    with pytest.raises(DataError, match="samples batch 0: the model failed on it"):
        observed(model, spec)


def test_data_of_another_shape_midway_is_an_error_naming_it(network: Path, tmp_path: Path) -> None:
    spec = function_of(tmp_path / "d", [SAMPLES[:3], SAMPLES[3:5, :2]])
    with pytest.raises(DataError, match="samples batch 1: input 'x' has shape 2x2x6x6"):
        observed(network, spec)


def test_half_activations_that_overflow_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.full((1, 4), 100, np.float16))  # 80000
    with pytest.raises(CalibrationError, match="tensor 'a' holds infinity"):
        observed(half_product(tmp_path / "m.onnx"), str(tmp_path / "x.npz"))


def test_infinity_in_the_first_samples_does_not_warn(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "a = Add(x, x) y = Relu(a)", "(float[n, 4] x) => (float[n, 4] y)")
    spec = function_from(tmp_path / "d", "x = np.ones((4, 4), np.float32)\nx[0] = np.inf\nyield x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="input 'x' holds infinity"):
            observed(model, spec)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_earliest_bad_sample_is_named_though_reading_fails_later(tmp_path: Path, threads: int) -> None:
    body = (
        "for i in range(6):\n    if i == 5: raise OSError('disk')\n"
        "    yield np.full((1, 4), np.nan if i == 3 else 0, np.float32)"
    )
    with pytest.raises(DataError, match="samples batch 3: input 'x' holds NaN"):
        observed(
            save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n, 4] x) => (float[n, 4] y)"),
            function_from(tmp_path / "d", body),
            threads=threads,
        )
