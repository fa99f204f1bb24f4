"""Files of weights for functions and named models: strict, and without unpickling."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from qcompile.errors import ModelError
from qcompile.model.pytorch import load_torch
from qcompile.model.source import parse_source
from qcompile.model.weights import load_weights, read_weights

NET = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
"""


def trained() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return dict(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).state_dict())


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth", "w.ckpt", "parallel.pth"])
def test_a_function_takes_a_file_of_weights(name: str, tmp_path: Path) -> None:
    values, path = trained(), tmp_path / name
    (tmp_path / "net.py").write_text(NET)
    if name.endswith(".safetensors"):
        save_file(values, path)
    elif name.endswith(".ckpt"):
        torch.save({"epoch": 3, "state_dict": values}, path)
    else:
        beginning = "module." if name.startswith("parallel") else ""
        torch.save({beginning + key: value for key, value in values.items()}, path)
    loaded = load_torch(parse_source(f"net.py:build?weights={name}", base=tmp_path))
    assert all(torch.equal(value, values[key]) for key, value in loaded.module.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.bias": None}, "missing: 0.bias"),
        ({"head.weight": torch.ones(1)}, "unexpected: head.weight"),
        ({"1.weight": torch.ones(5, 3)}, "of another shape: 1.weight (5x3 in place of 1x3)"),
        ({f"x{i}": torch.ones(1) for i in range(5)}, "unexpected: x0, x1, x2 and 2 more"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = {key: value for key, value in {**trained(), **change}.items() if value is not None}
    torch.save(values, tmp_path / "w.pth")
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    with pytest.raises(ModelError, match=re.escape(message)):
        load_weights(module, tmp_path / "w.pth", "net")


def test_tied_weights_may_be_stored_once(tmp_path: Path) -> None:
    module = nn.ModuleDict({"table": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    module["head"].weight = module["table"].weight
    table = torch.arange(12.0).reshape(4, 3)
    save_file({"table.weight": table}, tmp_path / "w.safetensors")
    load_weights(module, tmp_path / "w.safetensors", "net")
    assert torch.equal(module["head"].weight, table)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    torch.save({"0.weight": Trap(tmp_path / "sprung")}, tmp_path / "w.pth")
    with pytest.raises(ModelError, match="without unpickling code"):
        read_weights(tmp_path / "w.pth")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"no file of weights", b"\x80\x02N."])
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_a_damaged_file_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=name):
        read_weights(tmp_path / name)


def test_values_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    torch.save({"0.weight": 3}, tmp_path / "w.pth")
    with pytest.raises(ModelError, match=r"'0\.weight' is int; a state dict"):
        read_weights(tmp_path / "w.pth")
