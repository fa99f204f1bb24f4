"""How a sample becomes an input: it is read as it was written, and travels with the model's files."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qcompile.errors import InvalidOption
from qcompile.model.input_notes import InputNote, read_notes, write_notes
from qcompile.model.onnx_file import load_onnx, model_io, save_onnx
from qcompile.model.preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    TextPreprocessing,
    as_json,
    preprocessing_of,
    read_preprocessing,
)
from qcompile.tensors import ModelIO, TensorInfo

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
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 3, 224, 224] x) => (float[n, 3, h, w] y) '
        "{ y = Relu(x) }"
    )
    write_notes(model, {"x": InputNote((1, 3, 224, 224), preprocessing=as_json(IMAGE))})
    save_onnx(model, tmp_path / "m.onnx")
    io = model_io(load_onnx(tmp_path / "m.onnx"))
    assert preprocessing_of(io.inputs) == IMAGE
    assert preprocessing_of(ModelIO.from_json(io.as_json()).inputs) == IMAGE  # type: ignore[arg-type]
    assert read_notes(model)["x"].example == (1, 3, 224, 224)
    assert preprocessing_of([TensorInfo("x", "float32", (1,))]) is None
