"""A `.pt2` is looked into first: what runs code when it is loaded is refused, and nothing has run."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import qcompile
from qcompile.cli import main
from qcompile.errors import ModelError
from qcompile.model.pt2_archive import check_program, program_checked, trusting
from qcompile.model.pytorch import load_torch
from qcompile.model.source import parse_source

TORCH_SAVED = "data/sample_inputs/model.pt"
GRAPH = "models/model.json"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)
        self.table = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = torch.cat([x, x])
        return self.linear(doubled[: x.shape[0]]) + self.table


class Evil:
    """Pickled, it creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a dynamic batch, weights and a constant, as `torch.export.save` writes it."""
    path = tmp_path_factory.mktemp("saved") / "net.pt2"
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Net().eval(), (torch.ones(4, 6),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return path


def rewritten(saved: Path, path: Path, change: Callable[[str, bytes], bytes], **more: bytes) -> Path:
    """The archive with other members, and some more."""
    with zipfile.ZipFile(saved) as before, zipfile.ZipFile(path, "w") as after:
        for name in before.namelist():
            content = change(name, before.read(name))
            # PyTorch maps raw tensors: it wants them aligned, which a filled name gives.
            info = zipfile.ZipInfo(name)
            space = -(after.fp.tell() + 30 + len(name) + 4) % 64  # type: ignore[union-attr]
            info.extra = b"FB" + space.to_bytes(2, "little") + b"Z" * space
            after.writestr(info, content)
        for name, content in more.items():
            after.writestr(f"net/{name}", content)
    return path


def evil_pickle(mark: Path) -> bytes:
    file = io.BytesIO()
    torch.save(((Evil(mark),), {}), file)
    return file.getvalue()


def test_what_export_saves_needs_no_trust(saved: Path) -> None:
    check_program(saved)
    x = torch.randn(5, 6)
    assert load_torch(parse_source(str(saved))).module(x).shape == (5, 3)


@pytest.mark.parametrize("name", [TORCH_SAVED, "data/weights/model.pt", "data/constants/model.pt"])
def test_a_pickle_that_would_run_is_refused_and_has_not_run(name: str, saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    members = {} if name == TORCH_SAVED else {name: evil_pickle(mark)}
    path = rewritten(
        saved, tmp_path / "bad.pt2", lambda n, old: evil_pickle(mark) if n.endswith(name) else old, **members
    )
    with pytest.raises(ModelError, match=r"holds a pickle with \w+.mkdir, which runs code") as refused:
        load_torch(parse_source(str(path)))
    assert name in refused.value.message
    assert "`trust`" in refused.value.hint
    assert not mark.exists()


def test_with_trust_it_is_loaded_as_asked(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = rewritten(
        saved,
        tmp_path / "bad.pt2",
        lambda name, old: evil_pickle(mark) if name.endswith(TORCH_SAVED) else old,
    )
    with trusting():
        assert load_torch(parse_source(str(path))).module(torch.ones(2, 6)).shape == (2, 3)
    assert mark.is_dir()
    with pytest.raises(ModelError, match="which runs code"):
        load_torch(parse_source(str(path)))


def config(kind: str, **entry: object) -> Callable[[str, bytes], bytes]:
    """A change that adds an entry to a configuration."""

    def change(name: str, old: bytes) -> bytes:
        if not name.endswith(f"{kind}_config.json"):
            return old
        value = json.loads(old)
        value["config"]["more"] = {"is_param": False, "tensor_meta": None, **entry}
        return json.dumps(value).encode()

    return change


def test_objects_and_pickled_tensors_and_native_code_are_refused(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    opaque, evil = pickle.dumps(Evil(mark)), evil_pickle(mark)
    constant = config("constants", path_name="opaque_obj_0", use_pickle=True)
    weight = config("weights", path_name="weight_9", use_pickle=True)
    for number, (change, name, content, said) in enumerate(
        [
            (constant, "data/constants/opaque_obj_0", opaque, "a pickled object"),
            (weight, "data/weights/weight_9", evil, r"a pickle with \w+.mkdir"),
            (lambda _, old: old, "data/aotinductor/model/model.so", b"\x7fELF", "native code"),
        ]
    ):
        path = rewritten(saved, tmp_path / f"bad{number}.pt2", change, **{name: content})
        with pytest.raises(ModelError, match=said):
            load_torch(parse_source(str(path)))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("torch.ops.aten.linear.default", "torch.os.mkdir", "a call of 'torch.os.mkdir'"),
        ("torch.ops.aten.linear.default", "torch.ops.load_library", "a call of"),
        ("torch.ops.aten.linear.default", "_operator.attrgetter", "a call of"),
        ("torch.ops.aten.linear.default", "torch.ops.aten.from_file.default", "a call of"),
        ("Symbol('s77', positive=True, integer=True)", "__import__('os').mkdir('MARK')", "the expression"),
        ("Symbol('s77', positive=True, integer=True)", "exec(chr(112))", "the expression"),
        ("Symbol('s77', positive=True, integer=True)", "preview(2)", "the expression"),
    ],
)
def test_a_graph_that_calls_more_than_operators_is_refused(
    before: str, after: str, said: str, saved: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    with zipfile.ZipFile(saved) as archive:
        text = archive.read(f"net/{GRAPH}").decode()
    symbol = before.replace("s77", text.split("Symbol('")[1].split("'")[0])
    assert symbol in text
    changed = text.replace(symbol, after.replace("MARK", str(mark))).encode()
    path = rewritten(saved, tmp_path / "bad.pt2", lambda n, old: changed if n.endswith(GRAPH) else old)
    with pytest.raises(ModelError, match=said):
        load_torch(parse_source(str(path)))
    assert not mark.exists()


def test_the_older_format_is_looked_into_too(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for name in ("serialized_state_dict.pt", "serialized_constants.json", "serialized_example_inputs.pt"):
        path = tmp_path / "old.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("version", "8.1")
            archive.writestr("serialized_exported_program.json", "{}")
            archive.writestr(name, evil_pickle(mark))
        with pytest.raises(ModelError, match=f"{name}.*mkdir"):
            load_torch(parse_source(str(path)))
    assert not mark.exists()


def test_archives_that_are_none_are_refused_without_a_traceback(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt2"
    content = saved.read_bytes()
    directory = content.rindex(b"PK\x01\x02")
    for damaged in (
        b"",
        b"no zip",
        content[:-30],
        content[: len(content) // 2],
        content[:directory] + b"x" * 80,
    ):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match="not a program saved by"):
            load_torch(parse_source(str(path)))
    for name, said in (
        ("../up", "outside"),
        ("/root", "outside"),
        ("net/models/model.json", "more than once"),
    ):
        with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
            warnings.simplefilter("ignore")  # of names that come twice
            archive.writestr("net/models/model.json", "{}")
            archive.writestr(name, "{}")
        with pytest.raises(ModelError, match=said):
            load_torch(parse_source(str(path)))


def test_the_second_lock_is_put_back(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, other = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(other, "1")
    with program_checked(saved):
        assert os.environ[name] == "1"
        assert other not in os.environ
    assert name not in os.environ
    assert os.environ[other] == "1"


def test_every_verb_that_takes_a_model_refuses_it(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = str(
        rewritten(
            saved, tmp_path / "bad.pt2", lambda n, old: evil_pickle(mark) if n.endswith(TORCH_SAVED) else old
        )
    )
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'version = 1\nname = "n"\n[model]\nsource = "bad.pt2"\n'
        '[[artifact]]\nname = "a"\ntarget = "onnxruntime"\n'
    )
    for words in (
        ["export", path, "-o", str(tmp_path / "o.onnx")],
        ["build", path, "--target", "torchscript", "-o", str(tmp_path / "o.pt"), "-i", "x:2x6"],
        ["bench", path, "--baseline", path, "-i", "x:2x6"],
        ["diff", path, path, "-i", "x:2x6"],
        ["run", str(recipe)],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words, "-q"])
        assert ended.value.code == 1, words
        assert not mark.exists(), words
    with pytest.raises(ModelError, match="which runs code"):
        qcompile.load(path)
    assert not mark.exists()
    recipe.write_text(
        recipe.read_text().replace("[model]\n", "[model]\ntrust = true\ninputs = ['x:[b,6]']\n")
    )
    export = ["export", path, "-i", "x:[b,6]", "-o", str(tmp_path / "o.onnx"), "--trust"]
    for trusted in (export, ["run", str(recipe)]):
        with pytest.raises(SystemExit) as ended:
            main([*trusted, "-q"])
        assert ended.value.code == 0
        assert mark.is_dir(), trusted
        mark.rmdir()
