"""The float32 stand-in of a bfloat16 graph computes, bit for bit, what bfloat16 hardware would."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser

from qcompile.compiler.quantize.half.casts import in_float32
from qcompile.compiler.quantize.half.precision import to_half

BF16 = ml_dtypes.bfloat16
Floats = NDArray[np.float32]
LEVELS = onnxruntime.GraphOptimizationLevel


def rounded(values: NDArray[Any]) -> Floats:
    """What bfloat16 keeps of float32 values."""
    return values.astype(BF16).astype(np.float32)


def build(body: str, **weights: NDArray[Any]) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]> tiny {body}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, *, optimize: bool = True, **feeds: NDArray[Any]) -> Floats:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS.ORT_ENABLE_ALL if optimize else LEVELS.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    output: Floats = session.run(None, feeds)[0]
    return output


def whole(*shape: int, limit: int = 300, seed: int = 0) -> Floats:
    """Whole numbers: their products and sums are exact in float32, in whatever order."""
    return np.random.default_rng([seed, *shape]).integers(-limit, limit + 1, shape).astype(np.float32)


LINEAR = "(float[n,16] x) => (float[n,8] y) { m = MatMul(x, w) a = Add(m, b) y = Relu(a) }"


@pytest.mark.parametrize("optimize", [True, False])
def test_every_result_is_rounded_where_bfloat16_rounds_it(optimize: bool) -> None:
    w, b, x = whole(16, 8), whole(8), whole(5, 16)
    half, kept = to_half(build(LINEAR, w=w, b=b), "bfloat16")
    assert not kept
    found = run(in_float32(half), optimize=optimize, x=x)
    product = rounded(rounded(x) @ rounded(w))
    expected = np.maximum(rounded(product + rounded(b)), 0)
    np.testing.assert_array_equal(found, expected)
    assert np.any(found != np.maximum(x @ w + b, 0))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_subnormal=False), min_size=1, max_size=8))
def test_a_value_is_rounded_as_ml_dtypes_rounds_it(values: list[float]) -> None:
    x = np.array(values, np.float32)
    model = build("(float[n] x) => (float[n] y) { y = Neg(x) }")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run(in_float32(to_half(model, "bfloat16")[0]), x=x), -rounded(x))


def test_integers_and_scales_of_a_quantized_graph_are_computed_alike() -> None:
    body = """(float[n,8] x) => (float[n,4] y) {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear <axis = 1> (w, t)
        y = MatMul(d, v) }"""
    weights = {
        "s": np.float32(0.3),
        "z": np.int8(0),
        "w": whole(8, 4, limit=127).astype(np.int8),
        "t": np.array([0.01, 0.5, 0.3, 1.7], np.float32),
    }
    half, kept = to_half(
        build(body, **{name: np.asarray(value) for name, value in weights.items()}), "bfloat16"
    )
    x = whole(3, 8, limit=30)
    scale, scales = (rounded(np.asarray(weights[name])) for name in ("s", "t"))
    assert all("float32" in reason for reason in kept.values())
    read = np.float32(0.3) if kept else scale  # the input of the model is float32
    integers = np.clip(np.rint(x / read), -128, 127)
    values, weight = rounded(integers * scale), rounded(weights["w"].astype(np.float32) * scales)
    np.testing.assert_allclose(run(in_float32(half), x=x), rounded(values @ weight), rtol=2**-7)


@pytest.mark.parametrize("operator", ["Constant", "ConstantOfShape"])
def test_constants_that_nodes_hold_become_float32_too(operator: str) -> None:
    tensor = helper.make_tensor("value", TensorProto.BFLOAT16, [1], [0.1])
    inputs = ["shape"] if operator == "ConstantOfShape" else []
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16),
        helper.make_node(operator, inputs, ["c"], value=tensor),
        helper.make_node("Add", ["h", "c"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    stored = [numpy_helper.from_array(np.array([1]), "shape")] if inputs else []
    graph = helper.make_graph(nodes, "tiny", [x], [y], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    given_x = np.array([3.0], np.float32)
    expected = rounded(given_x + rounded(np.array([0.1], np.float32)))
    np.testing.assert_array_equal(run(in_float32(model), x=given_x), expected)
