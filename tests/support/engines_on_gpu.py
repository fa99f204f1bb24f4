"""Engines that tests build on a real GPU, with whichever TensorRT is installed there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import qcompile
from qcompile.engines.tensorrt.runner.runner import TensorRTRunner

BATCHES = {"min_shapes": (1,), "opt_shapes": (4,), "max_shapes": (16,)}


def build(
    model: onnx.ModelProto,
    folder: Path,
    precision: str = "fp32",
    *,
    shapes: dict[str, dict[str, tuple[int, ...]]] | None = None,
) -> Path:
    """Build for 1 to 16 rows, or `shapes`; without cuBLAS and cuDNN on TensorRT 8, which may not be there."""
    import tensorrt

    from qcompile.spec.tensorrt import TensorRTOptions

    folder.mkdir(parents=True, exist_ok=True)
    source, output = folder / "model.onnx", folder / f"{precision}.engine"
    onnx.save(model, source)
    if shapes is None:
        others = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
        shapes = {name: {"x": (rows[0], *others)} for name, rows in BATCHES.items()}
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


def infer_in_a_fresh_process(path: Path, feeds: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Load an engine and run it in a Python that has built nothing: no plugin is registered there."""
    given, written = folder / "given.npz", folder / "written.npz"
    np.savez(given, **feeds)
    code = (
        "import sys, numpy as np, qcompile\n"
        "with qcompile.load(sys.argv[1]) as runner:\n"
        "    np.savez(sys.argv[3], **runner.infer(dict(np.load(sys.argv[2]))))\n"
    )
    subprocess.run([sys.executable, "-c", code, path, given, written], check=True, timeout=300)
    with np.load(written) as stored:
        return dict(stored)
