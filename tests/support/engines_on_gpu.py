"""Engines that tests build on a real GPU, with whichever TensorRT is installed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

import qcompile
from qcompile.engines.tensorrt.runner.runner import TensorRTRunner

BATCHES = {"min_shapes": (1,), "opt_shapes": (4,), "max_shapes": (16,)}


def build(model: onnx.ModelProto, folder: Path, precision: str = "fp32") -> Path:
    """Build for 1 to 16 rows, without cuBLAS and cuDNN on TensorRT 8, which may not be there."""
    import tensorrt

    from qcompile.spec.tensorrt import TensorRTOptions

    folder.mkdir(parents=True, exist_ok=True)
    source, output = folder / "model.onnx", folder / f"{precision}.engine"
    onnx.save(model, source)
    others = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
    shapes: Any = {name: {"x": (rows[0], *others)} for name, rows in BATCHES.items()}
    options = TensorRTOptions(tactic_sources=("none",)) if tensorrt.__version__.startswith("8.") else None
    return qcompile.build(
        source, output, target="tensorrt", precision=precision, tensorrt=options, **shapes
    ).path


def open_runner(path: Path, **options: Any) -> TensorRTRunner:
    """Load an engine."""
    runner = qcompile.load(path, **options)
    assert isinstance(runner, TensorRTRunner)
    return runner


def values(rows: int, *, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Normal feeds of the residual network."""
    return np.random.default_rng([seed, rows]).standard_normal((rows, 4, 8, 8)).astype(np.float32)
