"""Models that are quantized in every mode, and what numpy says they compute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from written_models import computed, text_model

import qcompile
from qcompile.compiler.quantize.quantize import quantize
from qcompile.core.artifact import Artifact
from qcompile.model.graph.onnx_file import save_onnx

Floats = NDArray[np.float32]
WIDTH = 64

LAYERS = """(float[n,64] x) => (float[n,10] y) {
    [layer_0] a = MatMul(x, w1) b = Relu(a)
    [layer0] c = MatMul(b, w2) [tanh] d = Tanh(c)
    [MatMul] e = MatMul(d, w3) f = Relu(e)
    [head] y = Gemm <transB = 1> (f, w4, b4) }"""
PRODUCTS = ("layer[0]", "layer0", "MatMul", "head")


def normal(*shape: int, seed: int = 0, scale: float = 0.2) -> Floats:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float32)


def written(path: Path, body: str, *, opset: int = 17, **weights: NDArray[Any]) -> Path:
    """Write a model in ONNX's text form."""
    model = text_model(body, opset=opset, **weights)
    for node in model.graph.node:
        node.name = node.name.replace("layer_0", "layer[0]")  # as a glob this means layer0
    onnx.checker.check_model(model, full_check=True)
    save_onnx(model, path)
    return path


def run(model: Path | onnx.ModelProto, *, optimize: bool = True, **feeds: NDArray[Any]) -> Floats:
    """The first output; Q/DQ of weights alone is not fused to products of int8 activations."""
    found = computed(model, feeds, optimize=optimize, session__qdq_matmulnbits_accuracy_level="1")
    return next(iter(found.values()))


def snr_db(expected: Floats, found: Floats) -> float:
    error = np.square(expected.astype(np.float64) - found).sum()
    return float(10 * np.log10(np.square(expected.astype(np.float64)).sum() / max(error, 1e-30)))


def forward(weights: Mapping[str, Floats], x: Floats) -> Floats:
    """LAYERS in numpy; w4 is [N, K]."""
    hidden = np.tanh(np.maximum(x @ weights["w1"], 0) @ weights["w2"])
    result: Floats = np.maximum(hidden @ weights["w3"], 0) @ weights["w4"].T + normal(10)
    return result


def static(model: Path, tmp_path: Path, name: str = "q", method: str = "minmax", **options: Any) -> Artifact:
    """Quantize with ranges of `x.npz`."""
    target, data = options.get("target", "onnxruntime"), str(tmp_path / "x.npz")
    ranges = qcompile.calibrate(model, data, tmp_path / f"{name}.ranges", targets=[target], method=method)
    return quantize(model, tmp_path / f"{name}.onnx", ranges=ranges.path, data=data, **options)
