"""A failed export says which operator, in which module, at which line of the user's own file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from qcompile.compiler.export import export
from qcompile.compiler.export.write import explain_export_failure
from qcompile.errors import ExportError, InvalidOption, ModelError
from qcompile.model.pytorch import load_torch
from qcompile.model.source import parse_source

SOURCE = """
import torch
from torch import nn

class Eigen(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(x).real  # no ONNX form

class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # depends on data
            return x * 2
        return x - 1

class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.body = nn.Sequential(nn.ReLU(), inner)

    def forward(self, x):
        return self.body(self.head(x))

def eigen():
    return Outer(Eigen())

def branch():
    return Outer(Branch())

class Neither(nn.Module):
    def forward(self, x):
        if x.abs().sum() > 0:
            return torch.linalg.eigvals(x).real
        return x

def neither():
    return Neither()

def either():
    return Branch()
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with models that cannot become ONNX."""
    path = tmp_path / "models.py"
    path.write_text(SOURCE)
    return path


def line_of(comment: str) -> int:
    """The line of SOURCE that ends with a comment."""
    return next(n for n, line in enumerate(SOURCE.splitlines(), 1) if line.endswith(comment))


def refuse(source: Path, function: str) -> ExportError:
    """Export, and return the error."""
    output = source.parent / "out" / "m.onnx"
    with pytest.raises(ExportError) as caught:
        export(f"{source}:{function}", output, inputs=["x:4x4"])
    assert list(output.parent.iterdir()) == []
    return caught.value


def test_an_unsupported_operator_is_named_with_its_module_and_line(source: Path) -> None:
    error = refuse(source, "eigen")
    assert error.data["operator"] == "aten.linalg_eig"
    assert error.data["module"] == "body.1 (Eigen)"
    assert "operator aten.linalg_eig in module body.1 (Eigen) has no ONNX form" in error.message
    assert f"(models.py, line {line_of('# no ONNX form')}, in forward)" in error.message
    assert error.hint


def test_a_branch_on_data_is_named_with_its_line_and_the_way_out(source: Path) -> None:
    error = refuse(source, "branch")
    assert "branches on a value of its input" in error.message
    assert f"(models.py, line {line_of('# depends on data')}, in forward)" in error.message
    assert "torch.where" in error.hint
    assert "`freeze_branches`" in error.hint


def test_a_branch_that_the_user_freezes_is_exported_and_its_place_is_said(
    source: Path, tmp_path: Path
) -> None:
    output = tmp_path / "m.onnx"
    module = load_torch(parse_source(f"{source}:branch")).module
    made = export(module, output, inputs=["x:4x4"], freeze_branches=True)
    assert made.manifest.options["exporter"] == "torchscript"
    place = f"models.py:{line_of('# depends on data')}"
    assert [text for text in made.manifest.warnings if text.startswith("frozen as") and place in text]
    x = np.random.default_rng(3).normal(size=(4, 4)).astype(np.float32)
    (found,) = onnxruntime.InferenceSession(output).run(None, {"x": x})
    with torch.no_grad():
        np.testing.assert_allclose(found, module(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_where_neither_exporter_can_both_reasons_are_said_and_no_graph_is_printed(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError, match=r"branches on a value .*; PyTorch's TorchScript-based exporter: "):
        export(f"{source}:neither", tmp_path / "m.onnx", inputs=["x:4x4"], freeze_branches=True)
    assert "graph" not in capfd.readouterr().out


def test_a_frozen_branch_that_a_sample_does_not_take_is_refused(source: Path, tmp_path: Path) -> None:
    x = np.ones((2, 4, 4), np.float32)
    x[1] = -3.0  # takes the other way: -4 in place of -6
    np.savez(tmp_path / "both.npz", x=x.reshape(8, 4))
    with pytest.raises(ModelError, match=r"output '.*' differs"):
        export(
            f"{source}:either", tmp_path / "m.onnx", inputs=["x:4x4"], freeze_branches=True,
            data=str(tmp_path / "both.npz"),
        )  # fmt: skip
    assert not (tmp_path / "m.onnx").exists()


def test_an_error_of_ours_passes_through_unchanged() -> None:
    error = InvalidOption("as it was")
    assert explain_export_failure(error, "model") is error


def test_an_error_that_nobody_knows_keeps_its_type_and_first_line() -> None:
    try:
        try:
            raise KeyError("deep down")
        except KeyError as deep:
            raise RuntimeError("the outer words") from deep
    except RuntimeError as error:
        explained = explain_export_failure(error, "net.py:build")
    assert explained.message == "net.py:build: the exporter failed with KeyError: 'deep down'"
