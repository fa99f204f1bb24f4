"""Activations of other widths are observed as a plain session returns them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from ml_dtypes import bfloat16
from observed_models import assert_observed, assert_same_values, expected, model, normal, observed, saved
from onnx import TensorProto

from qcompile.errors import ModelError


def test_double_activations_are_observed_as_they_are(tmp_path: Path) -> None:
    made = model(
        "a = MatMul (x, w) b = Sigmoid (a) c = Add (a, b) y = Relu (c)",
        "(double[n, 8] x) => (double[n, 5] y)",
        w=normal(8, 5, dtype="float64"),
    )
    found = assert_observed(saved(made, tmp_path / "m.onnx"), {"x": normal(4, 8, dtype="float64")})
    assert {array.dtype.name for array in found.values()} == {"float64"}


@pytest.mark.parametrize("channels", [5, 16])
def test_half_activations_are_observed_as_precisely_as_half_can_be(tmp_path: Path, channels: int) -> None:
    made = model(
        """
        a = Conv <pads = [1, 1, 1, 1]> (x, w1)
        b = Relu (a)
        c = Conv (b, w2)
        y = Sigmoid (c)
        """,
        f"(float16[n, 3, 8, 8] x) => (float16[n, {channels}, 8, 8] y)",
        w1=normal(channels, 3, 3, 3, dtype="float16"),
        w2=normal(channels, channels, 1, 1, dtype="float16"),
    )
    path = saved(made, tmp_path / "m.onnx")
    feeds = {"x": normal(2, 3, 8, 8, dtype="float16")}
    found = observed(path, feeds)
    assert {array.dtype.name for array in found.values()} == {"float16"}
    for name, array in expected(path, list(found), feeds).items():
        assert found[name].size == array.size
        np.testing.assert_allclose(
            np.sort(found[name], axis=None),
            np.sort(array.astype(np.float32), axis=None),
            rtol=2e-3,
            atol=1e-3,
        )


def test_half_and_single_activations_are_told_apart_in_one_model(tmp_path: Path) -> None:
    made = model(
        """
        a = Sigmoid (x)
        h = Cast <to = 10> (a)
        k = Slice (h, zero, two, axis)
        s = Cast <to = 1> (k)
        y = Relu (s)
        """,
        "(float[n, 4] x) => (float[n, m] y)",
        zero=np.array([0]),
        two=np.array([2]),
        axis=np.array([1]),
    )
    x = normal(3, 4)
    path = saved(made, tmp_path / "m.onnx")
    found = observed(path, {"x": x}, ["a", "k", "y"])
    assert_same_values({"a": found["a"]}, expected(path, ["a"], {"x": x}))
    rounded = found["a"].astype(np.float16).astype(np.float32)[:, :2]
    assert_same_values({"k": found["k"], "y": found["y"]}, {"k": rounded.astype(np.float16), "y": rounded})


def test_bfloat16_activations_that_onnx_runtime_can_compute_are_widened(tmp_path: Path) -> None:
    made = model(
        "a = Slice (x, zero, two, axis) y = Concat <axis = 1> (a, k)",
        "(bfloat16[n, 4] x) => (bfloat16[n, 4] y)",
        zero=np.array([0]),
        two=np.array([2]),
        axis=np.array([1]),
    )
    made.graph.initializer.append(onnx.helper.make_tensor("k", TensorProto.BFLOAT16, [3, 2], [0.5] * 6))
    x = normal(3, 4).astype(bfloat16)
    found = observed(saved(made, tmp_path / "m.onnx"), {"x": x}, ["x", "a", "y"])
    part = x[:, :2].astype(np.float32)
    whole = np.concatenate([part, np.full((3, 2), 0.5, np.float32)], axis=1)
    assert_same_values(found, {"a": part, "y": whole})


def test_bfloat16_operators_that_onnx_runtime_lacks_are_an_error_naming_the_file(tmp_path: Path) -> None:
    made = model("a = MatMul (x, x) y = Relu (a)", "(bfloat16[4, 4] x) => (bfloat16[4, 4] y)")
    path = saved(made, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX Runtime refuses it"):
        observed(path, {"x": np.ones((4, 4), bfloat16)})
