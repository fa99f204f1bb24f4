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

from .spec.engines import switch_off_telemetry
from .version import __version__

switch_off_telemetry()  # before any runtime is imported, in workers, too

if TYPE_CHECKING:
    from .artifact import Artifact, Manifest, load_artifact
    from .bench.benchmark import benchmark
    from .bench.gate import gate
    from .building import build, refit, reproduce
    from .calibration.ranges import Ranges
    from .cluster.connection import connect
    from .comparison.diff import diff
    from .compiler.export import export
    from .compiler.quantize.calibrate import calibrate
    from .compiler.quantize.quantize import quantize
    from .compiler.simplify.simplify import simplify
    from .deploy import TritonOptions, package_ep_context, package_triton
    from .engines.doctor import doctor
    from .engines.registry import load
    from .errors import QCompileError
    from .pipeline.auto import auto
    from .pipeline.propose.init import init
    from .pipeline.recipe import Recipe, read_recipe
    from .pipeline.run import run
    from .processes.untrusted import run_untrusted
    from .reporting import report
    from .reporting.inspection import inspect
    from .tuning.tune import tune

_HOME = {
    "Artifact": "artifact", "Manifest": "artifact", "load_artifact": "artifact",
    "benchmark": "bench.benchmark", "gate": "bench.gate", "diff": "comparison.diff",
    "report": "reporting", "Ranges": "calibration.ranges", "calibrate": "compiler.quantize.calibrate",
    "connect": "cluster.connection", "export": "compiler.export",
    "quantize": "compiler.quantize.quantize", "simplify": "compiler.simplify.simplify",
    "build": "building", "inspect": "reporting.inspection", "refit": "building", "reproduce": "building",
    "doctor": "engines.doctor", "TritonOptions": "deploy", "package_ep_context": "deploy",
    "package_triton": "deploy", "load": "engines.registry", "QCompileError": "errors",
    "auto": "pipeline.auto", "init": "pipeline.propose.init", "run": "pipeline.run",
    "Recipe": "pipeline.recipe", "read_recipe": "pipeline.recipe",
    "run_untrusted": "processes.untrusted", "tune": "tuning.tune",
}  # fmt: skip

__all__ = [
    "Artifact", "Manifest", "QCompileError", "Ranges", "Recipe", "TritonOptions", "__version__", "auto",
    "benchmark", "build", "calibrate", "connect", "diff", "doctor", "export", "gate", "init",
    "inspect", "load", "load_artifact", "package_ep_context", "package_triton", "quantize",
    "read_recipe", "refit", "report", "reproduce", "run", "run_untrusted", "simplify", "tune",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "qat":
        return import_module(".compiler.quantize.qat.train", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'qcompile' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
