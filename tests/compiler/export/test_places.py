"""Errors of a model's own code name its file and line: the user's, else that of the model's library."""

from __future__ import annotations

from pathlib import Path

import pytest

from qcompile import export
from qcompile.errors import ModelError

pytest.importorskip("torch")

NET = """import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 4)

    def forward(self, x):
        return self.layer(x)

def net():
    return Net(), (torch.zeros(2, 4),)
"""


def test_a_model_that_raises_on_its_example_names_the_line_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NET)
    with pytest.raises(
        ModelError, match=r"raised RuntimeError .*cannot be multiplied.* \(mine\.py, line 9\)"
    ):
        export(f"{tmp_path}/mine.py:net", tmp_path / "o.onnx")


def test_a_model_of_a_library_names_the_line_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package whose model raises inside of PyTorch."""
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "some_models.py").write_text(NET)
    monkeypatch.syspath_prepend(str(folder))
    (tmp_path / "mine.py").write_text("from some_models import net\n")
    with pytest.raises(ModelError, match=r"cannot be multiplied.* \(some_models\.py, line 9\)"):
        export(f"{tmp_path}/mine.py:net", tmp_path / "o.onnx")
