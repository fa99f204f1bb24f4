"""ONNX Runtime's optimizer makes another MaxPool of one behind a Pad of zeros; no session of ours does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import qcompile
from qcompile.engines.registry import engine
from qcompile.model.session import make_session, session_options
from qcompile.model.zero_padded_pools import optimizers_that_lose_zeros, zero_padded_pools

LOWEST = float("-inf")


def write(path: Path, value: float | None, *, operator: str = "MaxPool") -> Path:
    """x [n, 2, 7, 7] ─ Pad of one row and column ─ pool of 3 x 3 by 2 ─ y [n, 2, 4, 4]."""
    nodes = [
        helper.make_node("Pad", ["x", "pads", *(["value"] if value is not None else [])], ["padded"]),
        helper.make_node(operator, ["padded"], ["y"], name="pool", kernel_shape=[3, 3], strides=[2, 2]),
    ]
    stored = [helper.make_tensor("pads", TensorProto.INT64, [8], [0, 0, 1, 1, 0, 0, 1, 1])]
    if value is not None:
        stored.append(helper.make_tensor("value", TensorProto.FLOAT, [], [value]))
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2, extent, extent])
        for name, extent in (("x", 7), ("y", 4))
    ]
    graph = helper.make_graph(nodes, "graph", tensors[:1], tensors[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def pooled(x: NDArray[np.float32], value: float) -> NDArray[np.float32]:
    """The largest of every window, by hand."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=value)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    return np.asarray(windows.max(axis=(-2, -1)))


@pytest.fixture
def negative() -> NDArray[np.float32]:
    """Values below 0, which a padding of zeros covers at the border."""
    return -np.random.default_rng(0).uniform(0.1, 1, (2, 2, 7, 7)).astype(np.float32)


@pytest.mark.parametrize(("value", "found"), [(None, True), (0.0, True), (LOWEST, False), (-1.0, False)])
def test_only_zeros_are_lost(tmp_path: Path, value: float | None, found: bool) -> None:
    path = write(tmp_path / "pool.onnx", value)
    assert zero_padded_pools(onnx.load(path)) == (["pool"] if found else [])
    assert bool(optimizers_that_lose_zeros(path)) is found


def test_no_other_pool_is_meant(tmp_path: Path) -> None:
    assert not zero_padded_pools(onnx.load(write(tmp_path / "mean.onnx", 0.0, operator="AveragePool")))


@pytest.mark.parametrize("value", [None, 0.0, LOWEST, -1.0])
def test_a_session_pools_the_zeros(
    tmp_path: Path, negative: NDArray[np.float32], value: float | None
) -> None:
    path = write(tmp_path / "pool.onnx", value)
    found = make_session(path, session_options()).run(None, {"x": negative})[0]
    np.testing.assert_array_equal(found, pooled(negative, value or 0.0))


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_what_is_built_pools_the_zeros(tmp_path: Path, negative: NDArray[np.float32], target: str) -> None:
    path = write(tmp_path / "pool.onnx", 0.0)
    simplified = qcompile.simplify(path, tmp_path / "simplified.onnx")
    qcompile.build(simplified.path, tmp_path / "built.onnx", target=target)
    with engine(target).open(str(tmp_path / "built.onnx")) as runner:
        found = runner.infer({"x": negative})["y"]
    np.testing.assert_array_equal(found, pooled(negative, 0.0))
