"""A failed export says which operator, in which module, at which line of the user's own file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qcompile.compiler.export import export
from qcompile.compiler.export.failure import explain_export_failure
from qcompile.errors import ExportError, InvalidOption

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


def test_the_exporters_own_error_is_kept_as_the_cause(source: Path) -> None:
    error = refuse(source, "eigen")
    assert isinstance(error.__cause__, torch.onnx.OnnxExporterError)


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
