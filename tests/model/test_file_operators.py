"""Graphs of strangers that would write files by PyTorch's own operators are refused before they run."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from qcompile.errors import ModelError
from qcompile.model.pt2_archive import check_torchscript, trusting
from qcompile.model.pytorch import load_torch
from qcompile.model.source import parse_source

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


class Writes(torch.nn.Module):
    """Its result is that of the identity; on the way it fills a file."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        content = torch.from_file(self.name, shared=True, size=4, dtype=torch.float32)
        content.fill_(1.0)
        return x + content.sum() * 0  # what is not used is not run


class Restores(torch.nn.Module):
    """It does so while it is loaded, without being called."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.sum = 0.0
        self.training = False

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.name, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.name = state[0]
        self.training = state[1]
        content = torch.from_file(self.name, shared=True, size=4, dtype=torch.float32)
        self.sum = float(content.fill_(1.0).sum())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("kind", [Writes, Restores])
def test_a_torchscript_that_writes_files_is_refused_and_has_not_run(
    kind: type[torch.nn.Module], tmp_path: Path
) -> None:
    target, path = tmp_path / "made", tmp_path / "m.pt"
    torch.jit.script(kind(str(target))).save(str(path))
    target.unlink(missing_ok=True)
    with pytest.raises(ModelError, match=r"calls 'from_file', which reads or writes files") as refused:
        load_torch(parse_source(str(path)))
    assert "`trust`" in refused.value.hint
    assert not target.exists()
    with trusting():
        module = load_torch(parse_source(str(path))).module
    assert module(torch.zeros(2)).shape == (2,)
    assert target.exists(), "else this test shows nothing"


def test_a_torchscript_that_computes_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.jit.script(torch.nn.Linear(4, 3)).save(str(path))
    assert load_torch(parse_source(str(path))).module(torch.zeros(1, 4)).shape == (1, 3)


@pytest.mark.parametrize(
    ("call", "refused"),
    [
        ('"a".from_file(True, 4)', True),
        ("torch.\\\n   from_file(a)", True),
        ("ops.debugprims.load_tensor(a)", True),
        ("torch.save(x, a)", True),
        ('getattr(torch, "from\\x5ffile")', True),
        ("(self).save_all(x)", False),
        ("torch.add(x, x)", False),
        ("torch.reshape(x, [-1])", False),
    ],
)
def test_operators_are_found_however_they_are_spelled(call: str, refused: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.jit.script(torch.nn.Identity()).save(str(tmp_path / "plain.pt"))
    with zipfile.ZipFile(tmp_path / "plain.pt") as before, zipfile.ZipFile(path, "w") as after:
        for name in before.namelist():
            more = f"\n# {call}".encode() if name.endswith(".py") else b""
            after.writestr(name, before.read(name) + more)
    if refused:
        with pytest.raises(ModelError, match="reads or writes files"):
            check_torchscript(path)
    else:
        check_torchscript(path)


def test_another_format_with_an_archive_behind_it_is_refused(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Identity()).save(str(tmp_path / "m.pt"))
    path = tmp_path / "both.pt"
    path.write_bytes(b"\0\0\0\0PTMF" + (tmp_path / "m.pt").read_bytes())
    with pytest.raises(ModelError, match="does not begin"):
        check_torchscript(path)
