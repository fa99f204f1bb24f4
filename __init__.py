"""qcompile: from a trained PyTorch model to measured, verified artifacts.

Every verb of the command line is a function here; importing this module loads nothing heavy.

    import qcompile

    model = qcompile.export("model.py:build", "model.onnx", inputs=["x:1x3x224x224"])
    ranges = qcompile.calibrate("model.onnx", "data.py:calibration", "model.ranges")
    qcompile.quantize("model.onnx", "model.int8.onnx", ranges="model.ranges", target="onnxruntime")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .artifact import Artifact, Manifest, load_artifact
    from .bench import benchmark, diff
    from .calibration import Ranges, calibrate
    from .compiler import export, quantize, simplify
    from .engines import doctor, load
    from .errors import QCompileError
    from .inspection import inspect
    from .intent import build
    from .pipeline import run
    from .recipe import Recipe, read_recipe

_HOME = {
    "Artifact": "artifact",
    "Manifest": "artifact",
    "load_artifact": "artifact",
    "benchmark": "bench",
    "diff": "bench",
    "Ranges": "calibration",
    "calibrate": "calibration",
    "export": "compiler",
    "quantize": "compiler",
    "simplify": "compiler",
    "build": "intent",
    "inspect": "inspection",
    "doctor": "engines",
    "load": "engines",
    "QCompileError": "errors",
    "run": "pipeline",
    "Recipe": "recipe",
    "read_recipe": "recipe",
}

__all__ = [
    "Artifact", "Manifest", "QCompileError", "Ranges", "Recipe", "__version__", "benchmark", "build",
    "calibrate", "diff", "doctor", "export", "inspect", "load", "load_artifact", "quantize", "read_recipe",
    "run", "simplify",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'qcompile' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
