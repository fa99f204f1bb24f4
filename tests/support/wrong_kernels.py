"""Let ONNX Runtime compute something else than a graph says, and read what the build found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from qcompile.core.artifact import Artifact
from qcompile.engines.onnx_runtime import engine as ort_engine
from qcompile.engines.values import SUBJECT

Edit = Callable[[onnx.ModelProto], None]


def check_of(built: Artifact) -> Any:
    (check,) = [one for one in built.manifest.checks if one.name == SUBJECT]
    return check


def optimize_wrongly(monkeypatch: pytest.MonkeyPatch, edit: Edit) -> None:
    """Let ONNX Runtime optimize edited graphs."""
    optimize = ort_engine.optimize_file

    def optimize_edited(path: Path, output: Path, *args: Any, **options: Any) -> None:
        model, edited = onnx.load(path), path.with_name("edited.onnx")
        edit(model)
        onnx.save(model, edited)
        optimize(edited, output, *args, **options)

    monkeypatch.setattr(ort_engine, "optimize_file", optimize_edited)
