"""Forms of quantized graphs, by NumPy: what integer kernels should compute, and that without roundings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from onnxruntime.quantization import QuantType, quantize_dynamic
from written_models import model_of, outputs_of

import qcompile
from qcompile.model.judgement import output_error
from qcompile.model.reference_forms import (
    is_random,
    rounds_activations,
    with_halves,
    without_roundings,
    without_saturation,
)

Array = NDArray[Any]
HIDDEN = 3


def stored(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def rounded(x: Array) -> Array:
    """What DynamicQuantizeLinear stores of x, times its scale again."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    if low == high:
        return x
    scale = np.float32((high - low) / 255)
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def dynamic(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    onnx.save(model, path)
    return onnx.load(qcompile.quantize(path, path.with_name("q.onnx"), mode="dynamic").path)


def lstm() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    shapes = {"w": (1, 4 * HIDDEN, 6), "r": (1, 4 * HIDDEN, HIDDEN), "b": (1, 8 * HIDDEN)}
    weights = {name: random.normal(0, 0.6, shape).astype(np.float32) for name, shape in shapes.items()}
    node = f"[lstm] y = LSTM <hidden_size = {HIDDEN}> (x, w, r, b)"
    return model_of(f"(float[5, 1, 6] x) => (float[5, 1, 1, {HIDDEN}] y) {{ {node} }}", **weights)


def lstm_by_numpy(x: Array, w: Array, r: Array, bias: Array, round_to: Callable[[Array], Array]) -> Array:
    """Steps of an LSTM [steps, 1, inputs] with w [inputs, 4 * hidden]; ONNX's order of gates: i, o, f, c."""
    h = c = np.zeros((1, HIDDEN))
    states = []
    read = round_to(x)
    for step in range(len(x)):
        gates = read[step] @ w + round_to(h) @ r + bias[: 4 * HIDDEN] + bias[4 * HIDDEN :]
        i, o, f = (1 / (1 + np.exp(-gates[:, k * HIDDEN : (k + 1) * HIDDEN])) for k in range(3))
        c = f * c + i * np.tanh(gates[:, 3 * HIDDEN :])
        h = o * np.tanh(c)
        states.append(h)
    return np.stack(states)[:, None]


def test_a_dynamic_product_without_saturation_is_the_integer_product(
    tiny: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    model = dynamic(tmp_path / "m.onnx", tiny("mlp"))
    x = np.random.default_rng(0).normal(0, 3, (9, 16)).astype(np.float32)
    values = stored(model)
    weights = [node.input[1] for node in model.graph.node if node.op_type == "MatMulInteger"]
    w1, w2 = (values[name] * values[name.replace("_quantized", "_scale")] for name in weights)
    (bias,) = (values[name] for node in model.graph.node if node.name == "bias1"
               for name in node.input if name in values)  # fmt: skip
    hidden = np.maximum(rounded(x) @ w1 + bias, 0)
    exact = without_saturation(model)
    products = [node for node in exact.graph.node if node.op_type == "MatMulInteger"]
    assert {stored(exact)[node.input[1]].dtype.name for node in products} == {"uint8"}
    np.testing.assert_allclose(outputs_of(exact, x)[0], rounded(hidden) @ w2, atol=1e-3)
    plain = outputs_of(without_roundings(model), x)[0]
    np.testing.assert_allclose(plain, np.maximum(x @ w1 + bias, 0) @ w2, atol=1e-4)
    assert np.abs(plain - rounded(hidden) @ w2).max() > 0.01, "the roundings show"


def test_a_dynamic_lstm_without_saturation_is_that_of_integer_products(tmp_path: Path) -> None:
    model = dynamic(tmp_path / "m.onnx", lstm())
    (node,) = (n for n in model.graph.node if n.op_type == "DynamicQuantizeLSTM")
    values = stored(model)
    w, r = (
        (values[node.input[i]].astype(float) * values[node.input[i + 7 + (i == 2)]].reshape(1, 1, -1))[0]
        for i in (1, 2)
    )
    bias = values[node.input[3]][0]
    x = np.random.default_rng(1).normal(0, 2, (5, 1, 6)).astype(np.float32)
    exact = without_saturation(model)
    (shifted,) = (n for n in exact.graph.node if n.op_type == "DynamicQuantizeLSTM")
    assert {stored(exact)[shifted.input[i]].dtype.name for i in (1, 2, 9, 11)} == {"uint8"}
    np.testing.assert_allclose(outputs_of(exact, x)[0], lstm_by_numpy(x, w, r, bias, rounded), atol=1e-4)
    plain = without_roundings(model)
    assert [n.op_type for n in plain.graph.node] == ["LSTM"]
    np.testing.assert_allclose(outputs_of(plain, x)[0], lstm_by_numpy(x, w, r, bias, np.asarray), atol=1e-5)
    assert np.abs(outputs_of(plain, x)[0] - outputs_of(exact, x)[0]).max() > 1e-3, "the roundings show"


PAIRS = """<ir_version: 9, opset_import: ["" : 19]> g (float[n] x) => (float[n] y)
    <float s = {0.5}, float t = {0.25}, uint8 z = {10}, int8[2] w = {3, -4}>
    { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, SCALE, z)
      v = DequantizeLinear (w, s) y = Mul (d, v) }"""


def test_a_pair_without_rounding_clips_to_its_range_and_weights_stay() -> None:
    model = parser.parse_model(PAIRS.replace("SCALE", "s"))
    plain = without_roundings(model)
    assert [node.op_type for node in plain.graph.node] == ["Max", "Min", "DequantizeLinear", "Mul"]
    for x, expected in [((1.3, -1.3), (1.3, -1.3)), ((-99, 999), (-5, 122.5))]:
        (y,) = outputs_of(plain, np.array(x, np.float32))
        np.testing.assert_allclose(y, np.array(expected) * (1.5, -2), rtol=1e-6)
    assert rounds_activations(model)
    assert not rounds_activations(plain)


def test_a_pair_of_two_scales_stays() -> None:
    nodes = without_roundings(parser.parse_model(PAIRS.replace("SCALE", "t"))).graph.node
    assert [node.op_type for node in nodes][:2] == ["QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize(
    ("body", "random"),
    [
        ("r = RandomNormalLike (x) y = Add (x, r)", True),
        ("y = Dropout (x, ratio, yes)", True),
        ("y = Dropout (x, ratio, no)", False),
        ("y = Dropout (x)", False),
    ],
)
def test_operators_that_draw_numbers_make_a_graph_random(body: str, random: bool) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 19]> g (float[n] x) => (float[n] y)
        <float ratio = {{0.5}}, bool yes = {{1}}, bool no = {{0}}> {{ {body} }}"""
    assert is_random(parser.parse_model(text)) is random


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).normal(0, 0.4, shape).astype(np.float32)


ATTENTION = model_of(
    "(float[1, 3, 8] x) => (float[1, 3, 8] y)"
    "{ [attention] y = com.microsoft.Attention <num_heads = 2> (x, w, b) }",
    imports=', "com.microsoft" : 1', w=normal(8, 24), b=normal(24),
)  # fmt: skip
CONVOLUTION = model_of(
    "(float[1, 2, 5, 5] x) => (float[1, 4, 5, 5] y) { [conv] y = Conv <pads = [1, 1, 1, 1]> (x, w) }",
    w=normal(4, 2, 3, 3),
)


@pytest.mark.parametrize(("made", "integer"), [(ATTENTION, "QAttention"), (CONVOLUTION, "ConvInteger")])
def test_what_onnx_runtime_quantizes_dynamically_has_both_forms(
    made: onnx.ModelProto, integer: str, tmp_path: Path
) -> None:
    """Its own quantizer, with weights that are rounded to few enough bits that no kernel overflows."""
    onnx.save(made, tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx", weight_type=QuantType.QInt8, reduce_range=True)
    model = onnx.load(tmp_path / "q.onnx")
    assert integer in {node.op_type for node in model.graph.node}
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    exact = without_saturation(model)
    (shifted,) = (node for node in exact.graph.node if node.op_type == integer)
    assert stored(exact)[shifted.input[1]].dtype == np.uint8
    np.testing.assert_allclose(outputs_of(exact, x)[0], outputs_of(model, x)[0], atol=1e-5)
    plain = without_roundings(model)
    assert not rounds_activations(plain)
    # Weights of 7 bits are nearly those of the float model.
    expected, found, rounded_output = (outputs_of(one, x)[0] for one in (made, plain, model))
    assert output_error(expected, found).snr_db > 35
    assert 25 < output_error(found, rounded_output).snr_db < 60


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_halves_round_what_nodes_make_and_the_weights_of_products(precision: str, dtype: str) -> None:
    import ml_dtypes

    def half(values: Array) -> Array:
        largest = 65504 if dtype == "float16" else np.inf
        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
        return np.clip(values, -largest, largest).astype(kind).astype(np.float32)

    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 19]> g (float[n,2] x) => (float[n,1] y)
        <float[2,1] w = {0.123456, 7.654321}, float b = {1.2345678}>
        { m = MatMul (x, w) y = Add (m, b) }""")
    x = np.array([[1.2345678, 3.3333333], [1e6, 1e6]], np.float32)
    w = half(np.array([[0.123456], [7.654321]], np.float32))
    expected = half(half(x @ w) + np.float32(1.2345678))
    rounded_model = with_halves(model, precision)
    np.testing.assert_array_equal(outputs_of(rounded_model, x)[0], expected)
    optimized = onnxruntime.InferenceSession(
        rounded_model.SerializeToString()
    )  # its optimizer keeps the casts
    np.testing.assert_array_equal(optimized.run(None, {"x": x})[0], expected)


def test_halves_leave_integers_and_their_pairs() -> None:
    model = parser.parse_model(PAIRS.replace("SCALE", "s"))
    operators = [node.op_type for node in with_halves(model, "bf16").graph.node]
    assert operators == "QuantizeLinear DequantizeLinear DequantizeLinear Mul Max Min Cast Cast".split()
