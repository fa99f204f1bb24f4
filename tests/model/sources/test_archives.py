"""Damaged archives of PyTorch and Keras are refused before their packages read them.

A `.pt2` and a TorchScript archive are refused without trust, and nothing of them has run.
"""

from __future__ import annotations

import contextlib
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hostile_pickle import Evil, torch_saved

import qcompile
from qcompile.cli import main
from qcompile.core.progress import quiet
from qcompile.errors import ModelError
from qcompile.model.sources import archives
from qcompile.model.sources.archives import check_archive, trust_files
from qcompile.model.sources.load import load_torch
from qcompile.model.sources.pytorch import read_weights
from qcompile.model.sources.source import parse_source

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


def test_an_archive_that_unpacks_to_too_much_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE_BYTES", 1 << 20)
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(8 << 20))
    with pytest.raises(ModelError, match=r"m\.pt: .* unpack to 8388608 \(at most 100 times"):
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


@pytest.fixture
def evil(saved: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A program with a pickle of example inputs that makes a folder, and that folder."""
    path, mark = tmp_path / "bad.pt2", tmp_path / "ran"
    with zipfile.ZipFile(saved) as before, zipfile.ZipFile(path, "w") as after:
        for name in before.namelist():
            if name == f"net/{TORCH_SAVED}":
                continue
            # PyTorch maps raw tensors: it wants them aligned, which a filled name gives.
            info = zipfile.ZipInfo(name)
            space = -(after.fp.tell() + 30 + len(name) + 4) % 64  # type: ignore[union-attr]
            info.extra = b"FB" + space.to_bytes(2, "little") + b"Z" * space
            after.writestr(info, before.read(name))
        after.writestr(f"net/{TORCH_SAVED}", torch_saved(((Evil(mark),), {})))
    return path, mark


def test_programs_that_pytorch_itself_saved_need_trust_too(saved: Path, traced: Path) -> None:
    for path in (saved, traced):
        with pytest.raises(ModelError, match="`trust` is required"):
            load(path)
    with trust_files():
        assert load(saved)(torch.randn(5, 6)).shape == (5, 3)
        assert load(traced)(torch.ones(4, 50)).shape == (4, 30)


def test_trust_of_files_is_for_these_files_alone(saved: Path, traced: Path) -> None:
    with trust_files([traced]), trust_files(False), trust_files([]):
        assert load(traced)(torch.ones(4, 50)).shape == (4, 30)
        with pytest.raises(ModelError, match="`trust` is required"):
            load(saved)
        with trust_files([saved]):
            load(traced), load(saved)
    with pytest.raises(ModelError, match="`trust` is required"):
        load(traced)
    with trust_files(), trust_files([traced]):
        load(saved)


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
        with trust_files(), pytest.raises(ModelError, match=rf"bad\{path.suffix}: .*({message})"):
            load(path)


def test_what_would_run_is_refused_and_has_not_run(evil: tuple[Path, Path]) -> None:
    path, mark = evil
    with pytest.raises(ModelError, match="`trust` is required"):
        load(path)
    assert not mark.exists()
    with trust_files():
        assert load(path)(torch.ones(2, 6)).shape == (2, 3)
    assert mark.is_dir(), "else this test shows nothing"


def test_every_verb_that_takes_a_model_refuses_it(
    evil: tuple[Path, Path], traced: Path, tmp_path: Path
) -> None:
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
        ["bench", str(traced), "--baseline", str(traced), "-i", "x:2x50"],
        ["diff", str(traced), str(traced), "-i", "x:2x50"],
        ["run", str(recipe)],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words, "-q"])
        assert ended.value.code == 1, words
        assert not mark.exists(), words
    with pytest.raises(ModelError, match="`trust` is required"):
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
