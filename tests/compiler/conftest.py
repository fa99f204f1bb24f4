"""Models with their samples, for every mode of `quantize`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mode_models import LAYERS, WIDTH, Floats, normal, written


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, dict[str, Floats], Path, Floats]:
    """The model with brackets in its names, its weights, a file of samples, and the samples."""
    weights = {
        "w1": normal(WIDTH, WIDTH),
        "w2": normal(WIDTH, 96),
        "w3": normal(96, 80),
        "w4": normal(10, 80),
    }
    mixing = normal(WIDTH, WIDTH, seed=5)  # the inputs are correlated, which GPTQ makes use of
    x = (normal(256, WIDTH, seed=6, scale=1) @ mixing).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    model = written(tmp_path / "m.onnx", LAYERS, **weights, b4=normal(10))
    return model, weights, tmp_path / "x.npz", x


@pytest.fixture
def residual(tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path) -> Path:
    """The tiny residual model, with its samples in `x.npz`."""
    samples("residual", 64).rename(tmp_path / "x.npz")
    return tiny_file("residual")
