"""What stored tensors claim is compared with what is there; external data stay in their folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from damaged_onnx import net, refused
from onnx import TensorProto, helper, numpy_helper

from qcompile.errors import ModelError
from qcompile.model.onnx_file import load_onnx
from qcompile.model.stored_tensors import external_path
from qcompile.model.weightless import read_weightless


def _external(model: onnx.ModelProto, **entries: object) -> onnx.ModelProto:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return model


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"location": "/proc/self/mem", "offset": 4096}, "'/proc/self/mem' of tensor 'w': is an absolute"),
        ({"location": "/etc/passwd"}, "is an absolute path"),
        ({"location": "C:\\data"}, "is an absolute path"),
        ({"location": "../w.bin"}, "leads out of the model's folder"),
        ({"location": "sub/../../w.bin"}, "leads out of the model's folder"),
        ({"location": ""}, "names no file"),
        ({"location": "."}, "is a link to .*, outside"),
        ({"location": "sub"}, "is no regular file"),
        ({"location": "pipe"}, "is no regular file"),
        ({"location": "out"}, "is a link to .*outside.*, outside of the model's folder"),
        ({"location": "outdir/w.bin"}, "is a link to"),
        ({"location": "loop"}, "cannot be looked up|is a link"),
        ({"location": "w.bin", "offset": -1}, "offset '-1'"),
        ({"location": "w.bin", "offset": "9" * 30}, "offset '9+'"),
        ({"location": "w.bin", "length": -64}, "length '-64'"),
        ({"location": "w.bin", "length": 32}, "its length is 32 bytes; 64 are required"),
        ({"location": "w.bin", "offset": 64}, "64 bytes at 64 of a file of 100 bytes"),
    ],
)  # fmt: skip
def test_external_data_lie_inside_the_folder_of_the_model(
    entries: dict[str, object], problem: str, tmp_path: Path
) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    outside.mkdir()
    for place in (folder, outside):
        (place / "w.bin").write_bytes(bytes(100))
    (folder / "out").symlink_to(outside / "w.bin")
    (folder / "outdir").symlink_to(outside)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    assert re.search(problem, refused(_external(net(), **entries), folder / "m.onnx"))


def test_external_data_that_are_said_twice_are_refused(tmp_path: Path) -> None:
    model = _external(net(), location="w.bin")
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")
    assert "says twice where its data lie" in refused(model, tmp_path / "m.onnx")


def test_a_large_tensor_cannot_claim_to_lie_elsewhere_beside_its_own_bytes(tmp_path: Path) -> None:
    """The weightless reader points at the bytes in the file; the file must not point elsewhere after it."""
    model = net()
    values = np.zeros((4, 2000), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(values, "large"))
    model.graph.initializer[1].external_data.add(key="location", value="/etc/passwd")
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    with pytest.raises(ModelError, match="says twice where its data lie"):
        read_weightless(path)


def test_data_inside_the_folder_are_read_by_the_shape_and_through_links_inside(tmp_path: Path) -> None:
    values = np.arange(25, dtype=np.float32)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(values.tobytes())
    (tmp_path / "inside").symlink_to("sub/w.bin")
    for location in ("sub/w.bin", "inside"):
        path = tmp_path / "m.onnx"
        onnx.save(_external(net(), location=location, offset=36), path)
        read = numpy_helper.to_array(load_onnx(path).graph.initializer[0])
        np.testing.assert_array_equal(read, values[9:].reshape(4, 4))
    assert external_path("inside", tmp_path.resolve()) == (tmp_path / "sub" / "w.bin").resolve()


def test_values_of_every_element_type_are_counted_as_onnx_stores_them(tmp_path: Path) -> None:
    """The oracle is ONNX's own writer, typed and raw, whole and one value short."""
    path = tmp_path / "m.onnx"
    for kind in onnx.TensorProto.DataType.values():
        if not kind or kind == TensorProto.STRING:
            continue
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        for count in (0, 5):
            array = np.ones(count).astype(dtype)
            for raw in (True, False):
                name = TensorProto.DataType.Name(kind)
                if not raw and ("FLOAT6" in name or "INT2" in name):
                    continue
                model = net()
                tensor = (
                    numpy_helper.from_array(array) if raw else helper.make_tensor("", kind, [count], array)
                )
                tensor.name = "extra"
                model.graph.initializer.append(tensor)
                path.write_bytes(model.SerializeToString())
                load_onnx(path)
                model.graph.initializer[1].dims[0] += 16
                path.write_bytes(model.SerializeToString())
                with pytest.raises(ModelError, match="are required"):
                    load_onnx(path)


def test_the_length_of_large_raw_data_is_told_without_a_copy(tmp_path: Path) -> None:
    model = net()
    for change in (0, -1, 1):
        values = numpy_helper.from_array(np.zeros(100_000, np.float32), "large")
        values.raw_data = bytes(400_000 + change)
        values.doc_string = "said"
        del model.graph.initializer[1:]
        model.graph.initializer.append(values)
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        if not change:
            load_onnx(path)
            continue
        with pytest.raises(ModelError, match=f"holds {400_000 + change} bytes; 400000 are required"):
            load_onnx(path)
