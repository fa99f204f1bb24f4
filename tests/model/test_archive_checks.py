"""Damaged archives of PyTorch and Keras are refused before their packages read them."""

from __future__ import annotations

import contextlib
import struct
import zipfile
from pathlib import Path

import pytest
import torch

import qcompile
from qcompile.errors import ModelError
from qcompile.model import archive_checks
from qcompile.model.archive_checks import check_archive
from qcompile.model.pytorch import load_torch
from qcompile.model.source import parse_source
from qcompile.model.weights import read_weights
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


def _changed(source: Path, path: Path, place: int, value: bytes | None = None) -> Path:
    content = bytearray(source.read_bytes())
    content[place : place + 1] = value if value is not None else bytes([content[place] ^ 0x40])
    path.write_bytes(content)
    return path


def test_a_whole_archive_is_loaded(traced: Path) -> None:
    assert load_torch(parse_source(str(traced))).module(torch.ones(2, 50)).shape == (2, 30)


def test_a_torchscript_archive_with_one_byte_of_a_weight_changed_is_refused(
    traced: Path, tmp_path: Path
) -> None:
    path = _changed(traced, tmp_path / "net.pt", _weight_at(traced) + 1001)
    with quiet():
        torch.jit.load(str(path))  # PyTorch itself takes it
    with pytest.raises(
        ModelError, match=r"net\.pt: not a TorchScript archive .* is damaged \(Bad CRC-32"
    ) as caught:
        load_torch(parse_source(str(path)))
    assert "copy it again" in caught.value.hint
    assert "data/0" in str(caught.value.data["member"])


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.99])
def test_an_archive_without_its_directory_is_refused(traced: Path, tmp_path: Path, kept: float) -> None:
    path = tmp_path / "net.pt"
    content = traced.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ModelError, match="its directory is damaged"):
        load_torch(parse_source(str(path)))


def test_no_byte_of_the_directory_makes_another_exception(traced: Path, tmp_path: Path) -> None:
    content = traced.read_bytes()
    start = content.index(b"PK\x01\x02")
    for place in range(start, len(content), 7):
        path = _changed(traced, tmp_path / "net.pt", place)
        with contextlib.suppress(ModelError):  # a change of a date or a flag does no harm
            check_archive(path, what="a TorchScript archive", hint="copy it again")


def test_a_program_and_a_state_dict_with_a_changed_byte_are_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(50, 30).state_dict(), tmp_path / "whole.pt")
    assert set(read_weights(tmp_path / "whole.pt")) == {"weight", "bias"}
    path = _changed(tmp_path / "whole.pt", tmp_path / "w.pt", _weight_at(tmp_path / "whole.pt") + 100)
    with pytest.raises(ModelError, match=r"w\.pt: not a state dict .* is damaged"):
        read_weights(path)
    program = torch.export.export(torch.nn.Linear(50, 30), (torch.ones(2, 50),))
    torch.export.save(program, tmp_path / "whole.pt2")
    path = _changed(tmp_path / "whole.pt2", tmp_path / "p.pt2", _weight_at(tmp_path / "whole.pt2") + 1000)
    with pytest.raises(ModelError, match=r"p\.pt2: not a program saved by torch\.export\.save .* is damaged"):
        load_torch(parse_source(str(path)))


def test_a_keras_file_with_a_changed_byte_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "whole.keras", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", TEN * 100)
    path = _changed(tmp_path / "whole.keras", tmp_path / "m.keras", _weight_at(tmp_path / "whole.keras") + 5)
    with pytest.raises(ModelError, match=r"m\.keras: not a Keras file .* member 'model\.weights\.h5'"):
        qcompile.export(str(path), tmp_path / "m.onnx")


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../b", "..\\evil"])
def test_members_outside_of_the_archive_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, TEN)
    with pytest.raises(ModelError, match="lies outside of the archive"):
        check_archive(path, what="a state dict", hint="no")


def test_a_member_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with quiet(), zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", TEN)
        archive.writestr("a", TEN)
    with pytest.raises(ModelError, match="'a' more than once"):
        check_archive(path, what="a state dict", hint="no")


def test_an_archive_that_unpacks_to_much_more_than_itself_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_checks, "FREE_BYTES", 1 << 20)
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(8 << 20))
    with pytest.raises(ModelError, match=r"bomb\.pt: its \d+ bytes unpack to 8388608; at most 100 times"):
        check_archive(path, what="a state dict", hint="no")
