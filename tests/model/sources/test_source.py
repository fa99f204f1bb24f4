"""MODEL: its spellings and the options behind the `?`, what it loads, what its digest counts.

What is exported tells nothing of the machine that it was exported on.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import qcompile
from qcompile.errors import InvalidOption, MissingFile, ModelError, QCompileError
from qcompile.model.graph import source_paths
from qcompile.model.graph.onnx_file import read_graph, save_onnx
from qcompile.model.sources.load import load_torch
from qcompile.model.sources.pytorch import LoadedModel
from qcompile.model.sources.source import SourceOptions, digest_source, parse_query, parse_source

LINEAR = "import torch\n\ndef build():\n    return torch.nn.Linear(2, 3)\n"


def write(path: Path, text: str) -> str:
    """The spelling of `build` in a file of this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f"{path}:build"


def load(spec: str | Path) -> LoadedModel:
    return load_torch(parse_source(str(spec)))


def digest(spec: str | Path) -> str:
    return digest_source(parse_source(str(spec)))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package `tinyzoo` with a module `nets`."""
    write(tmp_path / "site/tinyzoo/nets.py", LINEAR)
    (tmp_path / "site/tinyzoo/__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site/tinyzoo"
    for name in ("tinyzoo", "tinyzoo.nets"):
        sys.modules.pop(name, None)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with an empty file or model of every kind."""
    for name in "net.py M.ONNX net.onnx m.pt2 m.pt m.torchscript m.keras m.h5 m.tflite w.safetensors".split():
        (tmp_path / name).write_text("")
    for folder in ("bert", "saved"):
        (tmp_path / folder).mkdir()
    (tmp_path / "saved/saved_model.pb").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "kind", "function"),
    [("net.py:build", "file", "build"), ("{}/net.py:build", "file", "build"), ("zoo:net", "module", "net"),
     ("torchvision.models:resnet50", "module", "resnet50"), ("net.onnx", "onnx", ""), ("M.ONNX", "onnx", ""),
     ("m.pt2", "pt2", ""), ("m.pt", "torchscript", ""), ("m.torchscript", "torchscript", ""),
     ("m.keras", "keras", ""), ("m.h5", "keras", ""), ("m.tflite", "tflite", ""),
     ("saved", "savedmodel", ""), ("saved:serve", "savedmodel", "serve")],
)  # fmt: skip
def test_every_spelling_is_recognized(spec: str, kind: str, function: str, files: Path) -> None:
    source = parse_source(spec.format(files), base=files)
    assert (source.spec, source.kind, source.function) == (spec.format(files), kind, function)
    if kind == "module":
        assert source.absolute == spec
        assert source.module == spec.partition(":")[0]
        with pytest.raises(InvalidOption, match="is not a file"):
            _ = source.file
    else:
        assert source.absolute == f"{files / spec.format(files)}"
        assert source.file.parent == files


@pytest.mark.parametrize(
    ("spec", "absolute"),
    [("hf:bert", "hf:{}/bert"), ("hf:org/bert?seed=2", "hf:org/bert?seed=2"), ("timm:bert", "timm:bert"),
     ("net.py:build?weights=w.safetensors", "{}/net.py:build?weights={}/w.safetensors")],
)  # fmt: skip
def test_a_folder_is_kept_absolute_and_a_name_is_kept(spec: str, absolute: str, files: Path) -> None:
    source = parse_source(spec, base=files)
    assert source.absolute == absolute.format(files, files)
    assert parse_source(source.absolute).options == source.options


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("net.py", "names a file but no function", "write net.py:FUNCTION"),
        ("nett.py:build", "nett.py does not exist", "net.py?"),
        ("net.onxn", "model net.onxn does not exist", "net.onnx?"),
        ("resnet50", "is none of: file.py:function", ""),
        ("folder/none/net.onnx", "does not exist", "does not exist either"),
        ("none.keras", "does not exist", ""),
        ("hf:./brt", "no such folder", "bert"),
        ("timm:resnet18?wieghts=random", "'wieghts=random' is none of its options", "'weights'"),
        ("timm:resnet18?classes", "none of its options", "classes=VALUE"),
        ("timm:resnet18?classes=0", "classes=0; a number of 1 or more", ""),
        ("timm:resnet18?size=1x2x3", "size=1x2x3; HEIGHT", ""),
        ("timm:resnet18?download=yes", "download=yes; 0 or 1", ""),
        ("timm:resnet18?seed=-1", "seed=-1; a number", ""),
        ("timm:resnet18?seed=1&seed=1", "seed is given twice", ""),
        ("timm:", "names no model", "timm:NAME"),
        ("zoo:net?classes=3", "'classes=3' is none of its options: weights", ""),
        ("zoo:net?weights=random", "chooses its weights itself", ""),
    ],
)
def test_a_wrong_spelling_is_refused_with_the_way_out(
    spec: str, message: str, hint: str, files: Path
) -> None:
    with pytest.raises((InvalidOption, MissingFile)) as caught:
        parse_source(spec, base=files)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert isinstance(caught.value, MissingFile) == any(
        word in message for word in ("does not exist", "no such folder")
    )


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("timm:resnet18?weights=random", {"weights": "w.safetensors"}, "has weights=random"),
        ("timm:resnet18", {"weights": "none.pth"}, r"none\.pth does not exist"),
        ("net.onnx", {"weights": "w.safetensors"}, r"`weights`: model net\.onnx contains its weights"),
        ("net.py:build", {"download": True}, r"`download`: net\.py:build downloads nothing"),
    ],
)
def test_options_beside_the_spelling_that_do_not_fit_it(
    spec: str, options: dict[str, Any], message: str, files: Path
) -> None:
    with pytest.raises(QCompileError, match=message):
        parse_source(spec, base=files, **options)


def test_options_beside_the_spelling_join_it(files: Path) -> None:
    source = parse_source("timm:resnet18?classes=3", base=files, weights="w.safetensors", download=True)
    assert source.spec == "timm:resnet18?weights=w.safetensors&download=1&classes=3"
    assert source.absolute == f"timm:resnet18?weights={files}/w.safetensors&download=1&classes=3"


@pytest.mark.parametrize(
    ("example", "kind"),
    [("torch.ones(1, 2)", tuple), ("(torch.ones(1, 2),)", tuple), ("{'input': torch.ones(1, 2)}", dict)],
)
def test_an_example_may_come_with_the_module(tmp_path: Path, example: str, kind: type) -> None:
    loaded = load(write(tmp_path / "net.py", LINEAR.replace("(2, 3)", f"(2, 3), {example}")))
    assert isinstance(loaded.example, kind)
    assert len(loaded.example) == 1


def test_a_function_in_a_package_is_loaded_and_the_digest_is_that_of_its_code(package: Path) -> None:
    assert isinstance(load("tinyzoo.nets:build").module, torch.nn.Linear)
    with pytest.raises(ModelError, match=r"importing tinyzoo\.none raised"):
        load("tinyzoo.none:build")
    before = digest("tinyzoo.nets:build")
    (package / "nets.py").write_text(LINEAR.replace("3", "4"))
    assert digest("tinyzoo.nets:build") != before


@pytest.mark.parametrize("content", ["state_dict", "module"])
def test_a_pickled_checkpoint_is_refused_unread(tmp_path: Path, content: str) -> None:
    module = torch.nn.Linear(2, 3)
    torch.save(module.state_dict() if content == "state_dict" else module, tmp_path / "net.pt")
    with pytest.raises(ModelError, match=r"never unpickled\n  hint: .* model\.py:build"):
        load(tmp_path / "net.pt")


def test_an_error_inside_a_library_names_the_users_own_line(tmp_path: Path) -> None:
    text = "import json\n\ndef build():\n    return json.loads('{')\n"
    write(tmp_path / "real/net.py", text)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for folder in ("real", "link", "real/../real"):
        with pytest.raises(ModelError, match=r"raised JSONDecodeError.*\(net\.py, line 4\)"):
            load(f"{tmp_path / folder / 'net.py'}:build")


RAISES = "def build():\n    return one()\n\ndef one():\n    return int('five')\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_this_name\n", r"raised ModuleNotFoundError: .*\(net\.py, line 1\)"),
        ("x = 1\ny = 1 / 0\n", r"raised ZeroDivisionError: .*\(net\.py, line 2\)"),
        ("x = 1\ndef build(:\n", r"raised SyntaxError: .*\(net\.py, line 2\)$"),
        (RAISES, r"raised ValueError: invalid literal.*\(net\.py, line 5\)"),
        (LINEAR.replace("build", "bild"), r"no function 'build'\n  hint: did you mean 'bild'\?"),
        *(
            (LINEAR.replace("torch.nn.Linear(2, 3)", value), r"an nn\.Module is required")
            for value in ("None", "5", "torch.nn.Linear", "(torch.ones(1), torch.ones(1))")
        ),
    ],
)
def test_what_is_wrong_with_a_function_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(write(tmp_path / "net.py", text))


@pytest.mark.parametrize("name", ["net.py", "layers.py", "net.safetensors", "config.json", "net.bin"])
def test_the_digest_changes_with_files_beside_the_model(torch_model: str, tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    if name != "net.py":
        write(tmp_path / "net.py", f"{LINEAR}\nFILE = {name!r}\n")
    before = digest(torch_model)
    for other in ("train.log", "notes.txt", "other.json", "predictions.npz", "last.pt"):
        (tmp_path / other).write_text("nothing of the model")
    assert digest(torch_model) == before
    assert digest(torch_model.replace(":build", ":other")) != before
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b"\n# other")
    assert digest(torch_model) != before


@pytest.mark.parametrize("name", ["zoo/nets/deep.py", "zoo/nets/w.ckpt", "flat/nets.py", "weights/net.pt"])
def test_the_digest_changes_with_packages_and_with_tensors_below(tmp_path: Path, name: str) -> None:
    head = "from zoo import net\nimport flat.nets\nFILES = 'w.ckpt', 'net.pt'\n"
    spec = write(tmp_path / "net.py", head + LINEAR)
    others = ("docs/a.py", "out/net.pt", "zoo/out/results.json")
    for path in ("zoo/__init__.py", "flat/other.py", name, "out/.qcompile/x", "zoo/out/.qcompile/x", *others):
        write(tmp_path / path, "")
    before = digest(spec)
    for path in others:
        write(tmp_path / path, "says nothing of the model")
    assert digest(spec) == before
    write(tmp_path / name, "# other")
    assert digest(spec) != before


def test_large_files_count_by_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qcompile.model.sources.source._HASHED_BYTES", 1 << 12)
    spec, digests = write(tmp_path / "net.py", LINEAR + "\nFILE = 'a.npz'\n"), []
    for content, time_ns in (("a", 10**9), ("b", 10**9), ("b", 2 * 10**9)):
        write(data := tmp_path / "data/a.npz", content * 5000)
        os.utime(data, ns=(time_ns, time_ns))
        digests.append(digest(spec))
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_of_an_installed_module_changes_with_its_subpackages(package: Path) -> None:
    digests = [write(package / "deep/a.py", text) and digest("tinyzoo.nets:build") for text in "12"]
    assert digests[0] != digests[1]


def test_the_digest_counts_weights_by_name_and_what_it_is_told_to_depend_on(
    torch_model: str, tmp_path: Path
) -> None:
    source, far = parse_source(torch_model), tmp_path / "far.dat"
    digests = [digest_source(source)]
    write(tmp_path / "net.py", f"{LINEAR}\nFILE = f'{{name}}.safetensors'\n")
    (tmp_path / "a.safetensors").write_bytes(b"weights")
    digests.append(digest_source(source))
    (tmp_path / "a.safetensors").rename(tmp_path / "b.safetensors")
    digests.append(digest_source(source))
    for content in (b"1", b"2"):
        far.write_bytes(content)
        digests.append(digest_source(source, depends=[far]))
    assert len({*digests}) == 5
    with pytest.raises(MissingFile, match="depends"):
        digest_source(source, depends=[tmp_path / "further.dat"])


OPTIONS = st.builds(
    SourceOptions,
    weights=st.one_of(st.just(""), st.just("random"), st.text(min_size=1)),
    download=st.booleans(),
    classes=st.integers(0, 10**6),
    size=st.one_of(st.just(()), st.tuples(st.integers(1, 4096), st.integers(1, 4096))),
    task=st.text(),
    seed=st.integers(0, 2**63),
)


@given(OPTIONS)
def test_what_is_written_is_read(options: SourceOptions) -> None:
    query = options.query
    assert "?" not in query[1:]
    assert (parse_query(query[1:], "timm:x") if query else SourceOptions()) == options


def test_the_digest_follows_weights_options_and_files(files: Path) -> None:
    def digest(spec: str, weights: str = "", *, download: bool = False) -> str:
        return digest_source(parse_source(spec, base=files, weights=weights, download=download))

    first = digest("hf:bert")
    assert digest("hf:bert", download=True) == first, "where it comes from is no part of what it is"
    (files / "bert/config.json").write_text('{"a": 1}')
    assert digest("hf:bert") != first
    with_file = digest("timm:resnet18", "w.safetensors")
    (files / "w.safetensors").write_bytes(b"v")
    digests = {digest("timm:resnet18", "w.safetensors"), digest("timm:resnet18"), digest("timm:resnet34"),
               digest("timm:resnet18?weights=random"), digest("timm:resnet18?weights=random&seed=1"),
               digest("torchvision:resnet18"), with_file}  # fmt: skip
    assert len(digests) == 7


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
    assert source_paths.without_folders(text) == (text if expected is None else expected)


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
    assert source_paths.strip_source_paths(model)
    assert b"/home" not in model.SerializeToString()
    assert b"stack_trace" not in model.SerializeToString()
    kept = {entry.key: entry.value for entry in model.graph.node[0].metadata_props}
    assert kept == {"namespace": ": Net/fc: Linear", "origin": "net.py"}
    cleaned = onnx.ModelProto.FromString(model.SerializeToString())
    assert not source_paths.strip_source_paths(model)
    assert model == cleaned


def test_the_same_file_in_two_folders_becomes_the_same_bytes_without_a_folder(
    torch_model: str, tmp_path: Path
) -> None:
    there = tmp_path / "elsewhere/net.py"
    there.parent.mkdir()
    shutil.copy(tmp_path / "net.py", there)
    for source, name in ((torch_model, "one"), (f"{there}:build", "other")):
        qcompile.export(source, tmp_path / f"{name}.onnx", inputs=["x:[batch,3,8,8]"])
    content = (tmp_path / "one.onnx").read_bytes()
    assert content == (tmp_path / "other.onnx").read_bytes()
    assert b"net.Net" in content  # the class is told by the name of its file
    library = os.path.dirname(os.__file__)
    for text in (str(tmp_path), library, "stack_trace", "site-packages", "def forward", "qcompile_source_"):
        assert text.encode() not in content
    names = {
        entry.key
        for node in read_graph(tmp_path / "one.onnx").load().graph.node
        for entry in node.metadata_props
    }
    assert "namespace" in names  # errors name the module by it


@pytest.mark.parametrize("name", ["net.py", "a-b.c.py", "größe 2.py"])
def test_a_module_is_named_by_its_file_in_texts(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("1")
    imported = source_paths.module_name(path)
    path.write_text("2")
    assert source_paths.module_name(path) != imported  # an edited file is another module
    stem = "".join(letter if letter.isalnum() else "_" for letter in path.stem)
    assert source_paths.with_file_names(f"['{imported}.Net', 'torch.nn']") == f"['{stem}.Net', 'torch.nn']"
    assert source_paths.with_file_names("qcompile_source_of_mine.Net") == "qcompile_source_of_mine.Net"


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
    with source_paths.map_folder("/client/base", here):
        assert source_paths.path_there(here / "net") == "/client/base/net"
        assert source_paths.path_there(here) == "/client/base"
        assert source_paths.path_there(tmp_path / "hereabouts") == str(tmp_path / "hereabouts")
        assert source_paths.path_here("/client/base/net") == str(here / "net")
        assert source_paths.path_here("/client/base/cache") == "/client/base/cache"  # not carried along
        assert source_paths.path_here("/client/baseline/net") == "/client/baseline/net"
        assert source_paths.path_here("bert") == "bert"
    with source_paths.map_folder("/", here):
        assert source_paths.path_there(here / "net") == "/net"
        assert source_paths.path_here("/net") == str(here / "net")
    with source_paths.map_folder("", here):
        assert source_paths.path_there(here / "net") == str(here / "net")
    assert dict(os.environ) == before
