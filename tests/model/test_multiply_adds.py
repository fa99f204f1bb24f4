"""Multiply-adds of every kind of layer, against a count of the products that a plain loop makes.

Sizes that do not fit Tensor Cores: hand-computed, and against padded models.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx
import onnxruntime
import pytest
import written_models
from hypothesis import given, settings
from hypothesis import strategies as st

from qcompile.model.input_notes import InputNote, write_notes
from qcompile.model.multiply_adds import ALIGNMENT, multiply_adds, named, shares, tensor_core_advice


def model_of(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """A model whose weights are ones of these shapes."""
    return written_models.model_of(text, **{n: np.ones(shape, np.float32) for n, shape in weights.items()})


LINEAR = {
    "MatMul": ("(float[2,3,4] x) => (float[2,3,5] y)", "MatMul", (4, 5)),
    "Gemm": ("(float[3,4] x) => (float[3,5] y)", "Gemm", (4, 5)),
    "transposed Gemm": ("(float[4,3] x) => (float[3,5] y)", "Gemm<transA = 1, transB = 1>", (5, 4)),
    "Conv": ("(float[2,4,5,6] x) => (float[2,3,3,4] y)", "Conv", (3, 4, 3, 3)),
    "grouped Conv": ("(float[2,4,7] x) => (float[2,6,3] y)", "Conv<group = 2, strides = [2]>", (6, 2, 3)),
    "ConvTranspose": (
        "(float[2,4,3] x) => (float[2,6,7] y)", "ConvTranspose<group = 2, strides = [2]>", (4, 3, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_a_count_is_the_sum_of_all_outputs_on_ones(name: str) -> None:
    """Of ones, without padding, every multiply-add adds one to one output: the outputs' sum is the count."""
    signature, operator, weight = LINEAR[name]
    model = model_of(f"{signature} {{ [a] y = {operator}(x, w) }}", w=weight)
    (value,) = model.graph.input
    x = np.ones([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert multiply_adds(model) == {"a": int(y.sum())}


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_multiply_input_and_state_in_every_step(operator: str, gates: int) -> None:
    steps, batch, width, hidden, directions = 5, 2, 3, 4, 2
    model = model_of(
        f"(float[{steps},{batch},{width}] x) => (float[s,d,b,h] y) "
        f'{{ [a] y = {operator}<hidden_size = {hidden}, direction = "bidirectional">(x, w, r) }}',
        w=(directions, gates * hidden, width),
        r=(directions, gates * hidden, hidden),
    )
    places = itertools.product(range(directions), range(steps), range(batch), range(gates), range(hidden))
    assert multiply_adds(model) == {"a": sum(width + hidden for _ in places)}


BODY = """(float[batch,4,height,width] x) => (float[batch,n] y) {
    [conv] c = Conv<pads = [1,1,1,1]>(x, w) shape = Shape<end = 1>(c) rest = Constant<value_ints = [-1]>()
    to = Concat<axis = 0>(shape, rest) [flat] f = Reshape(c, to) y = Relu(f) }"""


def test_dynamic_axes_are_those_of_the_example_or_1() -> None:
    model = model_of(BODY, w=(3, 4, 3, 3))
    assert multiply_adds(model) == {"conv": 3 * 4 * 9}
    write_notes(model, {"x": InputNote((2, 4, 8, 16))})
    assert multiply_adds(model) == {"conv": 2 * 8 * 16 * 3 * 4 * 9}


def test_extents_that_the_exporter_wrote_of_dynamic_axes_are_known() -> None:
    model = model_of(
        "(float[batch,4] x, int64[1] k) => (float[n,5] y) { s, i = TopK(x, k) [a] y = MatMul(s, w) }",
        w=(2, 5),
    )
    extents = {"2*batch + 1": 7, "batch//3": 1, "unknown": None, "max(1, batch)": None}
    for dimension, expected in extents.items():
        del model.graph.value_info[:]
        info = onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, [dimension, 2])
        model.graph.value_info.append(info)
        write_notes(model, {"x": InputNote((3, 4))})
        assert multiply_adds(model) == ({} if expected is None else {"a": expected * 2 * 5})


def test_what_cannot_be_inferred_is_left_out_and_layers_weigh_the_same() -> None:
    text = "(float[2,4] x, int64[1] k) => (float[n,5] y) { [a] b = MatMul(x, w) s, i = TopK(b, k) [c] y = "
    counts = multiply_adds(model_of(text + "MatMul(s, v) }", w=(4, 5), v=(2, 5)))
    assert counts == {"a": 40}
    assert shares(["a", "c"], counts) == ({"a": 0.5, "c": 0.5}, "layers")
    assert shares(["a", "c"], counts | {"c": 10}) == ({"a": 0.8, "c": 0.2}, "multiply-adds")


def test_the_largest_shares_are_named_first_and_the_rest_counted() -> None:
    layers = {f"n{i}": "f32" for i in range(10)}
    text = named(layers, {f"n{i}": i / 45 for i in range(10)})
    assert text.startswith("n9 (20.0%: f32), n8 (17.8%: f32)")
    assert text.endswith("n2 (4.4%: f32) and 2 more")


def convolution(cin: int, cout: int, group: int = 1) -> onnx.ModelProto:
    body = f"(float[1,{cin},8,8] x) => (float[b,{cout},6,6] y) {{ [a] y = Conv<group = {group}>(x, w) }}"
    return model_of(body, w=(cout, cin // group, 3, 3))


def product(k: int, n: int) -> onnx.ModelProto:
    return model_of(f"(float[1,{k}] x) => (float[m,{n}] y) {{ [a] y = MatMul(x, w) }}", w=(k, n))


@pytest.mark.parametrize(
    ("model", "precision", "advice"),
    [
        (convolution(3, 16), "fp16", "K 3 -> 8, 62.5% zeros"),  # of an image
        (convolution(3, 16), "tf32", "K 3 -> 4, 25.0% zeros"),
        (convolution(3, 16), "int8", "K 3 -> 16, 81.2% zeros"),
        (product(16, 50257), "fp16", "N 50257 -> 50264, 0.0% zeros"),  # the vocabulary of GPT-2
        (product(16, 50257), "int8", "N 50257 -> 50272, 0.0% zeros"),
        (convolution(24, 48, group=2), "fp16", "K 12 -> 16, 25.0% zeros"),
        (convolution(24, 24, group=24), "fp16", "depthwise"),
        (model_of("(float[5,3] x) => (float[3,7] y) { [a] y = Gemm<transA = 1, transB = 1>(x, w) }",
                  w=(7, 5)), "fp16", "K 5 -> 8, N 7 -> 8, 45.3% zeros"),
        (model_of("(float[1,6,4,4] x) => (float[1,10,6,6] y) { [a] y = ConvTranspose<group = 2>(x, w) }",
                  w=(6, 5, 3, 3)), "fp16", "K 3 -> 8, N 5 -> 8, 76.6% zeros"),
        (model_of("(float[2,4,9,20] q, float[2,4,20,9] k) => (float[2,4,9,9] y) { [a] y = MatMul(q, k) }"),
         "fp16", "K 20 -> 24, N 9 -> 16, 53.1% zeros"),
    ],
)  # fmt: skip
def test_the_next_multiples_and_the_zeros_are_named(
    model: onnx.ModelProto, precision: str, advice: str
) -> None:
    assert tensor_core_advice(model, precision) == {"a": advice}


@pytest.mark.parametrize(
    ("precision", "multiple"),
    [("tf32", 4), ("fp16", 8), ("bf16", 8), ("int8", 16), ("fp8", 16), ("int4", 32), ("nvfp4", 32)],
)
def test_the_multiple_of_a_precision_is_sixteen_bytes(precision: str, multiple: int) -> None:
    assert ALIGNMENT[precision] == multiple
    assert tensor_core_advice(model_of("(float[2,4] x) => (float[2,4] y) { y = Relu(x) }"), precision) == {}
    assert tensor_core_advice(convolution(multiple, 2 * multiple), precision) == {"a": "fits"}
    assert tensor_core_advice(convolution(multiple, multiple + 1), precision) != {"a": "fits"}


@settings(max_examples=60)
@given(st.sampled_from(sorted(ALIGNMENT)), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 3]))
def test_the_zeros_are_those_of_the_padded_model(precision: str, k: int, n: int, group: int) -> None:
    """The oracle: a model of the padded sizes, whose multiply-adds are counted."""
    if group > 1 and k == 1:
        return  # depthwise
    model, multiple = convolution(k * group, n * group, group), ALIGNMENT[precision]
    wide = [math.ceil(size / multiple) * multiple * group for size in (k, n)]
    ((before,), (after,)) = (multiply_adds(one).values() for one in (model, convolution(*wide, group)))
    said = tensor_core_advice(model, precision)["a"]
    zeros = 0.0 if said == "fits" else float(said.rpartition(", ")[2].removesuffix("% zeros"))
    assert zeros == pytest.approx(100 * (1 - before / after), abs=0.051)
    assert (said == "fits") == (before == after)
