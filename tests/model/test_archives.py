"""Damaged archives of PyTorch and Keras are refused before their packages read them.

A `.pt2` is looked into first: what runs code when it is loaded is refused, and nothing has run.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hostile_pickle import Evil, torch_saved

import qcompile
from qcompile.cli import main
from qcompile.errors import ModelError
from qcompile.model import archives
from qcompile.model.archives import check_archive, check_program, program_checked, trusting
from qcompile.model.load import load_torch
from qcompile.model.pytorch import read_weights
from qcompile.model.source import parse_source
from qcompile.progress import quiet

TEN = b"0123456789"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TorchScript archive of one linear layer."""
    path = tmp_path_factory.mktemp("traced") / "net.pt"
    with quiet():  # TorchScript warns of its own deprecation
        torch.jit.save(torch.jit.trace(torch.nn.Linear(50, 30), torch.ones(2, 50)), str(path))
    return path


def _weight_at(path: Path) -> int:
    """Where the bytes of the largest member begin."""
    with zipfile.ZipFile(path) as archive:
        member = max(archive.infolist(), key=lambda one: one.file_size)
    header = path.read_bytes()[member.header_offset : member.header_offset + 30]
    name, extra = struct.unpack("<HH", header[26:30])
    return member.header_offset + 30 + int(name) + int(extra)


def changed_at(source: Path, path: Path, place: int) -> Path:
    """A copy of a file with one byte changed."""
    content = bytearray(source.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)
    return path


def load(path: Path) -> torch.nn.Module:
    return load_torch(parse_source(str(path))).module


@pytest.mark.parametrize(
    ("name", "what", "read"),
    [("n.pt", "a TorchScript archive", load), ("n.pt2", "a program saved by", load),
     ("n.pth", "a state dict", read_weights),
     ("n.keras", "a Keras file", lambda path: qcompile.export(str(path), path.with_name("m.onnx")))],
)  # fmt: skip
def test_an_archive_with_one_byte_of_a_weight_changed_is_refused(
    name: str, what: str, read: Callable[[Path], object], traced: Path, saved: Path, tmp_path: Path
) -> None:
    state_dict, keras = tmp_path / "whole.pth", tmp_path / "whole.keras"
    torch.save(torch.nn.Linear(50, 30).state_dict(), state_dict)
    assert set(read_weights(state_dict)) == {"weight", "bias"}
    with zipfile.ZipFile(keras, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", TEN * 100)
    source = {"n.pt": traced, "n.pt2": saved, "n.pth": state_dict, "n.keras": keras}[name]
    path = changed_at(source, tmp_path / name, _weight_at(source) + 5)
    if name == "n.pt":
        with quiet():
            torch.jit.load(str(path))  # PyTorch itself takes it
    with pytest.raises(ModelError, match=rf"{name}: not {what} .* is damaged \(Bad CRC-32") as caught:
        read(path)
    assert caught.value.data["member"]
    assert caught.value.hint


def test_no_byte_of_the_directory_makes_another_exception(traced: Path, tmp_path: Path) -> None:
    content = traced.read_bytes()
    start = content.index(b"PK\x01\x02")
    for place in range(start, len(content), 7):
        path = changed_at(traced, tmp_path / "net.pt", place)
        with contextlib.suppress(ModelError):  # a change of a date or a flag does no harm
            check_archive(path, what="a TorchScript archive", hint="copy it again")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        *((name, "lies outside") for name in ("../evil", "/etc/passwd", "a/../../b", "..\\evil", "\\evil")),
        ("a a", "'a' more than once"),
        ("zeros", r"m\.pt: its \d+ bytes unpack to 8388608; at most 100 times"),
    ],
)
def test_members_that_no_archive_should_have_are_refused_unread(
    names: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE_BYTES", 1 << 20)
    path = tmp_path / "m.pt"
    with quiet(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names.split():
            archive.writestr(name, bytes(8 << 20) if name == "zeros" else TEN)
    with pytest.raises(ModelError, match=problem):
        check_archive(path, what="a state dict", hint="no")


TORCH_SAVED = "data/sample_inputs/model.pt"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)
        self.table = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = torch.cat([x, x])
        return self.linear(doubled[: x.shape[0]]) + self.table


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a dynamic batch, weights and a constant, as `torch.export.save` writes it."""
    path = tmp_path_factory.mktemp("saved") / "net.pt2"
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Net().eval(), (torch.ones(4, 6),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return path


def rewritten(saved: Path, path: Path, change: Callable[[str, bytes], bytes], **more: bytes) -> Path:
    """The archive with changed members, and with others by their name in it."""
    others = {f"net/{name}": content for name, content in more.items()}
    with zipfile.ZipFile(saved) as before, zipfile.ZipFile(path, "w") as after:
        for name in before.namelist():
            if name in others:
                continue
            content = change(name, before.read(name))
            # PyTorch maps raw tensors: it wants them aligned, which a filled name gives.
            info = zipfile.ZipInfo(name)
            space = -(after.fp.tell() + 30 + len(name) + 4) % 64  # type: ignore[union-attr]
            info.extra = b"FB" + space.to_bytes(2, "little") + b"Z" * space
            after.writestr(info, content)
        for name, content in others.items():
            after.writestr(name, content)
    return path


def evil_pickle(mark: Path) -> bytes:
    return torch_saved(((Evil(mark),), {}))


def test_what_pytorch_saves_needs_no_trust(saved: Path, traced: Path) -> None:
    check_program(saved)
    assert load(saved)(torch.randn(5, 6)).shape == (5, 3)
    assert load(traced)(torch.ones(4, 50)).shape == (4, 30)


def config(kind: str, **entry: object) -> Callable[[str, bytes], bytes]:
    """A change that adds an entry to a configuration."""

    def change(name: str, old: bytes) -> bytes:
        if not name.endswith(f"{kind}_config.json"):
            return old
        value = json.loads(old)
        value["config"]["more"] = {"is_param": False, "tensor_meta": None, **entry}
        return json.dumps(value).encode()

    return change


def unchanged(_: str, old: bytes) -> bytes:
    return old


PICKLE = r"holds a pickle with \w+\.mkdir, which runs code"


@pytest.mark.parametrize(
    ("change", "name", "content", "words"),
    [
        (unchanged, TORCH_SAVED, evil_pickle, PICKLE),
        (unchanged, "data/weights/model.pt", evil_pickle, PICKLE),
        (unchanged, "data/constants/model.pt", evil_pickle, PICKLE),
        (config("weights", path_name="weight_9", use_pickle=True), "data/weights/weight_9", evil_pickle,
         PICKLE),
        (config("constants", path_name="opaque_obj_0", use_pickle=True), "data/constants/opaque_obj_0",
         lambda mark: pickle.dumps(Evil(mark)), "a pickled object"),
        (unchanged, "data/aotinductor/model/model.so", lambda _: b"\x7fELF", "native code"),
    ],
)  # fmt: skip
def test_what_would_run_is_refused_and_has_not_run(
    change: Callable[[str, bytes], bytes], name: str, content: Callable[[Path], bytes], words: str,
    saved: Path, tmp_path: Path,
) -> None:  # fmt: skip
    mark = tmp_path / "ran"
    path = rewritten(saved, tmp_path / "bad.pt2", change, **{name: content(mark)})
    with pytest.raises(ModelError, match=words) as refused:
        load(path)
    assert name in refused.value.message
    assert "`trust`" in refused.value.hint
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
        text = archive.read("net/models/model.json").decode()
    symbol = before.replace("s77", text.split("Symbol('")[1].split("'")[0])
    assert symbol in text
    changed = text.replace(symbol, after.replace("MARK", str(mark))).encode()
    path = rewritten(saved, tmp_path / "bad.pt2", unchanged, **{"models/model.json": changed})
    with pytest.raises(ModelError, match=said):
        load(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["serialized_state_dict.pt", "serialized_constants.json", "serialized_example_inputs.pt"]
)
def test_the_older_format_is_looked_into_too(name: str, tmp_path: Path) -> None:
    path, mark = tmp_path / "old.pt2", tmp_path / "ran"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version", "8.1")
        archive.writestr("serialized_exported_program.json", "{}")
        archive.writestr(name, evil_pickle(mark))
    with pytest.raises(ModelError, match=f"{name}.*mkdir"):
        load(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "damaged",
    [
        lambda _: b"",
        lambda _: b"no zip",
        lambda _: b"PK\x03\x04 cut off",
        lambda content: content[:-30],
        lambda content: content[: len(content) // 20],
        lambda content: content[: len(content) // 2],
        lambda content: content[: content.rindex(b"PK\x01\x02")] + b"x" * 80,
    ],
)
def test_archives_without_their_directory_are_refused(
    damaged: Callable[[bytes], bytes], saved: Path, traced: Path, tmp_path: Path
) -> None:
    for whole, message in (
        (saved, "not a program saved by"),
        (traced, "its directory is damaged|never unpickled"),
    ):
        path = tmp_path / f"bad{whole.suffix}"
        path.write_bytes(damaged(whole.read_bytes()))
        with pytest.raises(ModelError, match=rf"bad\{path.suffix}: .*({message})"):
            load(path)


def test_the_second_lock_is_put_back(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, other = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(other, "1")
    with program_checked(saved):
        assert os.environ[name] == "1"
        assert other not in os.environ
    assert name not in os.environ
    assert os.environ[other] == "1"


@pytest.fixture
def evil(saved: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A program with a pickle of example inputs that makes a folder, and that folder."""
    mark = tmp_path / "ran"
    return rewritten(saved, tmp_path / "bad.pt2", unchanged, **{TORCH_SAVED: evil_pickle(mark)}), mark


def test_with_trust_it_is_loaded_as_asked(evil: tuple[Path, Path]) -> None:
    path, mark = evil
    with trusting():
        assert load(path)(torch.ones(2, 6)).shape == (2, 3)
    assert mark.is_dir()
    with pytest.raises(ModelError, match="which runs code"):
        load(path)


def test_every_verb_that_takes_a_model_refuses_it(evil: tuple[Path, Path], tmp_path: Path) -> None:
    path, mark = str(evil[0]), evil[1]
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
