"""ONNX files are read as they were written; of damaged and hostile ones every reader says one clear error."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from damaged_onnx import net, refused
from google.protobuf.internal.encoder import _VarintBytes
from onnx import TensorProto, helper, numpy_helper

import qcompile
from qcompile.errors import MissingFile, ModelError
from qcompile.model.graph import onnx_file
from qcompile.model.graph.graph import count_operators, dtype_name, has_float16, opset
from qcompile.model.graph.graph_names import name_nodes
from qcompile.model.graph.onnx_checks import external_files, external_path
from qcompile.model.graph.onnx_file import read_graph, read_weightless, save_onnx
from qcompile.model.graph.plain_forms import to_plain_forms
from qcompile.spec.tensors import TensorInfo

MakePath = Callable[..., Path]
Tiny = Callable[..., onnx.ModelProto]


@pytest.fixture
def external(tiny: Tiny, tmp_path: Path) -> Path:
    """A model whose weights lie beside it, in weights.bin."""
    path = tmp_path / "external.onnx"
    onnx.save_model(tiny("mlp"), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def _load(path: Path) -> onnx.ModelProto:
    return read_graph(path).load()


def test_a_saved_model_is_read_as_it_was(tiny: Tiny, tmp_path: Path) -> None:
    save_onnx(tiny("residual"), tmp_path / "m.onnx")
    assert _load(tmp_path / "m.onnx") == tiny("residual")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    model = net()
    to_plain_forms(model)  # it has a function
    name_nodes(model.graph)
    save_onnx(model, tmp_path / "m.onnx")
    assert _load(tmp_path / "m.onnx") == model


def test_weights_too_large_for_one_file_lie_beside_it(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "EXTERNAL_DATA_BYTES", 2000)  # nobody tests with 2 GB
    save_onnx(tiny("mlp"), tmp_path / "m.onnx")
    assert external_files(tmp_path / "m.onnx", read_graph(tmp_path / "m.onnx").model) == [
        tmp_path / "m.onnx.data"
    ]
    weights = {t.name: numpy_helper.to_array(t) for t in _load(tmp_path / "m.onnx").graph.initializer}
    for tensor in tiny("mlp").graph.initializer:
        np.testing.assert_array_equal(weights[tensor.name], numpy_helper.to_array(tensor))


def test_a_missing_file_is_named_with_the_nearest(tiny_file: MakePath) -> None:
    path = tiny_file("residual")
    for read in (read_graph, read_weightless):
        with pytest.raises(MissingFile) as caught:
            read(path.with_name("residuall.onnx"))
        assert caught.value.hint == f"did you mean {path}?"


@pytest.mark.parametrize("read", [read_graph, read_weightless])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"no protobuf here",
        b"\xff" * 50,
        b"\x08\x08",
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a graph of 2**63 bytes
        b"\x80" * 20,  # a number without an end
        b"\x3a\x05\x2a\x03\x4a\x7f\x00",  # raw data that is longer than its tensor
        b"\x0b\x0c",  # a group, which ONNX has none of
        b"TRT-8503-EntropyCalibration2\n",
        net().SerializeToString()[:-9],  # cut off
    ],
)
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes, read: Callable[[Path], object]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx: (not an ONNX model|holds no graph)") as caught:
        read(path)
    assert caught.value.data["file"] == path


def test_without_external_data_inputs_and_outputs_are_read_and_values_are_not(external: Path) -> None:
    (external.parent / "weights.bin").unlink()
    io = read_weightless(external).io
    assert io.inputs == (TensorInfo("x", "float32", ("batch", 16)),)
    assert io.outputs == (TensorInfo("y", "float32", ("batch", 8)),)
    with pytest.raises(ModelError, match=r"external\.onnx: its external data cannot be read") as caught:
        _load(external)
    assert caught.value.hint == "keep the data file beside the model"


def test_the_checker_names_the_file_and_its_finding(tiny: Tiny, tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", tiny("mlp")
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 9  # does not follow
    onnx.save(model, path)
    graph = read_graph(path)
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX's checker refuses it"):
        graph.check()
    model.graph.node[0].domain = "no.such.domain"
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX's checker refuses it: .*no\.such\.domain"):
        read_graph(path)


def test_the_opset_is_that_of_the_domain(tiny: Tiny) -> None:
    model = tiny("mlp", opset=18)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert (opset(model), opset(model, "ai.onnx"), opset(model, "com.microsoft")) == (18, 18, 1)
    assert opset(model, "custom") == 0
    model.opset_import[0].domain = "ai.onnx"
    assert opset(model) == 18


def test_operators_are_counted_in_subgraphs_too_the_most_frequent_first() -> None:
    model = net()
    model.graph.node[4].attribute[0].g.node.append(helper.make_node("Relu", ["z"], ["unread"]))
    counts = {"Relu": 2, "Add": 1, "Constant": 1, "If": 1, "MatMul": 1, "Mul": 1, "own::act": 1}
    assert list(count_operators(model).items()) == list(counts.items())


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("FLOAT", "float32"),
        ("FLOAT16", "float16"),
        ("BFLOAT16", "bfloat16"),
        ("DOUBLE", "float64"),
        ("INT64", "int64"),
        ("BOOL", "bool"),
        ("STRING", "string"),
        ("UNDEFINED", "undefined"),
    ],
)
def test_element_types_have_numpys_names(kind: str, name: str) -> None:
    assert dtype_name(onnx.TensorProto.DataType.Value(kind)) == name


CASES = {
    "ir_version 0": ("model.ir_version = 0", r"ir_version 0; onnx .* reads 3 to \d+"),
    "ir_version 1000": ("model.ir_version = 1000", "ir_version 1000"),
    "opset 0": ("model.opset_import[0].version = 0", "opset 0 of domain ''"),
    "opset 1000": ("model.opset_import[0].version = 1000", "opset 1000 of domain ''; onnx .* reads"),
    "no opset": ("del model.opset_import[:]", "must specify opset_import"),
    "two opsets": ("model.opset_import.add(domain='ai.onnx', version=9)", "imports opsets 17 and 9 of"),
    "sequence": ("y.type.CopyFrom(make_sequence_type_proto(x.type))", "'y' is a sequence; only tensors"),
    "optional": ("y.type.CopyFrom(make_optional_type_proto(x.type))", "output 'y' is a optional"),
    "no type": ("x.ClearField('type')", "input 'x' has no type"),
    "input type 99": ("x_type.elem_type = 99", "input 'x' .* element type 99"),
    "no input name": ("x.name = ''", "'name' of 'value_info' is required"),
    "batch of zero": ("x_type.shape.dim[0].dim_value = 0", "'x' has an axis of extent 0; 1 or more"),
    "negative extent": ("x_type.shape.dim[0].dim_value = -2", "input 'x' has an axis of extent -2"),
    "huge extent": ("x_type.shape.dim[0].dim_value = 1 << 62", f"'x' has {1 << 64} values; at most"),
    "negative output": ("y_type.shape.dim[0].dim_value = -5", "output 'y' has an axis of extent -5"),
    "tensor type 99": ("w.data_type = 99", "tensor 'w' has the unknown element type 99"),
    "tensor type 0": ("w.data_type = 0", "tensor 'w' has the unknown element type 0"),
    "negative dim": ("w.dims[0] = -4", "'w' has shape -4x4: .* non-negative"),
    "huge dims": ("w.dims[:] = [2**62, 2**62]", "tensor 'w' has shape 4611.*: .* too large"),
    "huge beside zero": ("w.dims[:] = [0, 2**62]", "tensor 'w' has shape 0x"),
    "many axes": ("w.dims.extend([1] * 99)", "'w' has shape .*: maximum supported dim"),
    "short raw data": ("w.raw_data = b'123'", "'w' of shape 4x4 holds 3 bytes; 64 are required"),
    "long raw data": ("w.raw_data = bytes(65)", "holds 65 bytes; 64 are required"),
    "no data": ("w.ClearField('raw_data')", "'w' of shape 4x4: cannot reshape"),
    "two kinds of data": ("w.int32_data.append(1)", "tensor 'w' has raw data and typed values"),
    "raw strings": ("w.data_type = 8", "tensor 'w' of shape 4x4 holds 0 strings"),
    "segment": ("w.segment.begin = 1", "tensor 'w' is stored in segments"),
    "bad constant": ("node[1].attribute[0].t.dims.append(3)", "tensor '.*' of shape 3: cannot reshape"),
    "no tensor name": ("w.name = ''", "'name' of 'value_info' is required"),
    "stored twice": ("model.graph.initializer.append(w)", "'w' has been used as graph input"),
    "input twice": ("model.graph.input.append(x)", "'x' has been used as graph"),
    "output twice": ("model.graph.output.append(y)", "output 'y' is declared twice"),
    "made twice": ("node[2].output[0] = 'm'", "'m' has been used as output names"),
    "unknown outer name": ("node[4].attribute[1].g.node[0].input[0] = 'u'", "input 'u' of node: .* Add"),
    "unknown output": ("y.name = 'gone'", "output 'gone'"),
    "empty input": ("node[0].input[1] = ''", "input 1 is marked single but has an empty"),
    "few inputs": ("del node[0].input[:]", r"input size 0 not in range .* \(MatMul ''\)"),
    "lacking attribute": ("del node[4].attribute[0]", "Required attribute 'then_branch' is missing"),
    "self-calling function": ("model.functions[0].node.append(node[3])", "own::act -> own::act"),
}
"""What is done to a model with input `x`, output `y` and weight `w`, and what is said of it."""


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_model_is_refused_by_the_name_of_what_is_wrong(case: str, tmp_path: Path) -> None:
    change, expected = CASES[case]
    model = net()
    (x, _), (y,), (w,) = model.graph.input, model.graph.output, model.graph.initializer
    names = {"model": model, "node": model.graph.node, "x": x, "y": y, "w": w} | vars(helper)
    exec(change, names | {"x_type": x.type.tensor_type, "y_type": y.type.tensor_type})
    assert re.search(expected, refused(model, tmp_path / "m.onnx"))


@pytest.mark.parametrize("place", [b"making", b"batch", b"Relu", b"act"])
def test_a_name_that_is_no_utf8_is_refused(place: bytes, tmp_path: Path) -> None:
    model = net()
    model.graph.node[0].name = "making"
    content = model.SerializeToString().replace(place, b"\xff" * len(place), 1)
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    for read in (read_graph, read_weightless):
        with pytest.raises(ModelError, match="contains text that is not UTF-8"):
            read(path)


def test_graphs_nested_beyond_what_protobuf_reads_are_refused(tmp_path: Path) -> None:
    """10,000 levels of If in If, written by hand: no library writes them."""

    def field(number: int, content: bytes) -> bytes:
        return bytes(_VarintBytes(number << 3 | 2) + _VarintBytes(len(content)) + content)

    graph = b""
    for _ in range(10_000):  # GraphProto.node, NodeProto.attribute, AttributeProto.g
        graph = field(1, field(5, field(6, graph)))
    path = tmp_path / "m.onnx"
    path.write_bytes(net().SerializeToString() + field(7, graph))
    for read in (read_graph, read_weightless):
        with pytest.raises(ModelError, match="not an ONNX model, or cut off"):
            read(path)


def test_an_attribute_of_another_operator_makes_no_half_precision() -> None:
    model = net()
    model.graph.node[0].attribute.append(helper.make_attribute("to", [1, 2, 3]))
    assert not has_float16(model)


def test_oddments_that_nothing_reads_are_taken(tmp_path: Path) -> None:
    model = net()
    name_nodes(model.graph)
    model.training_info.add().algorithm.node.add().op_type = "Nowhere"
    note = model.graph.quantization_annotation.add(tensor_name="nowhere")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="nothing")
    model.graph.node.append(
        helper.make_node("EfficientNMS_TRT", ["x"], ["boxes"], "nms")
    )  # a plugin of TensorRT
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    to_plain_forms(model)
    name_nodes(model.graph)  # of the functions, too
    assert _load(path) == model


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
        ({"location": "sub"}, "is not a regular file"),
        ({"location": "pipe"}, "is not a regular file"),
        ({"location": "out"}, "is a link to .*outside.*, outside of the model's folder"),
        ({"location": "outdir/w.bin"}, "is a link to"),
        ({"location": "loop"}, "cannot be looked up|is a link"),
        ({"location": "w.bin", "offset": -1}, "offset '-1'"),
        ({"location": "w.bin", "offset": "9" * 30}, "offset '9+'"),
        ({"location": "w.bin", "length": -64}, "length '-64'"),
        ({"location": "w.bin", "length": 32}, "its length is 32 bytes; 64 are required"),
        ({"location": "w.bin", "offset": 64}, "64 bytes at 64 of a file of 100 bytes"),
    ],
)
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
    assert "repeats a key of its external data" in refused(model, tmp_path / "m.onnx")


def test_a_large_tensor_cannot_claim_to_lie_elsewhere_beside_its_own_bytes(tmp_path: Path) -> None:
    """The weightless reader points at the bytes in the file; the file must not point elsewhere after it."""
    model = net()
    values = np.zeros((4, 2000), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(values, "large"))
    model.graph.initializer[1].external_data.add(key="location", value="/etc/passwd")
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    with pytest.raises(ModelError, match="repeats a key of its external data"):
        read_weightless(path)


def test_data_inside_the_folder_are_read_by_the_shape_and_through_links_inside(tmp_path: Path) -> None:
    values = np.arange(25, dtype=np.float32)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(values.tobytes())
    (tmp_path / "inside").symlink_to("sub/w.bin")
    for location in ("sub/w.bin", "inside"):
        path = tmp_path / "m.onnx"
        onnx.save(_external(net(), location=location, offset=36), path)
        read = numpy_helper.to_array(_load(path).graph.initializer[0])
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
                _load(path)
                model.graph.initializer[1].dims[0] += 16
                path.write_bytes(model.SerializeToString())
                with pytest.raises(ModelError, match=r"are required|of shape"):
                    _load(path)


def test_weights_in_the_branches_of_an_if_lie_beside_the_model_and_are_calibrated(tmp_path: Path) -> None:
    """ONNX Runtime writes such a file for calibration; the checker looked for it in the working folder."""
    value = helper.make_tensor_value_info
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)

    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["h", f"w_{name}"], [f"y_{name}"])],
            name,
            [],
            [value(f"y_{name}", 1, None)],
            [weight(f"w_{name}", 64, 32)],
        )
        for name in ("then", "else")
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="conv"),
        helper.make_node("If", ["is_first"], ["y"], name="choice", **branches),
    ]
    inputs = [value("x", 1, ["n", 4, 64]), value("is_first", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", 1, ["n", 8, 32])], [weight("w", 8, 4, 1)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="m.data", size_threshold=1024)
    assert [file.name for file in read_graph(path).beside] == ["m.data"]
    np.savez(tmp_path / "d.npz", x=random.standard_normal((4, 4, 64)).astype(np.float32), is_first=True)
    ranges = qcompile.calibrate(path, str(tmp_path / "d.npz"), tmp_path / "m.ranges")
    assert ranges.path.is_file()
