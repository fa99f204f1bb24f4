"""A weightless model is the model without its large weights, and finds them again where they lie.

Its digest is that of its files; what is no model is named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.internal.encoder import _VarintBytes as varint
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from weightless_models import assert_weightless, large, sha256
from written_models import model_of

from qcompile.errors import ModelError
from qcompile.model.graph.graph import consumers, model_io, producers
from qcompile.model.graph.onnx_file import (
    MAX_INLINE_BYTES,
    Graph,
    is_large,
    read_graph,
    read_weightless,
    write_whole,
)
from qcompile.model.graph.plain_forms import to_plain_forms
from qcompile.model.sessions.session import make_session, session_options

WIDTHS = {
    "FLOAT": 4, "DOUBLE": 8, "FLOAT16": 2, "BFLOAT16": 2, "INT64": 8, "INT8": 1, "BOOL": 1, "FLOAT8E4M3FN": 1,
    "INT4": 0.5,
}  # fmt: skip
RAW = {TensorProto.DataType.Value(name): width for name, width in WIDTHS.items()}
TYPED = {
    TensorProto.FLOAT: "float_data", TensorProto.DOUBLE: "double_data", TensorProto.INT64: "int64_data",
    TensorProto.INT32: "int32_data", TensorProto.FLOAT16: "int32_data",
}  # fmt: skip
SIZES = st.sampled_from(
    [0, 1, 5, MAX_INLINE_BYTES - 8, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 8, 3 * MAX_INLINE_BYTES]
)


def random_bytes(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


@st.composite
def tensors(draw: st.DrawFn, name: str, folder: Path | None = None) -> onnx.TensorProto:
    """A weight in any of the ways in which a file can hold it; external ones lie in the folder."""
    tensor = TensorProto(name=name, doc_string=draw(st.sampled_from(["", "a weight"])))
    size, seed = draw(SIZES), draw(st.integers(0, 2**32))
    storage = draw(st.sampled_from(["raw", "typed", "string", "external"] if folder else ["raw", "typed"]))
    if storage in ("raw", "external"):
        tensor.data_type = draw(st.sampled_from(list(RAW)))
        width = RAW[tensor.data_type]
        content = random_bytes(size - size % max(1, int(width)), seed)
        tensor.dims.extend([1, int(len(content) / width)])
        if storage == "raw":
            tensor.raw_data = content
        else:
            assert folder is not None
            tensor.data_location = TensorProto.EXTERNAL
            entries = {"location": f"{name}.bin", "offset": "3", "length": str(len(content))}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=value)
            (folder / f"{name}.bin").write_bytes(b"***" + content + b"*")
    elif storage == "typed":
        tensor.data_type = draw(st.sampled_from(list(TYPED)))
        numbers = np.frombuffer(random_bytes(size, seed), np.uint8)
        tensor.dims.extend([len(numbers)])
        getattr(tensor, TYPED[tensor.data_type]).extend(numbers.tolist())
    else:
        tensor.data_type = TensorProto.STRING
        tensor.dims.extend([2])
        tensor.string_data.extend([random_bytes(size, seed), b""])
    return tensor


@st.composite
def models(draw: st.DrawFn, folder: Path) -> onnx.ModelProto:
    """A model with weights in its graph and in all other places in which a file can have them."""
    count = draw(st.integers(0, 4))
    weights = [draw(tensors(f"w{number}", folder)) for number in range(count)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "cond")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    nodes = [helper.make_node("Identity", ["x"], ["y"], "copy", doc_string="ü")]
    if draw(st.booleans()):
        nodes.append(helper.make_node("Constant", [], ["c"], value=draw(tensors("constant"))))
    if draw(st.booleans()):
        branch = helper.make_graph([], "branch", [], [], [draw(tensors("inner"))])
        nodes.append(helper.make_node("If", ["cond"], ["i"], then_branch=branch, else_branch=branch))
    old = draw(st.booleans())
    if old:
        listed = draw(st.lists(st.sampled_from(weights), unique_by=id)) if weights else []
        inputs += [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, list(t.dims)) for t in listed]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights, doc_string=draw(st.text(max_size=9)))
    if draw(st.booleans()):
        indices = numpy_helper.from_array(np.arange(600), "sparse_indices")
        graph.sparse_initializer.add(values=draw(tensors("sparse")), indices=indices, dims=[10_000])
    functions = []
    if draw(st.booleans()):
        body = [helper.make_node("Constant", [], ["o"], value=draw(tensors("in_function")))]
        functions = [helper.make_function("d", "F", [], ["o"], body, [helper.make_opsetid("", 17)])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    model = helper.make_model(graph, functions=functions, opset_imports=opsets, producer_name="test")
    model.ir_version = 3 if old else 10
    helper.set_model_props(model, draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)))
    return model


@settings(deadline=None)
@given(data=st.data())
def test_a_weightless_model_is_the_model_without_its_large_weights(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("weightless") / "the model.onnx"
    model = data.draw(models(path.parent))
    path.write_bytes(model.SerializeToString())
    weightless = read_weightless(path)
    assert weightless.path == path
    write_whole(model, path)
    assert path.read_bytes() == model.SerializeToString()
    sparse = [tensor.values.name for tensor in model.graph.sparse_initializer]
    to_plain_forms(model)
    assert_weightless(weightless, model, sparse)
    assert weightless.io == model_io(model)


def test_fields_may_come_in_any_order(tmp_path: Path) -> None:
    model = large()
    weight = model.graph.initializer[0]
    # Of a field that is not repeated the last counts, and messages that come twice are merged.
    content = TensorProto(raw_data=weight.raw_data).SerializeToString()
    rest = TensorProto(name=weight.name, data_type=weight.data_type, dims=weight.dims).SerializeToString()
    graph = onnx.GraphProto.FromString(model.graph.SerializeToString())
    del graph.initializer[0]
    graph_bytes = message(5, content + rest) + graph.SerializeToString()
    head = onnx.ModelProto(ir_version=8, opset_import=model.opset_import)
    path = tmp_path / "m.onnx"
    path.write_bytes(head.SerializeToString() + message(7, graph_bytes))
    expected = onnx.load(path, load_external_data=False)
    assert expected == model
    assert_weightless(read_weightless(path), expected)


def test_a_weight_that_says_it_lies_in_the_file_is_found_there(tmp_path: Path) -> None:
    """onnx writes `data_location: DEFAULT` behind the values of what it once read from another file."""
    model = large()
    for tensor in model.graph.initializer:
        tensor.data_location = TensorProto.DEFAULT
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    light = read_weightless(path).model
    assert [t.data_location for t in light.graph.initializer if not t.raw_data] == [TensorProto.EXTERNAL]
    onnx.load_external_data_for_model(light, str(tmp_path))
    values = {t.name: numpy_helper.to_array(t) for t in light.graph.initializer}
    for tensor in model.graph.initializer:
        np.testing.assert_array_equal(values[tensor.name], numpy_helper.to_array(tensor))


def message(field: int, content: bytes) -> bytes:
    return bytes(varint(field << 3 | 2) + varint(len(content)) + content)


def test_fields_of_later_versions_are_kept(tmp_path: Path) -> None:
    model = large()
    unknown = (
        varint(900 << 3) + varint(2**63) + varint(901 << 3 | 1) + bytes(8) + varint(902 << 3 | 5) + b"abcd"
    )
    weight = model.graph.initializer[0].SerializeToString() + unknown
    del model.graph.initializer[0]
    graph = model.graph.SerializeToString() + message(5, weight) + unknown + message(903, b"new")
    model.ClearField("graph")
    path = tmp_path / "m.onnx"
    path.write_bytes(unknown + model.SerializeToString() + message(7, graph))
    whole = onnx.load(path, load_external_data=False)
    assert_weightless(read_weightless(path), whole)
    write_whole(whole, path)
    assert path.read_bytes() == whole.SerializeToString()
    assert path.read_bytes().count(b"abcd") == 3  # of the model, of its graph and of a weight


def test_a_file_beyond_protobufs_limit_is_read(tmp_path: Path) -> None:
    size = 3 << 30
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4]).SerializeToString()
    head = tensor + varint(9 << 3 | 2) + varint(size)
    model = model_of("(float[n] x) => (float[n] y) { y = Neg(x) }")
    rest = model.graph.SerializeToString()
    before = varint(5 << 3 | 2) + varint(len(head) + size) + head
    graph = varint(7 << 3 | 2) + varint(len(before) + size + len(rest)) + before
    model.ClearField("graph")
    start = model.SerializeToString() + graph
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.write(start)
        file.seek(size, 1)  # a hole: it takes no room on the disk
        file.write(rest)
    found = read_weightless(path).model.graph
    assert [node.op_type for node in found.node] == ["Neg"]
    place = {entry.key: entry.value for entry in found.initializer[0].external_data}
    assert place == {"location": "large.onnx", "offset": str(len(start)), "length": str(size)}
    path.unlink()


def test_a_link_to_a_model_is_outlined_as_the_model(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    path, link = tmp_path / "there/model.onnx", tmp_path / "link.onnx"
    onnx.save(large(), path)
    link.symlink_to(path)
    found = read_weightless(link)
    assert found.model == read_weightless(path).model
    assert found.digest() == read_weightless(path).digest() == sha256(path.read_bytes())


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
@example(part="behind the weight", place=3655)  # right behind the graph
@given(
    part=st.sampled_from(("before the weight", "behind the weight", "anywhere")), place=st.integers(0, 2**20)
)
def test_a_cut_file_is_named(content: bytes, file: Path, part: str, place: int) -> None:
    weight = len(large().graph.initializer[0].raw_data)
    graph = content.index(large().graph.initializer[0].raw_data)
    low, high = {
        "before the weight": (0, graph + 9),
        "behind the weight": (graph + weight - 9, len(content) - 1),
        "anywhere": (0, len(content) - 1),
    }[part]
    size = low + place % (high - low + 1)
    file.write_bytes(content[:size])
    # Between two fields of the model the rest is a model to anybody; behind the graph it has one. Its opsets
    # come last.
    whole = reads_as_protobuf(content[:size])
    if whole is not None and whole.opset_import:
        assert_weightless(read_weightless(file), whole)
        assert size > graph + weight
        return
    with pytest.raises(
        ModelError,
        match=r"m\.onnx: (not an ONNX model, or cut off|holds no graph|.*must specify opset_import)",
    ) as caught:
        read_weightless(file)
    assert caught.value.data["file"] == file
    assert caught.value.hint


@settings(deadline=None, max_examples=300)
@given(data=st.data(), garbage=st.binary(max_size=200))
def test_flipped_bytes_and_garbage_are_named_or_leave_what_protobuf_reads(
    content: bytes, file: Path, data: st.DataObject, garbage: bytes
) -> None:
    flipped = bytearray(content)
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        flipped[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(flipped), garbage):
        file.write_bytes(damaged)
        refused = ""
        try:
            read_weightless(file)
        except ModelError as error:
            refused = error.message
        assert refused.startswith(f"{file}: ") if refused else reads_as_protobuf(damaged) is not None


def test_the_digest_is_that_of_the_file_with_its_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = large()
    for tensor, name in zip(model.graph.initializer, ("z.bin", "a.bin", "z.bin"), strict=True):
        offset = (tmp_path / name).stat().st_size if (tmp_path / name).exists() else 0
        with (tmp_path / name).open("ab") as data:
            data.write(tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, name, offset, len(tensor.raw_data))
        tensor.ClearField("raw_data")
    model.graph.initializer.append(numpy_helper.from_array(np.arange(2000), "in_the_file"))
    path.write_bytes(model.SerializeToString())
    assert {t.name for t in onnx.load(path).graph.initializer} == {"w1", "b1", "w2", "in_the_file"}
    expected = sha256(*((tmp_path / name).read_bytes() for name in ("m.onnx", "a.bin", "z.bin")))
    assert read_weightless(path).digest() == read_graph(path).digest() == expected
    assert_weightless(read_weightless(path), onnx.load(path, load_external_data=False))


def test_external_data_that_is_missing_is_named(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    model = onnx.load(tiny_file("mlp"))
    path = tmp_path / "ext.onnx"
    onnx.save(model, path, save_as_external_data=True, location="ext.bin", size_threshold=0)
    digest = read_weightless(path).digest()
    (tmp_path / "links").mkdir()
    (tmp_path / "links/other.onnx").symlink_to(path)
    assert read_weightless(tmp_path / "links/other.onnx").digest() == digest
    (tmp_path / "ext.bin").unlink()
    with pytest.raises(ModelError, match=r"external data .*ext\.bin does not exist"):
        read_weightless(path).digest()


CHAIN = """(float[n,2000] x) => (float[n,2000] y) {
    a = Mul(x, w) b = Add(a, x) c = Relu(b) d = Add(c, a) y = Sub(d, b) }"""


@settings(max_examples=30)
@given(st.data())
def test_an_edit_keeps_the_index_true(data: st.DataObject) -> None:
    graph = Graph(model_of(CHAIN, named=True, w=random_values(2000)), Path("m.onnx"))
    assert set(graph.consumers) | graph.pinned  # made before the edits
    names = [*graph.producers, "x", "w"]
    for _ in range(data.draw(st.integers(1, 5))):
        node = data.draw(st.sampled_from(list(graph.model.graph.node)))
        edit = data.draw(st.sampled_from(["inputs", "uses", "remove"]))
        if edit == "inputs":
            graph.set_inputs(node, data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names)))
        elif edit == "uses":
            graph.replace_uses(node.output[0], data.draw(st.sampled_from(names)))
        elif len(graph.model.graph.node) > 1:
            graph.remove(node)
        kept = {name: nodes for name, nodes in graph.consumers.items() if nodes}
        for index, fresh in ((kept, consumers), (graph.producers, producers)):
            assert {name: _ids(of) for name, of in index.items()} == {
                name: _ids(of) for name, of in fresh(graph.model.graph).items()
            }
    assert not graph.is_file


def _ids(nodes: onnx.NodeProto | list[onnx.NodeProto]) -> list[str]:
    """Names of the nodes, sorted: edits and a fresh index may have them in another order."""
    return sorted(node.name for node in (nodes if isinstance(nodes, list) else [nodes]))


def test_a_graph_is_read_without_its_weights_and_written_with_them(tmp_path: Path) -> None:
    model = model_of(CHAIN, named=True, w=random_values(2000))
    onnx.save(model, tmp_path / "m.onnx")
    graph = read_graph(tmp_path / "m.onnx")
    assert graph.stored["w"].data_location == TensorProto.EXTERNAL
    assert not graph.stored["w"].raw_data
    graph.replace_uses("c", "b")
    x = random_values(2, 2000)
    options = session_options()
    outputs = make_session(graph, options).run(None, {"x": x})[0]  # the weights stay in the file
    assert not graph.stored["w"].raw_data
    graph.save(tmp_path / "edited.onnx")
    written = onnx.load(tmp_path / "edited.onnx")
    assert written.graph.initializer[0] == model.graph.initializer[0]
    same = make_session(tmp_path / "edited.onnx", session_options()).run(None, {"x": x})[0]
    np.testing.assert_array_equal(outputs, same)
    np.testing.assert_allclose(outputs, x * random_values(2000), rtol=1e-5, atol=1e-6)


def random_values(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def test_weights_that_stay_in_their_file_do_not_count_for_protobufs_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qcompile.model.graph.onnx_file.EXTERNAL_DATA_BYTES", 5000)
    model = model_of(CHAIN, named=True, w=random_values(2000))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    graph = read_graph(tmp_path / "m.onnx")
    assert not is_large(graph.model, loaded=True)
    assert len(graph.model.SerializeToString()) < 5000
    assert is_large(graph.load(), loaded=True)


def test_weights_beside_a_file_may_stay_there(tmp_path: Path) -> None:
    model = model_of(CHAIN, named=True, w=random_values(2000))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    graph = read_graph(tmp_path / "m.onnx")
    assert list(graph.beside) == [tmp_path / "m.data"]
    assert graph.load(beside=False).graph.initializer[0].data_location == TensorProto.EXTERNAL
    np.testing.assert_array_equal(
        numpy_helper.to_array(graph.load().graph.initializer[0]), random_values(2000)
    )
