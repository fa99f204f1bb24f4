"""The observer returns what a plain session returns, of every width, in some order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from ml_dtypes import bfloat16
from observed_models import (
    Arrays,
    assert_observed,
    assert_same_values,
    expected,
    model,
    normal,
    observed,
    saved,
)
from onnx import TensorProto

from qcompile.calibration.taps import choose_taps
from qcompile.calibration.workers import open_observer
from qcompile.errors import ModelError
from qcompile.model.graph.onnx_file import read_weightless


def convolutions(channels: int, *, ir_version: int = 8) -> onnx.ModelProto:
    """Convolutions whose outputs have several readers, with what ONNX Runtime computes in their layout."""
    c = channels
    return model(
        """
        a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
        b = Relu (a)
        d = Conv <pads = [1, 1, 1, 1]> (b, w2)
        e = Add (d, b)
        f = Sigmoid (e)
        g = Mul (e, f)
        h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (g)
        i = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (g)
        j = Concat <axis = 1> (h, i)
        k = Conv (j, w3)
        l = Clip (k, low, high)
        y = GlobalAveragePool (l)
        """,
        f"(float[n, 3, 8, 8] x) => (float[n, {c}, 1, 1] y)",
        ir_version=ir_version,
        w1=normal(c, 3, 3, 3),
        b1=normal(c),
        w2=normal(c, c, 3, 3),
        w3=normal(c, 2 * c, 1, 1),
        low=np.array(-0.1, np.float32),
        high=np.array(0.2, np.float32),
    )


IMAGES = {"x": normal(2, 3, 8, 8)}


# 16 and 32 fill the blocks of ONNX Runtime's layouts; 5 and 24 are padded in them.


@pytest.mark.parametrize("channels", [5, 16, 24, 32])
@pytest.mark.parametrize("wanted", [("a",), ("d",), ("b", "e"), ("y",), ("a", "d", "g", "k")])
def test_any_choice_of_tensors_holds_what_a_plain_session_returns(
    tmp_path: Path, channels: int, wanted: tuple[str, ...]
) -> None:
    assert_observed(saved(convolutions(channels), tmp_path / "m.onnx"), IMAGES, wanted)


@pytest.mark.parametrize("channels", [16, 24])
def test_samples_of_other_sizes_are_observed_by_the_same_session(tmp_path: Path, channels: int) -> None:
    path = saved(convolutions(channels), tmp_path / "m.onnx")
    found = observed(path, IMAGES, threads=2)  # of one inference
    assert_same_values(found, expected(path, list(found), IMAGES))
    made = onnx.load(path)
    for dim in made.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "size"
    onnx.save(made, path)
    weightless = read_weightless(path)
    with open_observer(weightless, choose_taps(weightless.model), 1) as observer:
        for samples, size in ((1, 8), (3, 4), (1, 10)):
            feeds = {"x": normal(samples, 3, size, size)}
            found = dict(observer.run(feeds, "here"))
            assert_same_values(found, expected(path, list(found), feeds))


@pytest.mark.parametrize("channels", [5, 16, 24, 32])
def test_an_observed_tensor_may_be_an_output_of_the_model_and_read_by_several_nodes(
    tmp_path: Path, channels: int
) -> None:
    made = model(
        """
        c = Conv <pads = [1, 1, 1, 1]> (x, w1)
        r = Relu (c)
        d = Conv <pads = [1, 1, 1, 1]> (c, w2)
        y = Add (d, c)
        t = Transpose <perm = [0, 2, 3, 1]> (c)
        z = MatMul (t, w3)
        """,
        f"(float[n, 3, 8, 8] x) => (float[n, {channels}, 8, 8] c, float[n, {channels}, 8, 8] y,"
        f" float[n, {channels}, 8, 8] r, float[n, 8, 8, 2] z)",
        w1=normal(channels, 3, 3, 3),
        w2=normal(channels, channels, 3, 3),
        w3=normal(channels, 2),
    )
    found = assert_observed(saved(made, tmp_path / "m.onnx"), IMAGES)
    assert sorted(found) == ["c", "d", "r", "y", "z"]
    assert_observed(tmp_path / "m.onnx", IMAGES, ["c"])


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("y = Conv <group = 16, pads = [1, 1, 1, 1]> (a, w)", {"w": normal(16, 1, 3, 3)}),
        ("y = Conv <group = 2, strides = [2, 2]> (a, w)", {"w": normal(32, 8, 3, 3)}),
        ("y = ConvTranspose <strides = [2, 2]> (a, w)", {"w": normal(16, 32, 2, 2)}),
        (
            "b = BatchNormalization (a, v, v, v, s) y = Relu (b)",
            {"v": normal(16), "s": np.square(normal(16)) + np.float32(1)},
        ),
        ('u = Resize <mode = "nearest"> (a, , s) y = Conv (u, w)', {
            "s": np.array([1, 1, 2, 2], np.float32), "w": normal(16, 16, 1, 1)
        }),
        ("b, c = Split <axis = 1> (a) d = Conv (b, w) y = Concat <axis = 1> (c, d)", {
            "w": normal(24, 8, 1, 1)
        }),
        ("y = Mul (a, w)", {"w": normal(1, 16, 1, 1)}),
        ("r = Reshape (a, s) m = MatMul (r, w) y = Softmax (m)", {
            "s": np.array([0, 16, 64]), "w": normal(64, 7)
        }),
    ],
    ids=["depthwise", "groups", "transposed", "norm", "resize", "split", "scale", "reshape"],
)  # fmt: skip
def test_what_lies_behind_a_convolution_holds_what_a_plain_session_returns(
    tmp_path: Path, body: str, weights: Arrays
) -> None:
    signature = "(float[n, 3, 8, 8] x) => (float[i, j, k, l] y)"
    if "Softmax" in body:
        signature = signature.replace(", l", "")
    made = model(
        f"a = Conv <pads = [1, 1, 1, 1]> (x, w0) {body}", signature, w0=normal(16, 3, 3, 3), **weights
    )
    assert_observed(saved(made, tmp_path / "m.onnx"), IMAGES)


def test_a_tensor_that_a_subgraph_reads_is_observed(tmp_path: Path) -> None:
    made = model(
        """
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        i = If (condition) <
            then_branch = yes () => (float[n, 24, 8, 8] t) { t = Neg (c) },
            else_branch = no () => (float[n, 24, 8, 8] e) { e = Abs (c) }
        >
        y = Add (c, i)
        """,
        "(float[n, 3, 8, 8] x, bool condition) => (float[n, 24, 8, 8] y)",
        w=normal(24, 3, 3, 3),
    )
    path = saved(made, tmp_path / "m.onnx")
    assert_observed(path, {**IMAGES, "condition": np.array(True)}, ["c", "i", "y"])


@pytest.mark.parametrize("location", ["m.weights", "m.onnx.data", "weights/of/m.bin", None])
@pytest.mark.parametrize("channels", [16, 24])
def test_models_with_external_data_are_observed(tmp_path: Path, channels: int, location: str | None) -> None:
    """Without a location, each weight has a file of its own."""
    path = tmp_path / "a folder" / "m.onnx"
    (path.parent / (location or "w")).parent.mkdir(parents=True)
    onnx.save(
        convolutions(channels), path, save_as_external_data=True, location=location, size_threshold=64,
        all_tensors_to_one_file=location is not None,
    )  # fmt: skip
    before = path.read_bytes()
    assert_observed(path, IMAGES)
    assert path.read_bytes() == before


# What is not right, and what is left behind.


def test_a_model_that_onnx_runtime_refuses_is_named(tmp_path: Path) -> None:
    made = convolutions(16)
    made.graph.node.append(onnx.helper.make_node("NoSuchOperator", ["y"], ["z"]))
    path = saved(made, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX Runtime refuses it"):
        observed(path, IMAGES)


@pytest.mark.parametrize("channels", [16, 24])
def test_neither_the_model_nor_its_folder_nor_the_temporary_one_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channels: int
) -> None:
    for name in ("model", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    path = saved(convolutions(channels), tmp_path / "model" / "m.onnx")
    before = path.read_bytes()
    observed(path, IMAGES)
    assert path.read_bytes() == before
    assert [item.name for item in (tmp_path / "model").iterdir()] == ["m.onnx"]
    assert list((tmp_path / "temporary").iterdir()) == []


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
