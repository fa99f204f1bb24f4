"""The whole road for one architecture, through the public functions, as a user would go it."""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from architectures import first
from results_table import STAGES

import qcompile
from qcompile.core.progress import quiet
from qcompile.errors import QCompileError

MODELS = Path(__file__).resolve().parent
_LIBRARIES = ("torch", "torch.export", "torch.onnx", "onnx", "onnxscript", "numpy", "sympy")
_RUNTIMES = (
    "onnxruntime", "openvino", "onnxsim", "polygraphy.comparator", "tensorrt_rtx",
    "qcompile.compiler.export", "qcompile.compiler.simplify.simplify", "qcompile.compiler.quantize.quantize",
    "qcompile.building.build", "qcompile.calibration.calibrate", "numba",
    "qcompile.engines.build", "qcompile.engines.openvino",
    "qcompile.bench.diff.diff", "qcompile.core.processes.worker",
)  # fmt: skip
_TRACEBACK_LINES = 14

Report = Callable[[dict[str, Any]], None]


class Differs(QCompileError):
    """The verdict of `diff`, as a failure of the road."""


def preload(*, runtimes: bool = True) -> None:
    """Import once what every architecture needs. No runtime is started: a fork keeps no threads."""
    for name in (*_LIBRARIES, *(_RUNTIMES if runtimes else ())):
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    if runtimes:
        with quiet():  # the exporter reads its tables on its first use
            torch.onnx.export(torch.nn.Linear(2, 2).eval(), (torch.zeros(2, 2),), dynamo=True, verbose=False)


def walk(architecture: Any, folder: Path, report: Report) -> None:
    """Go every stage whose needs were met, and report each."""
    road = Road(architecture, folder)
    passed: set[str] = set()
    for stage, needs in STAGES.items():
        if not set(needs) <= passed:
            report({"stage": stage, "result": "not reached"})
        elif attempt(stage, getattr(road, stage.replace(" ", "_")), report):
            passed.add(stage)


def check_module(architecture: Any, _folder: Path, report: Report) -> None:
    """Make the module, run its example and all its data, and look whether a classifier's output is one."""
    import torch

    def check() -> dict[str, Any]:
        module, example = architecture.build()
        with torch.no_grad():
            output = module(**example)
            for feeds in chain(architecture.samples(), architecture.unseen()):
                module(**architecture.call(feeds))
        result = first(output)
        if architecture.kind == "classifier" and (result.ndim != 2 or result.shape[1] < 2):
            raise ValueError(f"a classifier's output is [batch, classes]; {tuple(result.shape)} found")
        if not result.dtype.is_floating_point or not torch.isfinite(result).all():
            raise ValueError(f"the first output is {result.dtype}, or not finite")
        return {
            "output": list(result.shape),
            "std": float(result.std()),
            "parameters": sum(p.numel() for p in module.parameters()),
        }

    attempt("module", check, report)


def attempt(stage: str, work: Callable[[], dict[str, Any]], report: Report) -> bool:
    """Report the start and the end of a stage, and return whether it passed."""
    report({"stage": stage, "result": "started"})
    start = time.monotonic()
    record: dict[str, Any] = {"stage": stage, "result": "passed"}
    try:
        record["detail"] = work()
    except Exception as error:
        known = isinstance(error, QCompileError)
        record |= {
            "result": "failed",
            "error": type(error).__name__,
            "message": str(error),
            "defect": not known,
            "traceback": _traceback(error),
        }
    record["seconds"] = round(time.monotonic() - start, 2)
    report(record)
    return record["result"] == "passed"


def _traceback(error: BaseException) -> list[str]:
    lines = [line for part in traceback.format_exception(error) for line in part.splitlines()]
    return lines[-_TRACEBACK_LINES:]


class Road:
    """The stages of one architecture; each returns what is worth keeping."""

    def __init__(self, architecture: Any, folder: Path) -> None:
        self.architecture = architecture
        self.model = f"{MODELS}/architectures.py:{architecture.key}"
        self.data = f"{MODELS}/architectures.py:samples_{architecture.key}"
        self.exported, self.float = folder / "exported.onnx", folder / "model.onnx"
        self.ranges, self.int8 = folder / "model.ranges", folder / "model.int8.onnx"
        self.built = folder / "built"
        self.built.mkdir()

    def export(self) -> dict[str, Any]:
        """Export with the dynamic axes, and compare with PyTorch on made input and on the data."""
        made = qcompile.export(self.model, self.exported, dynamic=self.architecture.dynamic(), data=self.data)
        return _kept(made)

    def simplify(self) -> dict[str, Any]:
        """Simplify, checked on the data."""
        return _kept(qcompile.simplify(self.exported, self.float, data=self.data))

    def calibrate(self) -> dict[str, Any]:
        """Observe the samples for every target."""
        return _kept(qcompile.calibrate(self.float, self.data, self.ranges, threads=1))

    def onnxruntime_int8(self) -> dict[str, Any]:
        """Quantize, and build the ONNX Runtime artifact."""
        quantized = qcompile.quantize(self.float, self.int8, ranges=self.ranges, data=self.data)
        made = self._build(self.int8, "cpu.onnx", target="onnxruntime", precision="int8")
        return {**_kept(quantized), "built": _kept(made)}

    def openvino_int8(self) -> dict[str, Any]:
        """Build the OpenVINO artifact from the float model and the ranges."""
        return _kept(
            self._build(self.float, "openvino.onnx", target="openvino", precision="int8", ranges=self.ranges)
        )

    def rtx_fp16(self) -> dict[str, Any]:
        """Build an FP16 engine for sm86."""
        return _kept(self._build(self.float, "fp16.engine", precision="fp16"))

    def rtx_int8(self) -> dict[str, Any]:
        """Build an INT8 engine for sm86."""
        return _kept(self._build(self.float, "int8.engine", precision="int8", ranges=self.ranges))

    def onnxruntime_diff(self) -> dict[str, Any]:
        """Compare the ONNX Runtime artifact with the float model on data that no stage saw."""
        return self._diff("cpu.onnx")

    def openvino_diff(self) -> dict[str, Any]:
        """Compare the OpenVINO artifact, run by OpenVINO, with the float model on the same data."""
        return self._diff("openvino.onnx")

    def _diff(self, name: str) -> dict[str, Any]:
        data = self.data.replace(":samples_", ":unseen_")
        found = qcompile.diff(str(self.float), str(self.built / name), data=data, threads=1)
        outputs = [
            {"output": one.output, "passed": one.passed, "criterion": one.criterion,
             "agreement": one.agreement, "snr_db": round(float(one.snr_db), 2)}
            for one in found.outputs
        ]  # fmt: skip
        if not found:
            failed = [one for one in outputs if not one["passed"]]
            text = "; ".join(
                "{output!r} {snr_db} dB, argmax {agreement} ({criterion})".format(**one) for one in failed
            )
            raise Differs(f"outputs differ: {text}")
        return {"outputs": outputs}

    def _build(self, file: Path, name: str, *, target: str = "tensorrt-rtx", **options: Any) -> Any:
        if target == "tensorrt-rtx":
            options |= {"gpus": ["sm86"], **self.architecture.profile()}
        return qcompile.build(file, self.built / name, target=target, data=self.data, **options)


def _kept(artifact: Any) -> dict[str, Any]:
    """What is worth keeping of a manifest."""
    manifest = artifact.manifest
    proof = {
        name: value
        for name, value in manifest.proof.items()
        if name
        in ("layers_by_precision", "nodes_by_precision", "left_in_float", "snr_db", "operators", "tensors")
    }
    checks = [f"{check.name}: {check.detail}" for check in manifest.checks]
    return {"proof": proof, "checks": checks, "warnings": list(manifest.warnings)}
