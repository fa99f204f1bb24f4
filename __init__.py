"""qcompile: from a trained PyTorch model to measured, verified artifacts.

Every verb of the command line is a function here; importing this module loads nothing heavy.

    import qcompile

    model = qcompile.export("model.py:build", "model.onnx", inputs=["x:1x3x224x224"])
    ranges = qcompile.calibrate("model.onnx", "data.py:calibration", "model.ranges")
    qcompile.quantize("model.onnx", "model.int8.onnx", ranges="model.ranges", target="onnxruntime")
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from .spec.engines import switch_off_telemetry
from .version import __version__

switch_off_telemetry()  # before any runtime is imported, also in worker processes

if TYPE_CHECKING:
    from .bench.benchmark import benchmark
    from .bench.diff.diff import diff
    from .bench.gate.gate import gate
    from .bench.report import report
    from .bench.report.inspection import inspect
    from .building.build import build, refit, reproduce
    from .building.deploy import TritonOptions, package_ep_context, package_triton
    from .calibration.ranges import Ranges
    from .calibration.ranges_file import load_ranges
    from .compiler.export import export
    from .compiler.quantize.calibrate import calibrate
    from .compiler.quantize.quantize import quantize
    from .compiler.simplify.simplify import simplify
    from .core.artifact import Artifact, Manifest, load_artifact
    from .core.processes.untrusted import run_untrusted
    from .engines.doctor import doctor
    from .engines.registry import load
    from .errors import QCompileError
    from .pipeline.auto import auto
    from .pipeline.cluster.connection import connect
    from .pipeline.propose.init import init
    from .pipeline.recipe.recipe import Recipe, read_recipe
    from .pipeline.run import run
    from .pipeline.tune.tune import tune

_HOME = {
    "Artifact": "core.artifact", "Manifest": "core.artifact", "load_artifact": "core.artifact",
    "benchmark": "bench.benchmark", "gate": "bench.gate.gate", "diff": "bench.diff.diff",
    "report": "bench.report", "Ranges": "calibration.ranges", "load_ranges": "calibration.ranges_file",
    "calibrate": "compiler.quantize.calibrate",
    "connect": "pipeline.cluster.connection", "export": "compiler.export",
    "quantize": "compiler.quantize.quantize", "simplify": "compiler.simplify.simplify",
    "build": "building.build", "inspect": "bench.report.inspection", "refit": "building.build",
    "reproduce": "building.build",
    "doctor": "engines.doctor", "TritonOptions": "building.deploy", "package_ep_context": "building.deploy",
    "package_triton": "building.deploy", "load": "engines.registry", "QCompileError": "errors",
    "auto": "pipeline.auto", "init": "pipeline.propose.init", "run": "pipeline.run",
    "Recipe": "pipeline.recipe.recipe", "read_recipe": "pipeline.recipe.recipe",
    "run_untrusted": "core.processes.untrusted", "tune": "pipeline.tune.tune",
}  # fmt: skip

__all__ = [
    "Artifact", "Manifest", "QCompileError", "Ranges", "Recipe", "TritonOptions", "__version__", "auto",
    "benchmark", "build", "calibrate", "connect", "diff", "doctor", "export", "gate", "init",
    "inspect", "load", "load_artifact", "load_ranges", "package_ep_context", "package_triton", "quantize",
    "read_recipe", "refit", "report", "reproduce", "run", "run_untrusted", "simplify", "tune",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "qat":
        return import_module(".compiler.quantize.qat.train", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'qcompile' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    if isinstance(value, type):
        return value
    public: Callable[..., object] = import_module(".core.public", __name__).public
    return public(name, value)


def __dir__() -> list[str]:
    return sorted(__all__)
