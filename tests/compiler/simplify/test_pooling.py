"""A pool over everything is global; any other stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from qcompile.compiler.simplify.attention import pool_globally


def pool(operator: str, attributes: str, shape: str = "n,2,7,5", result: str = "n,2,p,q") -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 19]> g (float[{shape}] x) => (float[{result}] y) '
        f"{{ y = {operator} <{attributes}> (x) }}"
    )


def run(model: onnx.ModelProto) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((3, 2, 7, 5)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("AveragePool", "kernel_shape = [7, 5]"),
        ("AveragePool", "kernel_shape = [64, 64], strides = [64, 64], ceil_mode = 1"),
        ("AveragePool", "kernel_shape = [7, 5], pads = [0, 0, 0, 0], count_include_pad = 1"),
        ("MaxPool", "kernel_shape = [7, 5]"),
    ],
)
def test_a_window_over_the_whole_image_is_global(operator: str, attributes: str) -> None:
    model = pool(operator, attributes, result="n,2,1,1")
    expected = run(model)
    assert pool_globally(model) == 1
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.node[0].op_type == f"Global{operator}"
    np.testing.assert_allclose(run(model), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ("kernel_shape = [7, 4]", "n,2,7,5"),
        ("kernel_shape = [7, 5], pads = [1, 1, 1, 1]", "n,2,7,5"),
        ("kernel_shape = [7, 5]", "n,2,h,w"),
    ],
)
def test_any_other_stays(attributes: str, shape: str) -> None:
    model = pool("AveragePool", attributes, shape)
    assert pool_globally(model) == 0
    assert model.graph.node[0].op_type == "AveragePool"
