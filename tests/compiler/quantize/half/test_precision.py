"""FP16 and BF16 where the graph can take it; ONNX's checker, its reference, and TensorRT's parser agree."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
import tensorrt_rtx
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from written_models import model_of, outputs_of

from qcompile.calibration import Ranges
from qcompile.calibration.histogram import Histogram
from qcompile.compiler.quantize.half.casts import Half
from qcompile.compiler.quantize.half.precision import nodes_to_protect, to_half
from qcompile.engines.tensorrt.log import make_log
from qcompile.model.graph.graph import model_io
from qcompile.model.outputs.judgement import output_error
from qcompile.model.sessions.random_input import random_feeds

HALVES: tuple[Half, ...] = ("float16", "bfloat16")
LINEAR = "(float[n,4] x) => (float[n,4] y) <float[4,4] w> { h = MatMul(x, w) y = Relu(h) }"
LISTS = """(float[4] x) => (float[8] y) { a = Relu(x) s = SequenceConstruct(a, x)
    b = ConcatFromSequence <axis = 0> (s) y = Abs(b) }"""

# Name to a graph in ONNX's text form; weights without values are filled with normal ones.
GRAPHS = {
    "linear": LINEAR,
    "convolution": """(float[n,4,8,8] x) => (float[n,4,6,6] y) <float[4,4,3,3] w, float[4] b, float lo = {0},
        float hi = {6}> { c = Conv(x, w, b) y = Clip(c, lo, hi) }""",
    "attention": """(float[n,7,4] x) => (float[n,7,4] y) <float[4,4] q, float[4,4] k> { a = MatMul(x, q)
        b = MatMul(x, k) t = Transpose <perm = [0,2,1]> (b) s = MatMul(a, t)
        p = Softmax <axis = -1> (s) y = MatMul(p, x) }""",
    "normalization": """(float[n,4] x) => (float[n,4] y) <float[4] g, float two = {2}, float tiny = {0.00001},
        int64[1] last = {-1}> { p = Pow(x, two) m = ReduceMean(p, last) e = Add(m, tiny) s = Sqrt(e)
        d = Div(x, s) y = Mul(d, g) }""",
    "constants": """(float[n,4] x) => (float[n,4] y) { c = Constant <value = float[4] {1.0, 2.0, 3.0, 4.0}> ()
        s = Constant <value_float = 2.5> () l = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
        a = Mul(x, c) b = Add(a, s) y = Sub(b, l) }""",
    "shapes": """(float[n,4] x) => (float[n,4] y) { s = Shape(x) z = ConstantOfShape(s)
        o = ConstantOfShape <value = float[1] {1.5}> (s) a = Add(x, z) y = Add(a, o) }""",
    "casts": """(float[n,4] x) => (float[n,4] y) <float[4,4] w> { i = Cast <to = 7> (x)
        f = Cast <to = 1> (i) m = MatMul(f, w) y = Sub(x, m) }""",
    "double": """(float[n,4] x) => (double[n,4] y) <float[4,4] w> { h = MatMul(x, w)
        y = Cast <to = 11> (h) }""",
    "integers": """(int64[n] i, float[n,4] x) => (float[n,4] y) <float[9,4] table> {
        e = Gather(table, i) y = Add(e, x) }""",
    "inner_output": """(float[n,4] x) => (float[n,4] h, float[n,4] y) <float[4,4] w> { h = MatMul(x, w)
        y = Relu(h) }""",
    "branch": """(float[n,4] x, bool c) => (float[n,4] y) <float[4,4] w, float[4] v> { h = MatMul(x, w)
        r = If(c) <then_branch = t () => (float[n,4] a) { a = Add(h, v) },
                   else_branch = e () => (float[n,4] b) { b = Mul(h, h) }> y = Relu(r) }""",
    "loop": """(float[4] x) => (float[4] y) <int64 count = {3}, bool go = {1}> { h = Add(x, x)
        y = Loop(count, go, h) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] s)
        { d = Identity(c) s = Add(v, h) }> }""",
    "quantized": """(float[n,4] x) => (float[n,4] y) <float s = {0.02}, int8 z = {0}, float[4,4] w> {
        h = Relu(x) q = QuantizeLinear(h, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, w) }""",
    "lstm": """(float[5,1,8] x) => (float[5,1,1,4] y) <float[1,16,8] w, float[1,16,4] r> {
        y = LSTM <hidden_size = 4> (x, w, r) }""",
    "lengths": """(float[5,1,8] x) => (float[5,1,1,4] y)
        <float[1,16,8] w, float[1,16,4] r, int32[1] n = {3}> {
        h = Relu(x) y = LSTM <hidden_size = 4> (h, w, r, , n) }""",
    "places": """(float[n,t] x) => (float[n,u] y)
        <int64 zero = {0}, int64 one = {1}, float half = {0.5}, float two = {2}> {
        s = Shape(x) last = Gather(s, one) f = Cast <to = 1> (last) h = Mul(f, half) c = Cast <to = 7> (h)
        r = Range(zero, c, one) p = Cast <to = 1> (r) q = Mul(p, two) i = Cast <to = 7> (q)
        a = Relu(x) g = Gather <axis = 1> (a, i) y = Div(g, half) }""",
    "resize": """(float[n,4,8,8] x) => (float[n,4,16,16] y) <float[4,4,1,1] w, float[4] s = {1,1,2,2}> {
        a = Conv(x, w) y = Resize <mode = "linear"> (a, , s) }""",
    "range": """(float[n,4] x) => (float[n,4] y) <float a = {0}, float b = {4}, float c = {1}> {
        r = Range(a, b, c) y = Add(x, r) }""",
    "mask": """(float[n,4] x, bool[n,4] m) => (float[n,4] y) <float[4,4] w, float[1] k = {-3.4e38}> {
        h = MatMul(x, w) s = Where(m, h, k) y = Softmax <axis = -1> (s) }""",
    "large": """(float[n,4] x) => (float[n,4] y) <float[4,4] w, float[1] k = {100000}> {
        h = MatMul(x, w) [times_k] y = Mul(h, k) }""",
}


def graph_of(name_or_text: str, opset: int = 19) -> onnx.ModelProto:
    return model_of(GRAPHS.get(name_or_text, name_or_text), opset=opset)


def run(model: onnx.ModelProto, **given: NDArray[np.generic]) -> list[NDArray[np.float32]]:
    """Outputs by ONNX's own reference, which computes in float16 where the graph says so."""
    feeds = random_feeds(model_io(model).inputs, extent=3) | given
    with np.errstate(over="ignore", invalid="ignore"):  # what became infinite or NaN is compared
        return list(ReferenceEvaluator(model).run(None, feeds))


def give(model: onnx.ModelProto, name: str, values: NDArray[np.float32]) -> None:
    """Replace the values of a weight."""
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    weight.CopyFrom(numpy_helper.from_array(values, name))


def operands(model: onnx.ModelProto, operator: str) -> list[int]:
    """The element types of the first node of an operator: its inputs, as far as they are known."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    types = {
        v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.value_info, *inferred.graph.input)
    }
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    node = next(node for node in model.graph.node if node.op_type == operator)
    return [types[name] for name in node.input if name]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_converted_graph_is_valid_keeps_its_outputs_and_tensorrt_takes_it(name: str, dtype: Half) -> None:
    model = graph_of(name)
    half, _ = to_half(model, dtype)
    onnx.checker.check_model(half, full_check=True)
    assert model_io(half) == model_io(model)
    for expected, found in zip(run(model), run(half), strict=True):
        assert found.dtype == expected.dtype
        assert output_error(expected, found).snr_db > 40
    log = make_log(tensorrt_rtx)
    strongly_typed = 1 << int(tensorrt_rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = tensorrt_rtx.Builder(log.logger).create_network(strongly_typed)
    onnx_parser = tensorrt_rtx.OnnxParser(network, log.logger)
    assert onnx_parser.parse(half.SerializeToString()), onnx_parser.get_error(0).desc()


@pytest.mark.parametrize("dtype", HALVES)
def test_places_that_shapes_say_stay_exact(dtype: Half) -> None:
    """A decoder of watermarks read behind the end of 3,000 steps; TensorRT refused its FP16."""
    half, kept = to_half(graph_of("places"), dtype)
    x = np.arange(2 * 4099, dtype=np.float32).reshape(2, 4099) % 7
    np.testing.assert_array_equal(run(half, x=x)[0], 2 * x[:, 0:4098:2])
    places = {name for name, reason in kept.items() if "positions" in reason}
    assert len(places) == 5
    assert places <= nodes_to_protect(graph_of("places"), dtype).keys()
    assert operands(half, "Relu") == operands(half, "Div")[:1] != [TensorProto.FLOAT]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "place",
    """
    linear/MatMul convolution/Conv convolution/Clip attention/Softmax normalization/Pow constants/Mul
    constants/Sub shapes/Add casts/MatMul integers/Add inner_output/Relu branch/Relu quantized/MatMul
    lstm/LSTM
    """.split(),
)
def test_what_can_compute_in_half_does(place: str, dtype: Half) -> None:
    name, operator = place.split("/")
    half, _ = to_half(graph_of(name), dtype)
    wanted = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}[dtype]
    assert set(operands(half, operator)) == {wanted}


def test_a_mask_of_the_lowest_float_is_not_made_smaller() -> None:
    half, kept = to_half(graph_of("mask"))
    assert "'k' reaches 3.4e+38, beyond float16's 65504" in kept.values()
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in half.graph.initializer}
    assert stored["k"] == np.float32(-3.4e38)
    (found,) = run(half, m=np.zeros((3, 4), np.bool_))  # a row that is masked as a whole stays uniform
    np.testing.assert_allclose(found, np.full((3, 4), 0.25), rtol=1e-3)


CONSTANTS = {
    "an initializer": "<float[1] k = {VALUE}> {",
    "a Constant": "{ k = Constant <value = float[1] {VALUE}> ()",
    "a number": "{ k = Constant <value_float = VALUE> ()",
    "numbers": "{ k = Constant <value_floats = [VALUE]> ()",
    "a shape's": "{ s = Shape(x) k = ConstantOfShape <value = float[1] {VALUE}> (s)",
}


@pytest.mark.parametrize("head", CONSTANTS.values(), ids=CONSTANTS)
def test_a_constant_that_float16_cannot_hold_is_not_made_float16_wherever_it_is(head: str) -> None:
    text = "(float[n,4] x) => (float[n,4] y)" + head + " h = Neg(x) [scale] y = Mul(h, k) }"
    for value, reason in (("100000.0", "'k' reaches 1e+05, beyond"), ("1e-7", "'k' reaches only 1e-07, all")):
        model = graph_of(text.replace("VALUE", value))
        half, kept = to_half(model)
        assert kept["scale"].startswith(reason)
        np.testing.assert_allclose(run(half)[0], run(model)[0], rtol=1e-3)


@pytest.mark.parametrize(
    "divide",
    [
        "e = Expand(c, s) y = Div(x, e)",
        "e = Reciprocal(c) y = Mul(x, e)",
        "e = Sqrt(c) r = Reciprocal(e) y = Mul(x, r)",
    ],
)
def test_a_row_of_zeros_is_divided_by_the_least_norm_and_not_by_zero(divide: str) -> None:
    norm = "s = Shape(x) n = ReduceL2(x, last) c = Clip(n, lo)"
    declared = "<float lo = {0.000000000001}, int64[1] last = {-1}>"
    model = graph_of(f"(float[n,4] x) => (float[n,4] y) {declared} {{ {norm} {divide} }}")
    x = np.array([[0, 0, 0, 0], [3, 0, 4, 0]], np.float32)
    half, kept = to_half(model)
    assert any("keeps a divisor from zero" in reason for reason in kept.values())
    usual = to_half(graph_of("normalization"))[1]  # whose epsilon float16 holds
    assert not any("divisor" in reason for reason in usual.values())
    (found,), (expected,) = run(half, x=x), run(model, x=x)
    np.testing.assert_array_equal(found[0], 0)
    np.testing.assert_allclose(found, expected, rtol=2e-3)


def test_a_weight_that_is_subnormal_as_a_whole_keeps_its_node_and_one_in_part_does_not() -> None:
    text = "(float[n,4] x) => (float[n,4] y) <float[4,4] small, float[4,4] mixed> { h = MatMul(x, small) "
    model = graph_of(text + "y = MatMul(h, mixed) }")
    give(model, "small", np.full((4, 4), 6.0e-5, np.float32))
    give(model, "mixed", np.where(np.eye(4), 1.0, 6.0e-5).astype(np.float32))
    half, kept = to_half(model)
    assert kept == {"MatMul_h": "'small' reaches only 6e-05, all subnormal in float16"}
    assert to_half(model, "bfloat16")[1] == {}
    assert output_error(run(model)[0], run(half)[0]).snr_db > 60


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper 16 bits after rounding to nearest, halves to even: add just less than half, or half."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


FINITE = st.floats(-(2.0**127), 2.0**127, width=32)


@settings(max_examples=40, deadline=None)
@given(arrays(np.float32, 8, elements=FINITE))
def test_weights_are_rounded_to_the_nearest_bfloat16(values: NDArray[np.float32]) -> None:
    model = graph_of("(float[n,8] x) => (float[n,8] y) <float[8] w> { y = Add(x, w) }")
    give(model, "w", values)
    if 0 < np.abs(values).max() < np.finfo(np.float32).tiny:
        return  # stays in float32
    half, kept = to_half(model, "bfloat16")
    assert kept == {}
    (stored,) = half.graph.initializer
    assert stored.data_type == TensorProto.BFLOAT16
    np.testing.assert_array_equal(np.frombuffer(stored.raw_data, np.uint16), bfloat16_bits(values))


@pytest.mark.parametrize(
    ("name", "dtype", "opset"),
    [
        ("linear", "bfloat16", 17),  # MatMul has had bfloat16 since opset 13
        ("convolution", "bfloat16", 22),
        ("shapes", "bfloat16", 20),
        ("convolution", "float16", 17),
        ("quantized", "float16", 19),
    ],
)
def test_the_opset_is_raised_no_further_than_the_type_needs(name: str, dtype: Half, opset: int) -> None:
    half, kept = to_half(graph_of(name, opset=17), dtype)
    assert ([item.version for item in half.opset_import], kept) == ([opset], {})
    onnx.checker.check_model(half, full_check=True)
    assert output_error(run(graph_of(name))[0], run(half)[0]).snr_db > 40
    text = "(float[n,4] x) => (float[n,4] y) <int64 one = {1}> { [sum] h = CumSum(x, one) y = Neg(h) }"
    half, kept = to_half(graph_of(text, opset=13))  # TensorRT 8 reads no opset beyond 17
    assert ([item.version for item in half.opset_import], set(kept)) == ([13], {"sum"})


def test_large_weights_and_names_survive_a_raised_opset() -> None:
    text = """(float[n,64,5,5] x) => (float[n,64,3,3] y) <float[64,64,3,3] w> { c = Conv(x, w) [last]
        y = Relu(c) }"""
    model = graph_of(text, opset=17)
    half, _ = to_half(model, "bfloat16")
    assert [node.name for node in half.graph.node if node.op_type in ("Conv", "Relu")] == ["Conv_c", "last"]
    expected = numpy_helper.to_array(model.graph.initializer[0]).astype(ml_dtypes.bfloat16)
    (stored,) = half.graph.initializer
    np.testing.assert_array_equal(
        numpy_helper.to_array(stored).astype(np.float32), expected.astype(np.float32)
    )


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("branch", {"If keeps its types"}),
        ("loop", {"Loop keeps its types"}),
        ("resize", set()),
        (LISTS, {"SequenceConstruct keeps its types", "ConcatFromSequence keeps its types"}),
    ],
)
def test_what_is_kept_in_float32_says_why(name: str, kept: set[str]) -> None:
    half, reasons = to_half(graph_of(name))
    assert kept == set(reasons.values())
    if name == LISTS:
        outputs_of(half, {"x": np.ones(4, np.float32)})
    if name == "resize":
        assert operands(half, "Resize") == [TensorProto.FLOAT16, TensorProto.FLOAT]  # its scales


@pytest.mark.parametrize("dtype", HALVES)
def test_what_a_range_counts_to_stays_in_float32(dtype: Half) -> None:
    """4097 is none of float16's numbers, and 257 none of bfloat16's."""
    text = """(float[n] x) => (float[n] y) <float zero = {0}, float one = {1}> {
        s = Size(x) [end] f = Cast <to = 1> (s) r = Range(zero, f, one) [sum] y = Add(x, r) }"""
    model, kept = to_half(graph_of(text), dtype)
    assert "end" in kept
    assert "sum" not in kept
    if dtype == "float16":
        assert outputs_of(model, {"x": np.zeros(4097, np.float32)})[0].shape == (4097,)


def test_an_activation_observed_beyond_65504_keeps_its_nodes_in_float32() -> None:
    ranges = Ranges("model", "data", 1)
    for name, largest in (("x", 1.0), ("h", 70000.0), ("y", 1.0)):
        ranges.histograms[name] = Histogram()
        ranges.histograms[name].add(np.array([-largest, largest], np.float32))
    half, kept = to_half(graph_of(LINEAR), ranges=ranges)
    assert set(kept.values()) == {"'h' reaches 7e+04, beyond float16's 65504"}
    assert len(kept) == 2
    assert set(operands(half, "MatMul")) == {TensorProto.FLOAT}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_initializers_that_are_listed_as_inputs_become_half(dtype: Half) -> None:
    """Files older than IR version 4 list them; a renamed one would be no input any more."""
    made = graph_of(LINEAR)
    give(made, "w", np.ones((4, 4), np.float32))
    made.ir_version = 3
    made.graph.input.append(onnx.helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))
    half, kept = to_half(made, dtype)
    onnx.checker.check_model(half)
    assert kept == {}
    assert [value.name for value in half.graph.input] == ["x"]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_scatter_that_reduces_stays_in_float32_and_onnx_runtime_runs_it(dtype: Half) -> None:
    text = """(float[n,4] x, int64[n,4] i) => (float[n,4] y) <float[4,4] w> { h = MatMul(x, w)
        p = ScatterElements(h, i, h) [sum] s = ScatterElements <reduction = "add"> (p, i, h) y = Relu(s) }"""
    model, kept = to_half(graph_of(text), dtype)
    assert [*kept] == ["sum"]
    if dtype == "float16":
        outputs_of(model, {"x": np.ones((3, 4), np.float32), "i": np.zeros((3, 4), np.int64)})


@pytest.mark.parametrize("dtype", HALVES)
def test_a_normalization_that_onnx_defines_by_float32_numbers_stays_in_float32(dtype: Half) -> None:
    text = """(float[n,4,4] x) => (float[n,4,4] y) <float[4,4] w> { h = MatMul(x, w)
        [norm] s = MeanVarianceNormalization <axes = [1, 2]> (h) y = Relu(s) }"""
    model, kept = to_half(graph_of(text), dtype)
    assert [*kept] == ["norm"]
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_graph_that_is_half_already_may_be_given_again(dtype: Half) -> None:
    """ONNX Runtime refused the second one: two of its casts had one name."""
    once, _ = to_half(graph_of("linear"), dtype)
    again, _ = to_half(once, dtype)
    names = [node.name for node in again.graph.node]
    assert len(names) == len(set(names))
    for expected, found in zip(run(once), run(again), strict=True):
        np.testing.assert_array_equal(expected, found)
