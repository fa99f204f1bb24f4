"""The weights of a graph: counted by hand for known graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import qcompile
from qcompile.model.weights_held import WeightsHeld, weights_of_graph

RESIDUAL = 4 * 4 * 9 + 4 + 4 * 4 * 9 + 4 + 3 * 4 + 3  # two 3x3 convolutions and a Gemm, with biases


def test_float_graphs_hold_their_initializers(tiny_file: Callable[..., Path]) -> None:
    held = weights_of_graph(onnx.load(tiny_file("residual")))
    assert held == WeightsHeld(RESIDUAL, 4 * RESIDUAL)


def test_scales_and_zero_points_are_bytes_but_no_parameters(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_file("residual")
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(0).standard_normal((8, 4, 8, 8)).astype(np.float32))
    ranges = qcompile.calibrate(model, str(data), tmp_path / "m.ranges").path
    for target in ("onnxruntime", "tensorrt"):
        path = tmp_path / f"{target}.onnx"
        qcompile.quantize(model, path, ranges=ranges, target=target)  # type: ignore[arg-type]
        held = weights_of_graph(onnx.load(path))
        assert held.parameters == RESIDUAL, target
        assert held.bytes > 0


def test_shapes_and_indices_are_no_parameters() -> None:
    nodes = [
        helper.make_node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array([2, 8]), "v")),
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Mul", ["r", "scale"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [4, 4])],
        [helper.make_tensor_value_info("y", 1, [2, 8])],
        [numpy_helper.from_array(np.ones(8, np.float32), "scale")],
    )
    assert weights_of_graph(helper.make_model(graph)) == WeightsHeld(8, 8 * 4 + 2 * 8)
