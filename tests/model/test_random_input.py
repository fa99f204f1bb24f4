"""What values an input takes is read from the graph: tables, masks, corners.

What a file says of its inputs is read back as it was written; a damaged entry is none.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qcompile.errors import DataError, ModelError
from qcompile.model.input_notes import KEY, AxisRange, InputNote, read_notes, write_notes
from qcompile.model.random_input import Domain, RandomInput, random_feeds, read_domains
from qcompile.tensors import Feeds, TensorInfo

INT64, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int | str]]],
    stored: dict[str, np.ndarray] | None = None,
    output: str = "y",
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(output, FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in (stored or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def embedding() -> onnx.ModelProto:
    """Token ids of 30 words, reshaped and cast on the way, and a mask beside them."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["narrow"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["narrow", "flat"], ["row"]),
        helper.make_node("Gather", ["table", "row"], ["words"]),
        helper.make_node("Cast", ["seen"], ["weight"], to=FLOAT),
        helper.make_node("Mul", ["weight", "half"], ["halved"]),
        helper.make_node("ReduceSum", ["words"], ["y"], keepdims=0),
    ]
    stored = {
        "table": np.ones((30, 4), np.float32),
        "flat": np.array([-1]),
        "half": np.array(0.5, np.float32),
    }
    ids = {"ids": (INT64, ["batch", "length"]), "seen": (INT64, ["batch", "length"])}
    return model_of(nodes, ids, stored)


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
    nodes = [
        helper.make_node("Gather", ["edges", "first"], ["source"]),
        helper.make_node("Gather", ["x", "source"], ["message"]),
        helper.make_node("ReduceSum", ["message"], ["y"], keepdims=0),
    ]
    inputs = {"x": (FLOAT, ["nodes", 3]), "edges": (INT64, [2, "edges"])}
    model = model_of(nodes, inputs, {"first": np.array(0)})
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
    nodes = [helper.make_node("OneHot", ["label", "depth", "values"], ["y"])]
    stored = {"depth": np.array(7), "values": np.array([0, 1], np.float32)}
    model = model_of(nodes, {"label": (INT64, ["batch"])}, stored)
    assert RandomInput(model).feeds(200)["label"].max() == 6


def test_positions_count_up_and_stay_in_their_table() -> None:
    nodes = [helper.make_node("Gather", ["table", "position_ids"], ["y"])]
    model = model_of(nodes, {"position_ids": (INT64, ["batch", 6])}, {"table": np.ones((4, 2), np.float32)})
    assert RandomInput(model).feeds()["position_ids"].tolist() == [[0, 1, 2, 3, 3, 3]]


def test_bytes_of_an_image_span_their_range() -> None:
    image = random_feeds([TensorInfo("image", "uint8", (1, 16, 16, 3))])["image"]
    assert image.max() > 200


def test_extents_are_those_of_the_example_within_their_ranges() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["batch", 3, "h", "w"])})
    write_notes(model, {"x": InputNote((2, 3, 100, 64), {2: AxisRange(32, 96, 32)})})
    made = RandomInput(model)
    assert not made.is_guess
    assert made.feeds(5)["x"].shape == (5, 3, 96, 64)


def test_extents_that_nobody_knows_are_tried_until_the_model_takes_them() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["batch", 3, "h", "w"])})
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
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, text
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
