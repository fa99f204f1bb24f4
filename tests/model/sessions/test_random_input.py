"""What values an input takes is read from the graph, and how a sample becomes one from the file's notes.

What a graph computes: multiply-adds of every kind of layer, against a count of the products that a plain loop
makes, and sizes that do not fit Tensor Cores, by hand and against padded models.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_models import model_of

from qcompile.errors import DataError, InvalidOption, ModelError
from qcompile.model.graph.input_notes import AxisRange, InputNote, read_notes, write_notes
from qcompile.model.graph.multiply_adds import (
    ALIGNMENT,
    format_layers,
    multiply_adds,
    shares,
    tensor_core_advice,
)
from qcompile.model.sessions.random_input import Domain, RandomInput, random_feeds, read_domains
from qcompile.model.sources.load import find_preprocessing
from qcompile.model.sources.preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    TextPreprocessing,
    as_json,
    read_preprocessing,
)
from qcompile.spec.tensors import Feeds, TensorInfo

IMAGES = "(float[batch, 3, h, w] x) => (float[batch, 3, h, w] y) { y = Relu (x) }"


def embedding() -> onnx.ModelProto:
    """Token ids of 30 words, reshaped and cast on the way, and a mask beside them."""
    return model_of(
        """(int64[batch, length] ids, int64[batch, length] seen) => (float y) {
            narrow = Cast <to = 6> (ids)  row = Reshape (narrow, flat)  words = Gather (table, row)
            weight = Cast <to = 1> (seen)  halved = Mul (weight, half)
            y = ReduceSum <keepdims = 0> (words)
        }""",
        table=np.ones((30, 4), np.float32), flat=np.array([-1]), half=np.array(0.5, np.float32),
    )  # fmt: skip


def test_indices_stay_within_the_table_that_they_index() -> None:
    assert read_domains(embedding())["ids"] == Domain("index", (30,))
    ids = RandomInput(embedding()).feeds(64)["ids"]
    assert ids.min() >= 0
    assert 2 <= ids.max() < 30


def test_whole_numbers_that_are_multiplied_are_a_mask_with_a_padded_tail() -> None:
    mask = RandomInput(embedding()).feeds(3)["seen"]
    assert mask.dtype == np.int64
    assert (mask[:, 0] == 1).all()
    assert (mask[:, -1] == 0).all()
    assert (np.diff(mask, axis=1) <= 0).all()


def test_edges_of_a_graph_name_nodes_that_are_there() -> None:
    model = model_of(
        """(float[nodes, 3] x, int64[2, edges] edges) => (float y) {
            source = Gather (edges, first)  message = Gather (x, source)
            y = ReduceSum <keepdims = 0> (message)
        }""",
        first=np.array(0),
    )
    write_notes(model, {"x": InputNote((7, 3)), "edges": InputNote((2, 20))})
    assert read_domains(model)["edges"] == Domain("index", ("nodes",))
    feeds = RandomInput(model).feeds()
    assert feeds["x"].shape == (7, 3)
    assert feeds["edges"].shape == (2, 20)
    assert 1 < feeds["edges"].max() < 7


def test_classes_stay_below_their_depth_and_positions_count_up_within_their_table() -> None:
    text = "(int64[batch] label) => (float[batch, 7] y) { y = OneHot (label, depth, values) }"
    model = model_of(text, depth=np.array(7), values=np.array([0, 1], np.float32))
    assert RandomInput(model).feeds(200)["label"].max() == 6
    text = "(int32[batch, 1] label) => (bool[batch, 7] y) { y = Equal (label, classes) }"  # as JAX writes it
    model = model_of(text, classes=np.arange(7, dtype=np.int32)[None])
    assert RandomInput(model).feeds(200)["label"].max() == 6
    text = "(int64[batch, 6] position_ids) => (float[n, 6, 2] y) { y = Gather (table, position_ids) }"
    model = model_of(text, table=np.ones((4, 2), np.float32))
    assert RandomInput(model).feeds()["position_ids"].tolist() == [[0, 1, 2, 3, 3, 3]]


def test_names_and_types_tell_masks_corners_and_bytes_of_images() -> None:
    def values(name: str, dtype: str, *shape: int | str) -> np.ndarray:
        return np.asarray(random_feeds([TensorInfo(name, dtype, shape)])[name])

    assert values("attention_mask", "int64", "batch", "length").tolist() == [[1]]  # one position is not empty
    x1, y1, x2, y2 = values("boxes", "float32", 5, 4).T
    assert (x1 < x2).all()
    assert (y1 < y2).all()
    assert values("image", "uint8", 1, 16, 16, 3).max() > 200
    with pytest.raises(DataError, match="string"):
        values("words", "string", 1)


def test_extents_are_those_of_the_example_within_their_ranges() -> None:
    model = model_of(IMAGES)
    write_notes(model, {"x": InputNote((2, 3, 100, 64), {2: AxisRange(32, 96, 32)})})
    made = RandomInput(model)
    assert not made.is_guess
    assert made.feeds(5)["x"].shape == (5, 3, 96, 64)


def test_extents_that_nobody_knows_are_tried_until_the_model_takes_them() -> None:
    model = model_of(IMAGES)
    made = RandomInput(model)
    assert made.is_guess

    def run(feeds: Feeds) -> str:
        if feeds["x"].shape[2] != 48:
            raise ModelError("x: 48 rows are required")
        return "ran"

    feeds, result = made.run(run)
    assert (feeds["x"].shape, result) == ((1, 3, 48, 48), "ran")
    assert made.feeds(2)["x"].shape == (2, 3, 48, 48)


def test_guesses_of_gigabytes_are_left_out() -> None:
    """Of a network with a state, whose first axis is none of the batch: only a batch of 1 fits it."""
    inputs = "float[many, 3, frames, 160] x, float[4, 1, 64] h"
    text = f"({inputs}) => (float y) {{ y = ReduceSum <keepdims = 0> (x) }}"
    tried: list[tuple[int, ...]] = []

    def run(feeds: Feeds) -> None:
        tried.append(feeds["x"].shape)
        if len(feeds["x"]) > 1:
            raise ModelError("another batch is required")

    RandomInput(model_of(text)).run(run)
    assert tried[-1] == (1, 3, 1, 160)
    assert max(np.prod(shape) for shape in tried) <= 1 << 26
    assert len(tried) == 5
    tried.clear()
    RandomInput(model_of(text.replace("many", "batch_size"))).run(run)
    assert tried == [(16, 3, 16, 160), (1, 3, 64, 160)]


def test_a_refusal_names_the_input_that_was_made_up_and_the_way_to_real_input() -> None:
    made = RandomInput(embedding())

    def run(_: Feeds) -> None:
        raise ModelError("it fails", file="m.onnx")

    with pytest.raises(ModelError, match=r"it fails \(with random input: ids:1x16:int64") as caught:
        made.run(run)
    assert "`data`" in caught.value.hint
    assert caught.value.data["file"] == "m.onnx"


def test_notes_come_back_as_they_were_written() -> None:
    model = onnx.ModelProto()
    notes = {"x": InputNote((2, 3, 64), {2: AxisRange(32, None, 8)}), "y": InputNote(())}
    write_notes(model, {"old": InputNote((1,))})
    write_notes(model, notes)
    assert read_notes(model) == notes
    assert len(model.metadata_props) == 1


@given(st.integers(1, 40), st.integers(0, 80), st.integers(1, 9), st.integers(0, 200))
def test_the_nearest_extent_is_one_that_the_axis_takes(low: int, more: int, step: int, extent: int) -> None:
    limits = AxisRange(low, low + more, step)
    allowed = [n for n in range(low, low + more + 1) if n % step == 0]
    found = limits.round_up(extent)
    if allowed:
        assert found in allowed
        above = [n for n in allowed if n >= extent]
        assert found == (above[0] if above else allowed[-1])


IMAGE = ImagePreprocessing(input="x", height=224, width=224, resize=(256,), mean=(0.5, 0.4, 0.3))
KINDS = [
    IMAGE,
    TextPreprocessing(tokenizer="folder", inputs=("input_ids",), classes=("no", "yes")),
    AudioPreprocessing(inputs=("input_values",), vocabulary=("", "a", "b"), task="speech-recognition"),
]


@pytest.mark.parametrize("one", KINDS, ids=lambda one: one.kind)
def test_each_kind_is_read_as_it_was_written(one: object) -> None:
    assert read_preprocessing(as_json(one)) == one  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"kind": "smell"}, "'smell'"),
        ([], "None"),
        ({"kind": "image", "height": "tall", "width": 4}, "height"),
        ({"kind": "text", "tokenizer": "t"}, "inputs"),
        ({"kind": "image", "height": 4, "width": 4, "mean": [1, 2]}, "one value per channel"),
        (
            {"kind": "image", "height": 4, "width": 4, "rezise": [8]},
            "no 'rezise'\n  hint: did you mean 'resize'",
        ),
    ],
)
def test_what_cannot_be_read_is_named(value: object, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(value))
    with pytest.raises(InvalidOption, match=said):
        find_preprocessing("p.json", base=tmp_path)


def ones_model(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """A model whose weights are ones of these shapes."""
    return model_of(text, **{n: np.ones(shape, np.float32) for n, shape in weights.items()})


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
    model = ones_model(f"{signature} {{ [a] y = {operator}(x, w) }}", w=weight)
    (value,) = model.graph.input
    x = np.ones([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert multiply_adds(model) == {"a": int(y.sum())}


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_multiply_input_and_state_in_every_step(operator: str, gates: int) -> None:
    steps, batch, width, hidden, directions = 5, 2, 3, 4, 2
    model = ones_model(
        f"(float[{steps},{batch},{width}] x) => (float[s,d,b,h] y) "
        f'{{ [a] y = {operator}<hidden_size = {hidden}, direction = "bidirectional">(x, w, r) }}',
        w=(directions, gates * hidden, width),
        r=(directions, gates * hidden, hidden),
    )
    places = itertools.product(range(directions), range(steps), range(batch), range(gates), range(hidden))
    total = sum(width + hidden for _ in places)
    assert multiply_adds(model) == {"a": total}
    if operator == "LSTM":  # in INT8 it has the weights transposed
        model.graph.node[0].op_type, model.graph.node[0].domain = "DynamicQuantizeLSTM", "com.microsoft"
        for tensor in model.graph.initializer:
            tensor.dims[1], tensor.dims[2] = tensor.dims[2], tensor.dims[1]
        assert multiply_adds(model) == {"a": total}


BODY = """(float[batch,4,height,width] x) => (float[batch,n] y) {
    [conv] c = Conv<pads = [1,1,1,1]>(x, w) shape = Shape<end = 1>(c) rest = Constant<value_ints = [-1]>()
    to = Concat<axis = 0>(shape, rest) [flat] f = Reshape(c, to) y = Relu(f) }"""


def test_dynamic_axes_are_those_of_the_example_or_1() -> None:
    model = ones_model(BODY, w=(3, 4, 3, 3))
    assert multiply_adds(model) == {"conv": 3 * 4 * 9}
    write_notes(model, {"x": InputNote((2, 4, 8, 16))})
    assert multiply_adds(model) == {"conv": 2 * 8 * 16 * 3 * 4 * 9}


def test_extents_that_the_exporter_wrote_of_dynamic_axes_are_known() -> None:
    model = ones_model(
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
    counts = multiply_adds(ones_model(text + "MatMul(s, v) }", w=(4, 5), v=(2, 5)))
    assert counts == {"a": 40}
    assert shares(["a", "c"], counts) == ({"a": 0.5, "c": 0.5}, "layers")
    assert shares(["a", "c"], counts | {"c": 10}) == ({"a": 0.8, "c": 0.2}, "multiply-adds")


def test_the_largest_shares_are_named_first_and_the_rest_counted() -> None:
    layers = {f"n{i}": "f32" for i in range(10)}
    text = format_layers(layers, {f"n{i}": i / 45 for i in range(10)})
    assert text.startswith("n9 (20.0%: f32), n8 (17.8%: f32)")
    assert text.endswith("n2 (4.4%: f32) and 2 more")


def convolution(cin: int, cout: int, group: int = 1) -> onnx.ModelProto:
    body = f"(float[1,{cin},8,8] x) => (float[b,{cout},6,6] y) {{ [a] y = Conv<group = {group}>(x, w) }}"
    return ones_model(body, w=(cout, cin // group, 3, 3))


def product(k: int, n: int) -> onnx.ModelProto:
    return ones_model(f"(float[1,{k}] x) => (float[m,{n}] y) {{ [a] y = MatMul(x, w) }}", w=(k, n))


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
        (ones_model("(float[5,3] x) => (float[3,7] y) { [a] y = Gemm<transA = 1, transB = 1>(x, w) }",
                  w=(7, 5)), "fp16", "K 5 -> 8, N 7 -> 8, 45.3% zeros"),
        (ones_model("(float[1,6,4,4] x) => (float[1,10,6,6] y) { [a] y = ConvTranspose<group = 2>(x, w) }",
                  w=(6, 5, 3, 3)), "fp16", "K 3 -> 8, N 5 -> 8, 76.6% zeros"),
        (ones_model("(float[2,4,9,20] q, float[2,4,20,9] k) => (float[2,4,9,9] y) { [a] y = MatMul(q, k) }"),
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
