"""Error statistics of an output by their definitions; what an output is decides what is asked of it.

Forms of quantized graphs, by NumPy: what integer kernels should compute, and that without roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import parser
from onnxruntime.quantization import QuantType, quantize_dynamic
from written_models import model_of, noisy, normal, outputs_of, stored

import qcompile
from qcompile.bench.metrics.output_verdict import judge
from qcompile.errors import ModelError
from qcompile.model.graph.reference_forms import (
    is_random,
    rounds_activations,
    with_halves,
    without_roundings,
    without_saturation,
)
from qcompile.model.outputs.judgement import (
    FLOAT_RTOL,
    Judgement,
    enough_agreement,
    flips_by_chance,
    judge_by_precision,
    judge_outputs,
    lowest_db,
    output_error,
)

INF, NAN = math.inf, math.nan
ROWS = np.eye(5)[[2, 2, 2, 2]]


@pytest.mark.parametrize(
    ("reference", "output", "max_abs_error", "snr_db"),
    [
        ([[3.0, 4.0], [0.0, 1.0]], [[3.0, 3.5], [1.0, 0.0]], 1.0, 10 * math.log10(26 / 2.25)),
        ([ROWS, ROWS], [np.eye(5)[[4, 4, 4, 2]], ROWS], 1.0, 10 * math.log10(8 / 6)),
        ([1.0, NAN, INF, -INF], [1.0, NAN, INF, -INF], 0.0, INF),
        ([1.0, 2.0], [1.0, NAN], INF, -INF),
        ([1.0, NAN], [1.0, 2.0], INF, -INF),
        ([1.0, 2.0], [1.0, -INF], INF, -INF),
        ([1.0, INF], [1.0, 2.0], INF, -INF),
        ([INF], [-INF], INF, -INF),
        ([[0.0] * 3] * 2, [[0.5] * 3] * 2, 0.5, -INF),  # noise on silence
        (2.0, 2.0, 0.0, INF),
        (np.zeros((0, 5)), np.zeros((0, 5)), 0.0, INF),
        (np.zeros((3, 0)), np.zeros((3, 0)), 0.0, INF),
        (np.uint8([[0]]), np.uint8([[1]]), 1.0, -INF),  # unsigned values do not wrap
        (np.array([[0, 1], [1, 0]], bool), np.array([[0, 1], [1, 1]], bool), 1.0, 10 * math.log10(2)),
        (["cat", "dog", "owl", "cow"], ["cat", "dog", "owl", "cat"], 1.0, 10 * math.log10(4)),
        (["cat"], ["cat"], 0.0, INF),
    ],
)
def test_the_measures_are_those_of_their_definitions(
    reference: object, output: object, max_abs_error: float, snr_db: float
) -> None:
    found = output_error(np.asarray(reference), np.asarray(output))
    assert found.max_abs_error == max_abs_error
    assert found.snr_db == pytest.approx(snr_db)
    assert found.close is (max_abs_error == 0)


@pytest.mark.parametrize(("share", "close"), [(0.5, True), (2.0, False)])
def test_close_is_relative_to_the_largest_magnitude(share: float, close: bool) -> None:
    for scale in (1.0, 1e4):
        reference = normal(3, 5) * scale
        limit = FLOAT_RTOL * float(np.abs(reference).max())
        output = reference.copy()
        output[1, 2] += share * limit
        assert output_error(reference, output).close is close


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes differ: \(1, 3\) and \(3,\)"):
        output_error(np.zeros((1, 3)), np.zeros(3))


def judged(reference: NDArray[Any], output: NDArray[Any], name: str = "y") -> Judgement:
    """The verdict on one output, in two batches."""
    (verdict,) = judge_outputs({name: np.array_split(reference, 2)}, {name: np.array_split(output, 2)})
    return verdict


def test_a_feature_map_has_no_argmax() -> None:
    image = np.zeros((4, 2, 32, 32), np.float32) + normal(4, 2, 32, 1)  # every row of it is a tie
    verdict = judged(image, noisy(image, 0.02))
    assert (verdict.passed, verdict.agreement) == (True, None)
    assert verdict.criterion == "signal: SNR ≥ 15 dB"


def test_logits_need_the_same_argmax() -> None:
    logits = normal(400, 10)
    flipped = logits.copy()
    for row in flipped[::10]:
        first, second = np.argsort(row)[-2:]
        row[[first, second]] = row[[second, first]]
    verdict = judged(logits, flipped, "logits")
    assert (verdict.passed, verdict.agreement) == (False, pytest.approx(0.9))
    assert judged(logits, flipped, "pooled").passed  # its name says that it holds features


def test_ties_that_rounding_breaks_otherwise_pass() -> None:
    """INT8 with 138 dB was refused: all values of a row were one but for their last bit."""
    reference = np.ones((64, 8), np.float32)
    assert judged(reference, reference + 1e-7 * normal(64, 8)).passed
    assert not judged(reference, reference + 1e-3 * normal(64, 8)).passed


def test_rows_of_length_one_are_an_embedding() -> None:
    rows = normal(50, 16)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    output = noisy(rows, 0.5)
    good, bad = judged(rows, noisy(rows, 0.1)), judged(rows, output)
    assert (good.passed, bad.passed) == (True, False)
    cosines = (rows * output).sum(1) / np.linalg.norm(output, axis=1) / np.linalg.norm(rows, axis=1)
    assert bad.cosine == pytest.approx(cosines.mean(), abs=1e-6)


def test_one_hot_rows_are_classes_although_their_length_is_one() -> None:
    rows = np.eye(4, dtype=np.float32)[[0, 1, 2, 3] * 30]
    verdict = judged(rows, np.roll(rows, 1, axis=1))
    assert (verdict.passed, verdict.agreement) == (False, 0.0)


def test_one_flip_in_sixteen_rows_is_within_chance_and_five_are_not() -> None:
    assert enough_agreement(15, 16)[0]
    assert not enough_agreement(11, 16)[0]
    assert not enough_agreement(900, 1000)[0]
    assert enough_agreement(950, 1000) == (True, "same argmax in ≥ 95% of rows")


@pytest.mark.parametrize(("flips", "rows"), [(1, 16), (0, 5), (3, 20), (5, 5), (40, 400)])
def test_chance_is_the_upper_tail_of_the_binomial_distribution(flips: int, rows: int) -> None:
    drawn = np.random.default_rng(3).binomial(rows, 0.05, 400_000)
    assert flips_by_chance(flips, rows) == pytest.approx((drawn >= flips).mean(), abs=4e-3)


@pytest.mark.parametrize(("precision", "decibels"), [("fp32", 60), ("tf32", 40), ("fp16", 40), ("int8", 15)])
def test_each_precision_has_a_ratio_below_which_most_is_wrong(precision: str, decibels: float) -> None:
    assert lowest_db(precision) == pytest.approx(decibels)
    assert lowest_db("fp32") > lowest_db("fp16") > lowest_db("bf16") > lowest_db("fp8")


def test_whole_numbers_are_labels_and_no_signal() -> None:
    classes = np.random.default_rng(2).integers(-1, 10, (8, 100))
    few, many = classes.copy(), classes.copy()
    few[:, :3] = 9 - classes[:, :3]  # never equal: 9 is odd
    many[:, :10] = 9 - classes[:, :10]
    verdict = judged(classes, few)
    assert (verdict.passed, verdict.agreement) == (True, pytest.approx(0.97))
    assert verdict.criterion == "labels: same value in ≥ 95% of elements"
    verdict = judged(classes, many)
    assert (verdict.passed, verdict.agreement) == (False, pytest.approx(0.9))


@pytest.mark.parametrize(("precision", "few_pass"), [("fp32", False), ("fp16", True), ("bf16", True)])
def test_few_labels_may_flip_below_fp32(precision: str, few_pass: bool) -> None:
    sure = np.random.default_rng(2).random(500) < 0.9
    for flips, passes in ((1, few_pass), (100, False)):
        flipped = np.where(np.arange(500) < flips, ~sure, sure)
        (verdict,) = judge_by_precision({"sure": [sure]}, {"sure": [flipped]}, precision)
        (other,) = judge([{"sure": sure}], [{"sure": flipped}], precision)
        assert verdict.passed is other.passed is passes
        assert verdict.criterion == other.criterion


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize(
    ("reference", "output", "passes"),
    [
        (np.arange(40) % 2 == 0, np.arange(40) % 2 == 0, True),
        (np.arange(40) % 2 == 0, np.arange(40) % 2 == 1, False),
        (np.array(True), np.array(True), True),
        (np.zeros((0, 4), bool), np.zeros((0, 4), bool), True),
        (np.zeros((3, 0), np.float32), np.zeros((3, 0), np.float32), True),
        (np.float32(2), np.float32(2), True),
        (np.float32(2), np.float32(-2), False),
        (np.arange(40, dtype=np.uint8), np.arange(40, dtype=np.uint8), True),
        (np.arange(40), np.arange(40)[::-1], False),
        (np.array(["a", "b"]), np.array(["a", "b"]), True),
        (np.array(["a", "b"]), np.array(["a", "c"]), False),
    ],
)
def test_outputs_of_every_type_and_shape_are_compared(
    reference: Any, output: Any, passes: bool, precision: str
) -> None:
    a, b = np.asarray(reference), np.asarray(output)
    (verdict,) = judge_by_precision({"y": [a]}, {"y": [b]}, precision)
    (other,) = judge([{"y": a}], [{"y": b}], precision)
    assert verdict.passed is other.passed is passes


Array = NDArray[Any]
HIDDEN = 3


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


ATTENTION = model_of(
    "(float[1, 3, 8] x) => (float[1, 3, 8] y)"
    "{ [attention] y = com.microsoft.Attention <num_heads = 2> (x, w, b) }",
    imports=', "com.microsoft" : 1', w=normal(8, 24, seed=1, scale=0.4), b=normal(24, seed=1, scale=0.4),
)  # fmt: skip
CONVOLUTION = model_of(
    "(float[1, 2, 5, 5] x) => (float[1, 4, 5, 5] y) { [conv] y = Conv <pads = [1, 1, 1, 1]> (x, w) }",
    w=normal(4, 2, 3, 3, scale=0.4),
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


@pytest.mark.parametrize("opset", [11, 19])  # 11 has no Cast to bfloat16
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_halves_round_what_nodes_make_and_the_weights_of_products(
    precision: str, dtype: str, opset: int
) -> None:
    import ml_dtypes

    def half(values: Array) -> Array:
        largest = 65504 if dtype == "float16" else np.inf
        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
        return np.clip(values, -largest, largest).astype(kind).astype(np.float32)

    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : {opset}]>
        g (float[n,2] x) => (float[n,1] y) <float[2,1] w = {{0.123456, 7.654321}}, float b = {{1.2345678}}>
        {{ m = MatMul (x, w) y = Add (m, b) }}""")
    x = np.array([[1.2345678, 3.3333333], [1e6, 1e6], [0, -3e37], [-np.inf, 0]], np.float32)
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


def test_outputs_of_other_shapes_are_told_apart_by_their_values() -> None:
    """A boolean index of quantized values chooses other rows."""
    with pytest.raises(ModelError, match=r"output 'y' is 3x2, and 2x2 in float: .*depends on values"):
        judge_outputs({"y": [np.zeros((2, 2), np.float32)]}, {"y": [np.zeros((3, 2), np.float32)]})
