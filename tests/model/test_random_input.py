"""What values an input takes is read from the graph: tables, masks, corners.

What a file says of its inputs is read back as it was written; a damaged entry is none.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from qcompile.errors import DataError, ModelError
from qcompile.model.input_notes import KEY, AxisRange, InputNote, read_notes, write_notes
from qcompile.model.random_input import Domain, RandomInput, random_feeds, read_domains
from qcompile.tensors import Feeds, TensorInfo

IMAGES = "(float[batch, 3, h, w] x) => (float[batch, 3, h, w] y) { y = Relu (x) }"


def model_of(text: str, **stored: np.ndarray) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in stored.items())
    return model


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
    model = embedding()
    assert read_domains(model)["ids"] == Domain("index", (30,))
    feeds = RandomInput(model).feeds(64)
    assert feeds["ids"].min() >= 0
    assert 2 <= feeds["ids"].max() < 30


def test_whole_numbers_that_are_multiplied_are_a_mask_with_a_padded_tail() -> None:
    mask = RandomInput(embedding()).feeds(3)["seen"]
    assert mask.dtype == np.int64
    assert (mask[:, 0] == 1).all()
    assert (mask[:, -1] == 0).all()
    assert (np.diff(mask, axis=1) <= 0).all()


def test_a_mask_of_one_position_is_not_empty() -> None:
    tensor = TensorInfo("attention_mask", "int64", ("batch", "length"))
    assert random_feeds([tensor])["attention_mask"].tolist() == [[1]]


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


def test_corners_of_boxes_are_in_order() -> None:
    tensor = TensorInfo("boxes", "float32", (5, 4))
    x1, y1, x2, y2 = random_feeds([tensor])["boxes"].T
    assert (x1 < x2).all()
    assert (y1 < y2).all()


def test_rows_of_a_class_stay_below_its_depth() -> None:
    text = "(int64[batch] label) => (float[batch, 7] y) { y = OneHot (label, depth, values) }"
    model = model_of(text, depth=np.array(7), values=np.array([0, 1], np.float32))
    assert RandomInput(model).feeds(200)["label"].max() == 6


def test_positions_count_up_and_stay_in_their_table() -> None:
    text = "(int64[batch, 6] position_ids) => (float[n, 6, 2] y) { y = Gather (table, position_ids) }"
    model = model_of(text, table=np.ones((4, 2), np.float32))
    assert RandomInput(model).feeds()["position_ids"].tolist() == [[0, 1, 2, 3, 3, 3]]


def test_bytes_of_an_image_span_their_range() -> None:
    image = random_feeds([TensorInfo("image", "uint8", (1, 16, 16, 3))])["image"]
    assert image.max() > 200


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


def test_a_refusal_names_the_input_that_was_made_up_and_the_way_to_real_input() -> None:
    made = RandomInput(embedding())

    def run(_: Feeds) -> None:
        raise ModelError("it fails", file="m.onnx")

    with pytest.raises(ModelError, match=r"it fails \(the input was made up: ids:1x16:int64") as caught:
        made.run(run)
    assert "`data`" in caught.value.hint
    assert caught.value.data["file"] == "m.onnx"


def test_text_cannot_be_made_up() -> None:
    with pytest.raises(DataError, match="string"):
        random_feeds([TensorInfo("words", "string", (1,))])


def test_notes_come_back_as_they_were_written() -> None:
    model = onnx.ModelProto()
    notes = {"x": InputNote((2, 3, 64), {2: AxisRange(32, None, 8)}), "y": InputNote(())}
    write_notes(model, {"old": InputNote((1,))})
    write_notes(model, notes)
    assert read_notes(model) == notes
    assert len(model.metadata_props) == 1


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"x": 3}', '{"x": {"example": [true], "axes": {}}}', "[" * 100_000,
     '{"x": {"example": [-1], "axes": {}}}', '{"x": {"example": [2], "axes": {"a": {}}}}'],
)  # fmt: skip
def test_a_damaged_note_is_none(text: str) -> None:
    model = onnx.ModelProto()
    model.metadata_props.add(key=KEY, value=text)
    assert read_notes(model) == {}


@given(st.integers(1, 40), st.integers(0, 80), st.integers(1, 9), st.integers(0, 200))
def test_the_nearest_extent_is_one_that_the_axis_takes(low: int, more: int, step: int, extent: int) -> None:
    limits = AxisRange(low, low + more, step)
    allowed = [n for n in range(low, low + more + 1) if n % step == 0]
    found = limits.nearest(extent)
    if allowed:
        assert found in allowed
        above = [n for n in allowed if n >= extent]
        assert found == (above[0] if above else allowed[-1])
