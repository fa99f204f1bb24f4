"""What values an input takes is read from the graph, and how a sample becomes one from the file's notes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_models import model_of

from qcompile.errors import DataError, InvalidOption, ModelError
from qcompile.model.input_notes import KEY, AxisRange, InputNote, read_notes, write_notes
from qcompile.model.onnx_file import model_io, save_onnx
from qcompile.model.onnx_graph import read_graph
from qcompile.model.preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    TextPreprocessing,
    as_json,
    preprocessing_of,
    read_preprocessing,
)
from qcompile.model.random_input import Domain, RandomInput, random_feeds, read_domains
from qcompile.tensors import Feeds, ModelIO, TensorInfo

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


def test_a_refusal_names_the_input_that_was_made_up_and_the_way_to_real_input() -> None:
    made = RandomInput(embedding())

    def run(_: Feeds) -> None:
        raise ModelError("it fails", file="m.onnx")

    with pytest.raises(ModelError, match=r"it fails \(the input was made up: ids:1x16:int64") as caught:
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
    ],
)
def test_what_cannot_be_read_is_named(value: object, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        read_preprocessing(value)


def test_an_onnx_file_and_a_manifest_carry_it(tmp_path: Path) -> None:
    model = model_of("(float[batch, 3, 224, 224] x) => (float[n, 3, h, w] y) { y = Relu(x) }")
    write_notes(model, {"x": InputNote((1, 3, 224, 224), preprocessing=as_json(IMAGE))})
    save_onnx(model, tmp_path / "m.onnx")
    io = model_io(read_graph(tmp_path / "m.onnx").load())
    assert preprocessing_of(io.inputs) == IMAGE
    assert preprocessing_of(ModelIO.from_json(io.as_json()).inputs) == IMAGE  # type: ignore[arg-type]
    assert read_notes(model)["x"].example == (1, 3, 224, 224)
    assert preprocessing_of([TensorInfo("x", "float32", (1,))]) is None
