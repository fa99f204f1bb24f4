"""Recipes over the tiny residual network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HEAD = """
version = 1
name = "tiny"
[model]
source = "residual.onnx"
{model}
[data]
{data}
"""
DATA = 'calibration = "calibration.npz"\nevaluation = "evaluation.npz"'


@pytest.fixture
def write_recipe(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> Callable[..., Path]:
    """`write_recipe(ARTIFACT, ..., model=LINES, data=LINES)` writes a recipe beside its model and samples."""
    tiny_file("residual")
    samples("residual", 32).rename(tmp_path / "calibration.npz")
    samples("residual", 16, seed=1).rename(tmp_path / "evaluation.npz")

    def write(*tables: str, model: str = "", data: str = DATA) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(HEAD.format(model=model, data=data) + "".join(tables))
        return path

    return write
