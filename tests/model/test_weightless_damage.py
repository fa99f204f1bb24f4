"""What is no model is named."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from weightless_models import (
    assert_weightless,
    large,
)

from qcompile.errors import MissingFile, ModelError
from qcompile.model.weightless import read_weightless


def reads_as_protobuf(content: bytes) -> onnx.ModelProto | None:
    """What protobuf makes of it; None where it refuses or finds no graph."""
    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, UnicodeDecodeError):
        return None
    return model if model.graph.node or model.graph.output else None


@pytest.fixture(scope="module")
def content() -> bytes:
    """A model file with weights of both kinds, and fields behind its graph."""
    model = large()
    helper.set_model_props(model, {"made": "here", "by": "tests"})
    return model.SerializeToString()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path to write damaged content to."""
    return tmp_path_factory.mktemp("damaged") / "m.onnx"


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_a_cut_file_is_named(content: bytes, file: Path, data: st.DataObject) -> None:
    weight = len(large().graph.initializer[0].raw_data)
    graph = content.index(large().graph.initializer[0].raw_data)
    near = st.integers(0, graph + 9) | st.integers(graph + weight - 9, len(content) - 1)
    size = data.draw(near | st.integers(0, len(content) - 1))
    file.write_bytes(content[:size])
    # Between two fields of the model the rest is a model to anybody; behind the graph it has one.
    whole = reads_as_protobuf(content[:size])
    if whole is not None:
        assert_weightless(read_weightless(file), whole)
        assert size > graph + weight
        return
    with pytest.raises(
        ModelError, match=r"m\.onnx: (not an ONNX model, or cut off|holds no graph)"
    ) as caught:
        read_weightless(file)
    assert caught.value.data["file"] == file
    assert caught.value.hint


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_flipped_bytes_are_named_or_leave_what_protobuf_reads(
    content: bytes, file: Path, data: st.DataObject
) -> None:
    damaged = bytearray(content)
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        damaged[place] ^= data.draw(st.integers(1, 255))
    file.write_bytes(damaged)
    refused = ""
    try:
        read_weightless(file)
    except ModelError as error:
        refused = error.message
    assert refused.startswith(f"{file}: ") if refused else reads_as_protobuf(bytes(damaged)) is not None


@settings(deadline=None, max_examples=300)
@given(garbage=st.binary(max_size=200))
def test_garbage_is_named(file: Path, garbage: bytes) -> None:
    file.write_bytes(garbage)
    if reads_as_protobuf(garbage) is None:
        with pytest.raises(ModelError, match=r"m\.onnx: (not an ONNX model|holds no graph)"):
            read_weightless(file)
    else:
        read_weightless(file)


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="is a folder"):
        read_weightless(tmp_path)
    with pytest.raises(MissingFile, match=r"none\.onnx does not exist"):
        read_weightless(tmp_path / "none.onnx")
