from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from damaged_onnx import net
from onnx import helper, numpy_helper, parser

from qcompile.errors import MissingFile, ModelError
from qcompile.model import onnx_file
from qcompile.model.onnx_file import (
    check_onnx,
    count_operators,
    dtype_name,
    external_files,
    load_checked,
    load_onnx,
    model_io,
    opset,
    save_onnx,
)
from qcompile.model.weightless import fingerprint, read_weightless
from qcompile.tensors import TensorInfo

MakePath = Callable[..., Path]
Tiny = Callable[..., onnx.ModelProto]


@pytest.fixture
def external(tiny: Tiny, tmp_path: Path) -> Path:
    """A model whose weights lie beside it, in weights.bin."""
    path = tmp_path / "external.onnx"
    onnx.save_model(tiny("mlp"), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_a_saved_model_is_read_as_it_was(tiny: Tiny, tmp_path: Path) -> None:
    save_onnx(tiny("residual"), tmp_path / "m.onnx")
    assert load_onnx(tmp_path / "m.onnx") == tiny("residual")
    assert load_checked(tmp_path / "m.onnx") == tiny("residual")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_weights_too_large_for_one_file_lie_beside_it(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "EXTERNAL_DATA_BYTES", 2000)  # nobody tests with 2 GB
    save_onnx(tiny("mlp"), tmp_path / "m.onnx")
    assert external_files(tmp_path / "m.onnx", load_onnx(tmp_path / "m.onnx", external_data=False)) == [
        tmp_path / "m.onnx.data"
    ]
    weights = {t.name: numpy_helper.to_array(t) for t in load_checked(tmp_path / "m.onnx").graph.initializer}
    for tensor in tiny("mlp").graph.initializer:
        np.testing.assert_array_equal(weights[tensor.name], numpy_helper.to_array(tensor))


def test_a_missing_file_is_named_with_the_nearest(tiny_file: MakePath) -> None:
    path = tiny_file("residual")
    for read in (load_onnx, read_weightless, fingerprint):
        with pytest.raises(MissingFile) as caught:
            read(path.with_name("residuall.onnx"))
        assert caught.value.hint == f"did you mean {path}?"


@pytest.mark.parametrize("read", [load_onnx, read_weightless, load_checked, fingerprint])
@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x00", b"no protobuf here", b"\xff" * 50, b"\x08\x08",
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a graph of 2**63 bytes
        b"\x80" * 20,  # a number without an end
        b"\x3a\x05\x2a\x03\x4a\x7f\x00",  # raw data that is longer than its tensor
        b"\x0b\x0c",  # a group, which ONNX has none of
        b"TRT-8503-EntropyCalibration2\n",
        net().SerializeToString()[:-9],  # cut off
    ],
)  # fmt: skip
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes, read: Callable[[Path], object]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx: (not an ONNX model|holds no graph)") as caught:
        read(path)
    assert caught.value.data["file"] == path


def test_missing_external_data_is_named(external: Path) -> None:
    (external.parent / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"external\.onnx: its external data cannot be read") as caught:
        load_onnx(external)
    assert caught.value.hint == "keep the data file beside the model"


def test_inputs_and_outputs_are_read_without_external_data(external: Path) -> None:
    (external.parent / "weights.bin").unlink()
    io = read_weightless(external).io
    assert io.inputs == (TensorInfo("x", "float32", ("batch", 16)),)
    assert io.outputs == (TensorInfo("y", "float32", ("batch", 8)),)


def test_axes_are_numbers_names_or_unknown() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float16[n, 3, ?] x, int64 s) => (float16[n, 3, ?] y)'
        "{ y = Neg(x) }"
    )
    io = model_io(model)
    assert io.inputs == (TensorInfo("x", "float16", ("n", 3, "?")), TensorInfo("s", "int64", ()))


def test_the_checker_names_the_file_and_its_finding(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("mlp")
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX's checker refuses it: .*NoSuchOperator"):
        check_onnx(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="checker refuses"):
        load_checked(tmp_path / "m.onnx")


def test_a_declared_shape_that_does_not_follow_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("mlp")
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 9
    onnx.save(model, tmp_path / "m.onnx")
    check_onnx(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX's checker refuses it"):
        load_checked(tmp_path / "m.onnx")


def test_the_opset_is_that_of_the_domain(tiny: Tiny) -> None:
    model = tiny("mlp", opset=18)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert (opset(model), opset(model, "ai.onnx"), opset(model, "com.microsoft")) == (18, 18, 1)
    assert opset(model, "custom") == 0
    model.opset_import[0].domain = "ai.onnx"
    assert opset(model) == 18


def test_operators_are_counted_in_subgraphs_too_the_most_frequent_first() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "custom" : 1]>
        g (float[n] x, bool c) => (float[n] y) {
            m = custom.Relu(x)
            y = If (c) <
                then_branch = yes () => (float[n] t) { t = Relu(x) },
                else_branch = no () => (float[n] e) { a = Relu(m) e = Neg(a) }
            >
        }"""
    )
    assert list(count_operators(model).items()) == [("Relu", 2), ("If", 1), ("Neg", 1), ("custom::Relu", 1)]


def test_the_fingerprint_is_of_the_content_not_of_the_place(external: Path, tmp_path: Path) -> None:
    assert external_files(external, read_weightless(external).model) == [external.parent / "weights.bin"]
    before = fingerprint(external)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    shutil.copy(external, copy / "renamed.onnx")
    shutil.copy(external.parent / "weights.bin", copy)
    assert fingerprint(copy / "renamed.onnx") == before
    weights = bytearray((copy / "weights.bin").read_bytes())
    weights[7] ^= 1
    (copy / "weights.bin").write_bytes(weights)
    assert fingerprint(copy / "renamed.onnx") != before


@pytest.mark.parametrize(
    ("kind", "name"),
    [("FLOAT", "float32"), ("FLOAT16", "float16"), ("BFLOAT16", "bfloat16"), ("DOUBLE", "float64"),
     ("INT64", "int64"), ("BOOL", "bool"), ("STRING", "string"), ("UNDEFINED", "undefined")],
)  # fmt: skip
def test_element_types_have_numpys_names(kind: str, name: str) -> None:
    assert dtype_name(onnx.TensorProto.DataType.Value(kind)) == name
