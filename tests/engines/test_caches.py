"""A model that returns a cache runs without it wherever PyTorch runs it, as it is exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import qcompile
from qcompile.engines.pytorch import PyTorch
from qcompile.model.sources.load import load_torch
from qcompile.model.sources.source import parse_source

SOURCE = """
import torch
from torch import nn
from types import SimpleNamespace

class Memory:
    pass

class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        logits = self.layer(x)
        return {"logits": logits, "cache": Memory()} if self.config.use_cache else {"logits": logits}

def cached():
    torch.manual_seed(0)
    return Cached(), (torch.ones(2, 4),)

def plain():
    model, example = cached()
    model.config.use_cache = False
    return model, example
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(SOURCE)
    return path


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("mode", ["eager", "trace", "freeze", "half", "autocast"])
def test_a_model_that_returns_a_cache_runs_without_it_as_it_is_exported(source: Path, mode: str) -> None:
    x = normal(2, 4)
    layer = load_torch(parse_source(f"{source}:cached")).module.layer
    with PyTorch().open_in_mode(f"{source}:cached", mode, threads=1) as runner, torch.no_grad():
        first, again = (runner.infer({"x": x}) for _ in range(2))
        assert list(first) == list(again) == ["logits"]
        expected = layer.float()(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(first["logits"], expected, atol=0.02 if mode == "autocast" else 5e-3)
        assert runner.notes == ("the model returns a cache; it is run with use_cache=False",)
    with PyTorch().open(f"{source}:plain", threads=1) as runner:
        runner.infer({"x": x})
        assert runner.notes == ()


def test_what_was_exported_without_a_cache_is_compared_with_its_model(source: Path, tmp_path: Path) -> None:
    spec, x = f"{source}:cached", tmp_path / "x.npz"
    np.savez(x, x=normal(6, 4))
    exported = qcompile.export(spec, tmp_path / "m.onnx", inputs=["x:[batch,4]"])
    traced = qcompile.build(spec, tmp_path / "m.pt", target="torchscript")
    for artifact, verb in ((exported, "exported"), (traced, "traced")):
        assert f"the model returns a cache; it is {verb} with use_cache=False" in artifact.manifest.warnings
    found = qcompile.diff(spec, str(exported.path), data=str(x))
    assert found
    [warning] = found.warnings
    assert warning.endswith(":cached: the model returns a cache; it is run with use_cache=False")
