"""What is exported tells nothing of the machine that it was exported on.

Where a recipe was carried to another folder, its model's tokenizer is found, and named as before.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import qcompile
from qcompile.errors import DataError
from qcompile.model.onnx_file import load_onnx, save_onnx
from qcompile.model.source_paths import (
    module_name,
    moved,
    path_here,
    path_there,
    strip_source_paths,
    with_file_names,
    without_folders,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('File "/home/ann/net.py", line 7, in forward', 'File "net.py", line 7, in forward'),
        ("/home/ann/project/a/b/model.py:12", "model.py:12"),
        ("of C:\\Users\\Ann\\net.py and D:/x/y.py", "of net.py and y.py"),
        ("/Users/ann/My/weights", "weights"),
        ("/some/where/else/net.py(3): forward", "net.py(3): forward"),
        (": Net/layer4: Sequential/layer4.1.conv2: Conv2d/conv2d: aten", None),
        ("/layer1/layer1.0/conv1/Conv", None),
        ("see https://host.org/page/index.html", None),
        ("a/b/c.py", None),
        ('{"x": {"axes": {}, "example": [2, 3, 8, 8]}}', None),
        ("2 / 3 and/or", None),
    ],
)
def test_absolute_paths_lose_their_folders_and_nothing_else_changes(text: str, expected: str | None) -> None:
    assert without_folders(text) == (text if expected is None else expected)


def test_everything_that_has_metadata_is_looked_into(tiny: Callable[..., onnx.ModelProto]) -> None:
    model = tiny("mlp")
    said = 'File "/home/ann/net.py", line 1'
    branch = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["t"], doc_string=said)], "b", [], []
    )
    holder = onnx.helper.make_node("If", ["c"], [], then_branch=branch)
    model.graph.node.append(holder)
    function = model.functions.add(name="f", domain="own", doc_string=said)
    function.node.add(op_type="Relu", doc_string=said)
    graph = model.graph
    parts = (graph.node, graph.input, graph.output, graph.initializer)
    for message in (model, graph, function, *(part[0] for part in parts)):
        message.doc_string = said
        message.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=said)
        message.metadata_props.add(key="namespace", value=": Net/fc: Linear")
        message.metadata_props.add(key="origin", value="/home/ann/net.py")
    assert strip_source_paths(model)
    assert b"/home" not in model.SerializeToString()
    assert b"stack_trace" not in model.SerializeToString()
    kept = {entry.key: entry.value for entry in model.graph.node[0].metadata_props}
    assert kept == {"namespace": ": Net/fc: Linear", "origin": "net.py"}
    assert not strip_source_paths(model)


def test_a_clean_model_is_left_as_it_is(tiny: Callable[..., onnx.ModelProto]) -> None:
    model = tiny("residual")
    assert not strip_source_paths(model)
    assert model == tiny("residual")


def test_an_exported_module_tells_no_folder_of_its_source(torch_model: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    qcompile.export(torch_model, path, inputs=["x:[batch,3,8,8]"])
    content = path.read_bytes()
    for told in (str(tmp_path), os.path.dirname(os.__file__), "stack_trace", "site-packages", "def forward"):
        assert told.encode() not in content
    names = {entry.key for node in load_onnx(path).graph.node for entry in node.metadata_props}
    assert "namespace" in names  # errors name the module by it


def test_the_same_file_in_two_folders_becomes_the_same_bytes(torch_model: str, tmp_path: Path) -> None:
    there = tmp_path / "elsewhere/net.py"
    there.parent.mkdir()
    shutil.copy(tmp_path / "net.py", there)
    for source, name in ((torch_model, "one"), (f"{there}:build", "other")):
        qcompile.export(source, tmp_path / f"{name}.onnx", inputs=["x:[batch,3,8,8]"])
    content = (tmp_path / "one.onnx").read_bytes()
    assert content == (tmp_path / "other.onnx").read_bytes()
    assert b"net.Net" in content  # the class is told by the name of its file
    assert b"qcompile_source_" not in content


@pytest.mark.parametrize("name", ["net.py", "a-b.c.py", "größe 2.py"])
def test_a_module_is_named_by_its_file_in_texts(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("1")
    imported = module_name(path)
    path.write_text("2")
    assert module_name(path) != imported  # an edited file is another module
    stem = "".join(letter if letter.isalnum() else "_" for letter in path.stem)
    assert with_file_names(f"['{imported}.Net', 'torch.nn']") == f"['{stem}.Net', 'torch.nn']"
    assert with_file_names("qcompile_source_of_mine.Net") == "qcompile_source_of_mine.Net"


@pytest.mark.parametrize("external", [False, True])
def test_a_passed_through_and_a_built_onnx_file_tell_no_folder(
    tiny: Callable[..., onnx.ModelProto], tmp_path: Path, external: bool
) -> None:
    model = tiny("mlp")
    model.graph.node[0].doc_string = 'File "/home/ann/net.py", line 1'
    model.graph.node[1].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="/home/ann/net.py")
    model.metadata_props.add(key="source", value="/home/ann/net.py")
    given = tmp_path / "given.onnx"
    onnx.save_model(model, given, save_as_external_data=external, location="given.bin", size_threshold=0)
    qcompile.export(str(given), tmp_path / "taken.onnx")
    for target in ("onnxruntime", "openvino"):
        qcompile.build(given, tmp_path / f"{target}.onnx", target=target)
    for name in ("taken", "onnxruntime", "openvino"):
        files = [file for file in tmp_path.iterdir() if file.name.startswith(name)]
        assert not any(b"/home/ann" in file.read_bytes() for file in files), name
        assert not any(file.name.endswith(".data") for file in files), name  # small weights are in the file
    del model.graph.node[0]
    save_onnx(model, tmp_path / "saved.onnx")
    assert b"/home/ann" not in (tmp_path / "saved.onnx").read_bytes()


def test_paths_below_the_folder_are_swapped_and_others_stay(tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "net").mkdir(parents=True)
    (tmp_path / "hereabouts").mkdir()
    before = dict(os.environ)
    with moved("/client/base", here):
        assert path_there(here / "net") == "/client/base/net"
        assert path_there(here) == "/client/base"
        assert path_there(tmp_path / "hereabouts") == str(tmp_path / "hereabouts")
        assert path_here("/client/base/net") == str(here / "net")
        assert path_here("/client/base/cache") == "/client/base/cache"  # not carried along
        assert path_here("/client/baseline/net") == "/client/baseline/net"
        assert path_here("bert") == "bert"
    with moved("/", here):
        assert path_there(here / "net") == "/net"
        assert path_here("/net") == str(here / "net")
    with moved("", here):
        assert path_there(here / "net") == str(here / "net")
    assert dict(os.environ) == before


def test_a_tokenizer_is_named_as_there_and_found_here(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="reads models of Hugging Face")
    from named_models import FOLDERS

    from qcompile.data.processors import load_processor
    from qcompile.model.preprocessing import TextPreprocessing, find_preprocessing

    there, here = tmp_path / "there", tmp_path / "here"
    FOLDERS["bert"](there / "net")
    said = find_preprocessing(f"hf:{there}/net")
    assert isinstance(said, TextPreprocessing)
    assert said.tokenizer == f"{there}/net"
    there.rename(here)
    with pytest.raises(DataError, match="cannot be loaded"):
        load_processor("AutoTokenizer", said.tokenizer, "tokenizer")
    with moved(str(there), here):
        assert find_preprocessing(f"hf:{here}/net") == said
        assert load_processor("AutoTokenizer", said.tokenizer, "tokenizer")("the")["input_ids"]
