"""FP16 where the graph can take it; ONNX's checker, its reference, and TensorRT's parser agree."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tensorrt_rtx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from qcompile.calibration import Ranges
from qcompile.calibration.histogram import Histogram
from qcompile.compiler.precision import to_half
from qcompile.engines.tensorrt.log import make_log
from qcompile.errors import InvalidOption
from qcompile.model.fidelity import fidelity
from qcompile.model.made_input import made_feeds
from qcompile.model.onnx_file import model_io

LINEAR = "(float[n,4] x) => (float[n,4] y) <float[4,4] w> { h = MatMul(x, w) y = Relu(h) }"

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
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, w) }""",
    "lstm": """(float[5,1,8] x) => (float[5,1,1,4] y) <float[1,16,8] w, float[1,16,4] r> {
        y = LSTM <hidden_size = 4> (x, w, r) }""",
    "resize": """(float[n,4,8,8] x) => (float[n,4,16,16] y) <float[4,4,1,1] w, float[4] s = {1,1,2,2}> {
        a = Conv(x, w) y = Resize <mode = "linear"> (a, , s) }""",
    "range": """(float[n,4] x) => (float[n,4] y) <float a = {0}, float b = {4}, float c = {1}> {
        r = Range(a, b, c) y = Add(x, r) }""",
    "mask": """(float[n,4] x, bool[n,4] m) => (float[n,4] y) <float[4,4] w, float[1] k = {-3.4e38}> {
        h = MatMul(x, w) s = Where(m, h, k) y = Softmax <axis = -1> (s) }""",
    "large": """(float[n,4] x) => (float[n,4] y) <float[4,4] w, float[1] k = {100000}> {
        h = MatMul(x, w) [times_k] y = Mul(h, k) }""",
}


def graph(name_or_text: str) -> onnx.ModelProto:
    """A checked model; weights declared without values are normal ones."""
    text = GRAPHS.get(name_or_text, name_or_text)
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 19]> tiny {text}')
    generator = np.random.default_rng(0)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        weight = (generator.standard_normal(shape) * 0.3).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, value.name))
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, **given: NDArray[np.generic]) -> list[NDArray[np.float32]]:
    """Outputs by ONNX's own reference, which computes in float16 where the graph says so."""
    feeds = made_feeds(model_io(model).inputs, extent=3) | given
    with np.errstate(over="ignore", invalid="ignore"):  # what became infinite or NaN is compared
        return list(ReferenceEvaluator(model).run(None, feeds))


def operands(model: onnx.ModelProto, operator: str) -> list[int]:
    """The element types of the first node of an operator: its inputs, as far as they are known."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    types = {
        v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.value_info, *inferred.graph.input)
    }
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    node = next(node for node in model.graph.node if node.op_type == operator)
    return [types[name] for name in node.input if name]


@pytest.mark.parametrize("name", GRAPHS)
def test_a_converted_graph_is_valid_keeps_its_types_and_its_outputs(name: str) -> None:
    model = graph(name)
    half, _ = to_half(model)
    onnx.checker.check_model(half, full_check=True)
    assert model_io(half) == model_io(model)
    for expected, found in zip(run(model), run(half), strict=True):
        assert found.dtype == expected.dtype
        assert fidelity(expected, found).snr_db > 40


@pytest.mark.parametrize("name", GRAPHS)
def test_tensorrt_accepts_a_converted_graph(name: str) -> None:
    half, _ = to_half(graph(name))
    log = make_log(tensorrt_rtx)
    strongly_typed = 1 << int(tensorrt_rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = tensorrt_rtx.Builder(log).create_network(strongly_typed)
    onnx_parser = tensorrt_rtx.OnnxParser(network, log)
    accepted = onnx_parser.parse(half.SerializeToString())
    assert accepted, onnx_parser.get_error(0).desc()


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("linear", "MatMul"),
        ("convolution", "Conv"),
        ("convolution", "Clip"),
        ("attention", "Softmax"),
        ("normalization", "Pow"),
        ("constants", "Mul"),
        ("constants", "Sub"),
        ("shapes", "Add"),
        ("casts", "MatMul"),
        ("integers", "Add"),
        ("inner_output", "Relu"),
        ("branch", "Relu"),
        ("quantized", "MatMul"),
        ("lstm", "LSTM"),
    ],
)
def test_what_can_compute_in_float16_does(name: str, operator: str) -> None:
    half, _ = to_half(graph(name))
    assert set(operands(half, operator)) == {TensorProto.FLOAT16}


def test_the_given_model_is_not_changed() -> None:
    model = graph("branch")
    before = model.SerializeToString(deterministic=True)
    to_half(model)
    assert model.SerializeToString(deterministic=True) == before


def test_a_constant_beyond_65504_keeps_its_node_in_float32_and_is_named() -> None:
    half, kept = to_half(graph("large"))
    assert kept == {"times_k": "'k' reaches 1e+05, beyond float16's 65504"}
    assert set(operands(half, "Mul")) == {TensorProto.FLOAT}
    assert set(operands(half, "MatMul")) == {TensorProto.FLOAT16}


def test_a_mask_of_the_lowest_float_is_not_made_smaller() -> None:
    half, kept = to_half(graph("mask"))
    assert "'k' reaches 3.4e+38, beyond float16's 65504" in kept.values()
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in half.graph.initializer}
    assert stored["k"] == np.float32(-3.4e38)


def test_a_row_that_is_masked_as_a_whole_stays_uniform() -> None:
    half, _ = to_half(graph("mask"))
    (found,) = run(half, m=np.zeros((3, 4), np.bool_))
    np.testing.assert_allclose(found, np.full((3, 4), 0.25), rtol=1e-3)


def test_an_infinite_mask_is_float16_as_it_is() -> None:
    half, kept = to_half(graph(GRAPHS["mask"].replace("-3.4e38", "-inf")))
    assert kept == {}
    assert set(operands(half, "Softmax")) == {TensorProto.FLOAT16}
    assert np.isfinite(run(half)[0]).all()


def test_resize_keeps_float32_scales_behind_a_float16_image() -> None:
    half, kept = to_half(graph("resize"))
    assert kept == {}
    assert operands(half, "Resize") == [TensorProto.FLOAT16, TensorProto.FLOAT]


def test_nodes_with_graphs_inside_and_quantizers_keep_their_types_with_the_reason() -> None:
    for name, operator in (("branch", "If"), ("loop", "Loop"), ("quantized", "QuantizeLinear")):
        _, kept = to_half(graph(name))
        assert f"{operator} keeps its types" in kept.values()


@pytest.mark.parametrize("pattern", ["MatMul", "Mat*", "[!R]*"])
def test_a_blocked_node_stays_in_float32_between_casts(pattern: str) -> None:
    half, kept = to_half(graph(LINEAR), block=[pattern])
    assert list(kept.values()) == [f"excluded by {pattern!r}"]
    assert set(operands(half, "MatMul")) == {TensorProto.FLOAT}
    assert set(operands(half, "Relu")) == {TensorProto.FLOAT16}


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="'Convolution'"):
        to_half(graph(LINEAR), block=["Convolution"])


def test_an_activation_observed_beyond_65504_keeps_its_nodes_in_float32() -> None:
    ranges = Ranges("model", "data", 1)
    for name, largest in (("x", 1.0), ("h", 70000.0), ("y", 1.0)):
        ranges.histograms[name] = Histogram()
        ranges.histograms[name].add(np.array([-largest, largest], np.float32))
    half, kept = to_half(graph(LINEAR), ranges=ranges)
    assert set(kept.values()) == {"'h' reaches 7e+04, beyond float16's 65504"}
    assert len(kept) == 2
    assert set(operands(half, "MatMul")) == {TensorProto.FLOAT}
