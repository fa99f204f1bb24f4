"""TorchScript archives as MODEL: traced, scripted and frozen, with branches, loops, defaults and dicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torchscript_models import Branching, Convolutions, TwoNamed

from qcompile.compiler.export import export
from qcompile.errors import ModelError
from qcompile.progress import quiet


def save(path: Path, module: Any, make: str, *arguments: torch.Tensor) -> Path:
    """Write an archive as its users do: "trace", "script", or either frozen."""
    module = module.eval()
    with quiet():
        made = (
            torch.jit.trace(module, arguments, strict=False) if "trace" in make else torch.jit.script(module)
        )
        torch.jit.save(torch.jit.freeze(made) if "freeze" in make else made, str(path))
    return path


def run(path: Path, **feeds: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize("make", ["trace", "script", "trace freeze", "script freeze"])
def test_an_archive_becomes_onnx(make: str, tmp_path: Path) -> None:
    module = Convolutions()
    path = save(tmp_path / "m.pt", module, make, torch.zeros(2, 3, 8, 8))
    export(str(path), tmp_path / "m.onnx", inputs=["x:[batch,3,8,8]"])
    x = torch.randn(5, 3, 8, 8)
    [actual] = run(tmp_path / "m.onnx", x=x.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(actual, module.eval()(x).numpy(), atol=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_branches_loops_and_defaults_of_a_script_stay(sign: int, tmp_path: Path) -> None:
    module = Branching()
    path = save(tmp_path / "m.pt", module, "script")
    export(str(path), tmp_path / "m.onnx", inputs=["x:[batch,4]"])
    x = sign * torch.rand(3, 4) + sign
    [actual] = run(tmp_path / "m.onnx", x=x.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(actual, module.eval()(x).numpy(), atol=1e-5)


def test_a_dict_of_outputs_keeps_its_names(tmp_path: Path) -> None:
    ids = torch.ones(2, 5, dtype=torch.int64)
    path = save(tmp_path / "m.pt", TwoNamed(), "trace", ids, ids)
    inputs = ["ids:[batch,length]:int64", "mask:[batch,length]:int64"]
    artifact = export(str(path), tmp_path / "m.onnx", inputs=inputs)
    assert artifact.manifest.io is not None
    assert [str(one) for one in artifact.manifest.io.outputs] == [
        "hidden:[batch,length,4]:float32", "pooled:[batch,4]:float32",
    ]  # fmt: skip


def test_pickled_weights_are_no_archive(tmp_path: Path) -> None:
    torch.save(Convolutions().state_dict(), tmp_path / "m.pt")
    with pytest.raises(ModelError, match="not a TorchScript archive") as caught:
        export(str(tmp_path / "m.pt"), tmp_path / "m.onnx", inputs=["x:[1,3,8,8]"])
    assert "model.py:build" in caught.value.hint
