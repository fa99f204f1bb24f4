"""Damaged, hostile and unusual ONNX files: one clear error from every reader."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from damaged_onnx import net, refused
from onnx import TensorProto, helper, numpy_helper

from qcompile.errors import ModelError
from qcompile.model.graph import holds_half
from qcompile.model.onnx_checks import external_path
from qcompile.model.onnx_file import load_onnx
from qcompile.model.weightless import read_weightless

Change = Callable[[onnx.ModelProto], None]


def test_the_net_itself_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(net(), path)
    onnx.checker.check_model(str(path), full_check=True)
    assert load_onnx(path) == net()


def _sequence(model: onnx.ModelProto) -> None:
    inner = onnx.TypeProto()
    inner.CopyFrom(model.graph.output[0].type)
    model.graph.output[0].type.sequence_type.elem_type.CopyFrom(inner)


def _optional(model: onnx.ModelProto) -> None:
    inner = onnx.TypeProto()
    inner.CopyFrom(model.graph.output[0].type)
    model.graph.output[0].type.optional_type.elem_type.CopyFrom(inner)


def _map(model: onnx.ModelProto) -> None:
    inner = onnx.TypeProto()
    inner.CopyFrom(model.graph.input[0].type)
    model.graph.input[0].type.map_type.key_type = TensorProto.INT64
    model.graph.input[0].type.map_type.value_type.CopyFrom(inner)


def _mutual(model: onnx.ModelProto) -> None:
    model.functions[0].node.append(helper.make_node("other", ["u"], ["n"], domain="own"))
    nodes = [helper.make_node("act", ["u"], ["v"], domain="own")]
    opsets = [helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", "other", ["u"], ["v"], nodes, opsets))


def _set(text: str, value: object) -> Change:
    """Set a field: `graph.node[0].op_type`."""

    def change(model: onnx.ModelProto) -> None:
        head, _, name = text.rpartition(".")
        owner = eval(f"model.{head}" if head else "model", {"model": model})
        setattr(owner, name, value)

    return change


def _do(text: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        exec(text, {"model": model, "helper": helper, "onnx": onnx})

    return change


W = "graph.initializer[0]"
CASES: dict[str, tuple[Change, str]] = {
    "ir_version 0": (_set("ir_version", 0), r"ir_version 0; onnx .* knows 3 to \d+"),
    "ir_version 1000": (_set("ir_version", 1000), "ir_version 1000"),
    "opset 0": (_do("model.opset_import[0].version = 0"), "opset 0 of domain ''"),
    "opset 1000": (_do("model.opset_import[0].version = 1000"), "opset 1000 of domain ''; onnx .* knows"),
    "no opset": (_do("del model.opset_import[:]"), "must specify opset_import"),
    "two opsets": (
        _do("model.opset_import.append(helper.make_opsetid('ai.onnx', 9))"),
        "imports opsets 17 and 9 of domain ''",
    ),
    "sequence": (_sequence, "output 'y' is a sequence; tensors alone are supported"),
    "optional": (_optional, "output 'y' is a optional"),
    "map": (_map, "input 'x' is a map"),
    "no type": (_do("model.graph.input[0].ClearField('type')"), "input 'x' has no type"),
    "input type 99": (_set("graph.input[0].type.tensor_type.elem_type", 99), "input 'x' .* element type 99"),
    "no input name": (_set("graph.input[0].name", ""), "'name' of 'value_info' is required"),
    "batch of zero": (
        _set("graph.input[0].type.tensor_type.shape.dim[0].dim_value", 0),
        "input 'x' has an axis of extent 0; 1 or more is required",
    ),
    "negative extent": (
        _set("graph.input[0].type.tensor_type.shape.dim[0].dim_value", -1),
        "input 'x' has an axis of extent -1",
    ),
    "huge extent": (
        _set("graph.input[0].type.tensor_type.shape.dim[0].dim_value", 1 << 62),
        f"input 'x' has {1 << 64} values; at most {1 << 28}",
    ),
    "negative output": (
        _set("graph.output[0].type.tensor_type.shape.dim[0].dim_value", -5),
        "output 'y' has an axis of extent -5",
    ),
    "tensor type 99": (_set(f"{W}.data_type", 99), "tensor 'w' has the unknown element type 99"),
    "tensor type 0": (_set(f"{W}.data_type", 0), "tensor 'w' has the unknown element type 0"),
    "negative dim": (_do(f"model.{W}.dims[0] = -4"), "'w' has shape -4x4: .* non-negative"),
    "huge dims": (_do(f"model.{W}.dims[:] = [2**62, 2**62]"), "tensor 'w' has shape 4611.*: .* too large"),
    "huge beside zero": (_do(f"model.{W}.dims[:] = [0, 2**62]"), "tensor 'w' has shape 0x"),
    "many axes": (_do(f"model.{W}.dims.extend([1] * 99)"), "'w' has shape .*: maximum supported dim"),
    "short raw data": (_set(f"{W}.raw_data", b"123"), "'w' of shape 4x4 holds 3 bytes; 64 are required"),
    "long raw data": (_set(f"{W}.raw_data", bytes(65)), "holds 65 bytes; 64 are required"),
    "no data": (_do(f"model.{W}.ClearField('raw_data')"), "'w' of shape 4x4: cannot reshape"),
    "two kinds of data": (_do(f"model.{W}.int32_data.append(1)"), "tensor 'w' has raw data and typed values"),
    "raw strings": (_set(f"{W}.data_type", 8), "tensor 'w' of shape 4x4 holds 0 strings"),
    "segment": (_do(f"model.{W}.segment.begin = 1"), "tensor 'w' is stored in segments"),
    "bad constant": (
        _do("model.graph.node[1].attribute[0].t.dims.append(3)"),
        "tensor '.*' of shape 3: cannot reshape array of size 1",
    ),
    "no tensor name": (_set(f"{W}.name", ""), "'name' of 'value_info' is required"),
    "stored twice": (_do(f"model.graph.initializer.append(model.{W})"), "'w' has been used as graph input"),
    "input twice": (_do("model.graph.input.append(model.graph.input[0])"), "'x' has been used as graph"),
    "output twice": (_do("model.graph.output.append(model.graph.output[0])"), "output 'y' is declared twice"),
    "made twice": (_do("model.graph.node[2].output[0] = 'm'"), "'m' has been used as output names"),
    "unknown name": (_do("model.graph.node[0].input[1] = 'u'"), "input 'u' of node: .* MatMul is not output"),
    "cycle": (_do("model.graph.node[0].input[0] = 's'"), "input 's' of node: .* not output of any previous"),
    "own output": (_do("model.graph.node[0].input[0] = 'm'"), "input 'm' of node"),
    "unknown outer name": (
        _do("model.graph.node[4].attribute[1].g.node[0].input[0] = 'u'"),
        "input 'u' of node: .* Add",
    ),
    "unknown output": (_set("graph.output[0].name", "gone"), "output 'gone'"),
    "few inputs": (_do("del model.graph.node[0].input[:]"), r"input size 0 not in range .* \(MatMul ''\)"),
    "empty input": (_do("model.graph.node[0].input[1] = ''"), "input 1 is marked single but has an empty"),
    "no outputs": (_do("del model.graph.node[0].output[:]"), "has output size 0 not in range"),
    "no operator": (_set("graph.node[0].op_type", ""), "'op_type' of 'node' is required"),
    "attribute twice": (
        _do("model.graph.node[1].attribute.append(model.graph.node[1].attribute[0])"),
        "Attribute 'value' appeared multiple",
    ),
    "attribute type": (
        _do("model.graph.node[1].attribute[0].type = 2"),
        "mismatch in attribute value",
    ),
    "another type": (
        _do("model.graph.node[1].attribute[0].CopyFrom(helper.make_attribute('value', 3))"),
        "Expected: 'TENSOR', actual: 'INT'",
    ),
    "lacking attribute": (
        _do("del model.graph.node[4].attribute[0]"),
        "Required attribute 'then_branch' is missing",
    ),
    "self-calling function": (
        _do("model.functions[0].node[0].op_type = 'act'; model.functions[0].node[0].domain = 'own'"),
        "own::act -> own::act",
    ),
    "mutual functions": (_mutual, "references: own::"),
    "function twice": (_do("model.functions.append(model.functions[0])"), "same implementation id"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_model_is_refused_by_the_name_of_what_is_wrong(case: str, tmp_path: Path) -> None:
    change, expected = CASES[case]
    model = net()
    change(model)
    assert re.search(expected, refused(model, tmp_path / "m.onnx"))


@pytest.mark.parametrize("place", [b"making", b"batch", b"Relu", b"act"])
def test_a_name_that_is_no_utf8_is_refused(place: bytes, tmp_path: Path) -> None:
    model = net()
    model.graph.node[0].name = "making"
    content = model.SerializeToString().replace(place, b"\xff" * len(place), 1)
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    for read in (load_onnx, read_weightless):
        with pytest.raises(ModelError, match="holds a text that is no UTF-8"):
            read(path)


def test_graphs_nested_beyond_what_protobuf_reads_are_refused(tmp_path: Path) -> None:
    """10,000 levels of If in If, written by hand: no library writes them."""

    def field(number: int, content: bytes) -> bytes:
        size, length = len(content), bytearray()
        while size >= 0x80:
            length.append(size & 0x7F | 0x80)
            size >>= 7
        return bytes([number << 3 | 2, *length, size]) + content

    graph = b""
    for _ in range(10_000):  # GraphProto.node, NodeProto.attribute, AttributeProto.g
        graph = field(1, field(5, field(6, graph)))
    path = tmp_path / "m.onnx"
    path.write_bytes(net().SerializeToString() + field(7, graph))
    for read in (load_onnx, read_weightless):
        with pytest.raises(ModelError, match="not an ONNX model, or cut off"):
            read(path)


def test_an_attribute_of_another_operator_makes_no_half_precision() -> None:
    model = net()
    model.graph.node[0].attribute.append(helper.make_attribute("to", [1, 2, 3]))
    assert not holds_half(model)


def test_oddments_that_nothing_reads_are_taken(tmp_path: Path) -> None:
    model = net()
    model.training_info.add().algorithm.node.add().op_type = "Nowhere"
    note = model.graph.quantization_annotation.add(tensor_name="nowhere")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="nothing")
    model.graph.node.append(helper.make_node("EfficientNMS_TRT", ["x"], ["boxes"]))  # a plugin of TensorRT
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert load_onnx(path) == model


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
                with pytest.raises(ModelError, match=r"are required|of shape"):
                    load_onnx(path)
