"""Names and fixed extents for the open axes of an ONNX file; the original file computes what is expected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from written_models import model_of

import qcompile
from qcompile.core.artifact import load_artifact
from qcompile.errors import InvalidOption
from qcompile.model.graph.input_notes import AxisRange, InputNote, read_notes, write_notes
from qcompile.spec.tensors import Dim

TEXT = """(float[batch,4] x, float[batch,len] y, float[rows,3] z)
    => (float[batch,4] s, float[double,4] c, float[rest,3] r) <float[1] two = {2}> { h = Mul(x, two)
    s = Relu(h) c = Concat <axis = 0> (s, x) m = ReduceSum <keepdims = 0> (y) r = Mul(z, m) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = model_of(TEXT)
    proto.graph.output[1].type.tensor_type.shape.dim[0].dim_param = "2*batch"
    proto.graph.input[2].type.tensor_type.shape.dim[0].ClearField("dim_param")
    write_notes(proto, {"y": InputNote((2, 8), {1: AxisRange(4, 16, 4)}, None, {1: (4, 8, 16)})})
    onnx.save(proto, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def shapes_of(path: Path) -> dict[str, tuple[Dim, ...]]:
    io = load_artifact(path).manifest.io
    assert io is not None
    return {tensor.name: tensor.shape for tensor in (*io.inputs, *io.outputs)}


def assert_same_outputs(first: Path, second: Path, batch: int) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("x", (batch, 4)), ("y", (batch, 8)), ("z", (5, 3)))
    }
    expected, actual = (ort.InferenceSession(str(path)).run(None, feeds) for path in (first, second))
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("inputs", "dynamic", "expected"),
    [
        (["x:[n,4]"], [], {"x": ("n", 4), "y": ("n", "len"), "s": ("n", 4), "c": ("2*n", 4)}),
        ([], ["y:0=n"], {"x": ("n", 4), "y": ("n", "len"), "s": ("n", 4), "c": ("2*n", 4)}),
        ([], ["z:0=rows"], {"x": ("batch", 4), "z": ("rows", 3), "c": ("2*batch", 4)}),
        (["x:3x4"], [], {"x": (3, 4), "y": (3, "len"), "z": ("?", 3), "s": (3, 4), "c": (6, 4)}),
        (["x:3x4", "y:3x8"], ["z:0=rows"], {"x": (3, 4), "y": (3, 8), "z": ("rows", 3), "c": (6, 4)}),
        (["y:[?,8]"], [], {"x": ("batch", 4), "y": ("batch", 8)}),
    ],
)
def test_open_axes_take_names_and_extents(
    model: Path, tmp_path: Path, inputs: list[str], dynamic: list[str], expected: dict[str, tuple[Dim, ...]]
) -> None:
    made = qcompile.export(str(model), tmp_path / "made.onnx", inputs=inputs, dynamic=dynamic)
    shapes = shapes_of(made.path)
    assert {name: shapes[name] for name in expected} == expected
    assert_same_outputs(model, made.path, 3)


def test_notes_follow_a_fixed_extent(model: Path, tmp_path: Path) -> None:
    made = qcompile.export(str(model), tmp_path / "made.onnx", inputs=["y:[batch,12]"])
    assert read_notes(onnx.load(made.path))["y"] == InputNote((2, 12), {})


@pytest.mark.parametrize(
    ("inputs", "dynamic", "message"),
    [
        (["x:[batch,5]"], [], r"`inputs` x:\[batch,5\]:float32: the model's shape is \?x4"),
        (["x:[batch,n]"], [], r"the model's shape is \?x4\n  hint: export the original model with this axis"),
        (["x:[batch,4,1]"], [], r"the model's shape is \?x4$"),
        (["x:[batch,4]:int64"], [], "the model's type is float32"),
        (["x:[batch=1..8,4]"], [], "a range is for PyTorch models; a name or an extent is required"),
        (["w:[batch,4]"], [], "`inputs` w: no input of the model; it takes x, y, z"),
        ([], ["w:0=n"], "`dynamic` w: no input of the model; it takes x, y, z"),
        ([], ["x:1=n"], "`dynamic` x:1=n: the axis is fixed at 4\n  hint: export the original model"),
        ([], ["x:2=n"], "`dynamic` x:2=n: input 'x' has rank 2"),
        (["x:3x4", "y:5x8"], [], "axis 'batch' of the model: 3 in an input, 5 in another; one is required"),
        (["x:3x4", "y:[batch,8]"], [], "axis 'batch' of the model: 3 in an input, batch in another"),
        (["y:[batch,20]"], [], r"`inputs` y:\[batch,20\]: axis 1 takes 4 to 16, multiples of 4"),
    ],
)
def test_a_change_that_the_file_cannot_take_is_refused(
    model: Path, tmp_path: Path, inputs: list[str], dynamic: list[str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        qcompile.export(str(model), tmp_path / "made.onnx", inputs=inputs, dynamic=dynamic)
    assert not (tmp_path / "made.onnx").exists()
