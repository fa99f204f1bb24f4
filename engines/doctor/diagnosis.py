"""All that `doctor` finds, in one value."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distributions, requires, version

from ...errors import QCompileError
from ...model.named.torchvision_import import mismatch
from ...model.tensorflow import ANOTHER, INSTALL, tensorflow_python, tensorflow_versions
from ..registry import engine, names
from .extras import ExtraState, extra_states
from .gpu_types import GpuTypes, gpu_types
from .gpus import GpuState, gpus_here
from .int8 import Int8Gain, int8_gain
from .machine import Machine, this_machine
from .precisions import Installed, PrecisionState, precision_states
from .problems import Problem, find_problems

_PACKAGES = (
    "torch",
    "onnx",
    "onnxruntime",
    "openvino",
    "onnxscript",
    "onnxsim",
    "numpy",
    "numba",
    "polygraphy",
    "safetensors",
    "tensorrt",
    "tensorrt-rtx",
    "cuda-bindings",
)


@dataclass(frozen=True)
class TargetState:
    """Whether a target builds here, runs here, and runs on a GPU here; reasons are empty when it does."""

    target: str
    why_not_build: str
    why_not_run: str
    why_not_run_on_gpu: str
    fix: str


@dataclass(frozen=True)
class TensorFlowState:
    """The interpreter that converts TensorFlow models.

    Attributes:
        python: Its path.
        versions: Package to version there.
        problem: Why it cannot; empty where it can.
        fix: What to type.
    """

    python: str
    versions: dict[str, str]
    problem: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found.

    Attributes:
        python, system, processor: Of this process and this machine.
        packages: Package to version.
        targets: State of every target.
        problems: Known defects of the installation.
        machine: Instruction sets, cores, memory, disk.
        gpus: GPUs of this machine.
        asked: Compute capabilities that were asked for, and need not be here.
        precisions: Every target's precisions, on this processor and those GPUs.
        int8: What INT8 gains and costs on this processor.
        extras: State of every extra.
        tensorflow: The interpreter that converts TensorFlow models.
    """

    python: str
    system: str
    processor: str
    packages: dict[str, str]
    targets: list[TargetState]
    problems: list[Problem]
    machine: Machine
    gpus: list[GpuState]
    asked: list[GpuTypes]
    precisions: list[PrecisionState]
    int8: Int8Gain
    extras: list[ExtraState]
    tensorflow: TensorFlowState

    def as_json(self) -> dict[str, object]:
        """Return the `--json` form."""
        return asdict(self) | {
            "gpus": [gpu.as_json() for gpu in self.gpus],
            "asked": [gpu.as_json() for gpu in self.asked],
            "int8": {**asdict(self.int8), "sentence": self.int8.sentence},
        }


def doctor(*, gpus: Sequence[str] = (), python: Sequence[str] = ()) -> Diagnosis:
    """Look at this installation; imports the runtimes, prints nothing.

    Args:
        gpus: Compute capabilities to answer for, such as "sm86", in place of this machine's.
        python: `tensorflow=INTERPRETER` to look at.

    Returns:
        What works here, why the rest does not, and the fix.

    Raises:
        InvalidOption: If one is no compute capability, or the interpreter is spelled otherwise.
    """
    asked = [gpu_types(one) for one in gpus]
    targets, machine, here = [_state(name) for name in names()], this_machine(), gpus_here()
    installed = {
        one.target: Installed(one.why_not_build, one.why_not_run, one.fix)
        for one in targets
        if one.target != "pytorch"  # a baseline, which is not built
    }
    distinct = list(dict.fromkeys(gpu.types for gpu in here))
    return Diagnosis(
        python=platform.python_version(),
        system=platform.platform(),
        processor=machine.processor,
        packages={name: found for name in _PACKAGES if (found := _version(name))},
        targets=targets,
        problems=find_problems({name.lower() for name in _installed()}, _version),
        machine=machine,
        gpus=here,
        asked=asked,
        precisions=precision_states(installed, machine, asked or distinct, here=not asked),
        int8=int8_gain(machine),
        extras=extra_states(_version, _requirements, torchvision=_torchvision()),
        tensorflow=tensorflow_state(python),
    )


def tensorflow_state(texts: Sequence[str]) -> TensorFlowState:
    """Ask the interpreter that would convert TensorFlow models; TensorFlow is not imported."""
    python = tensorflow_python(texts)
    try:
        versions = tensorflow_versions(python)
    except QCompileError as error:
        return TensorFlowState(python, {}, error.message.splitlines()[0], error.hint)
    if missing := " and ".join(name for name in ("tensorflow", "tf2onnx") if name not in versions):
        fix = f"{INSTALL}, or in another environment: {ANOTHER}"
        return TensorFlowState(python, versions, f"{missing} cannot be imported", fix)
    return TensorFlowState(python, versions)


def _state(name: str) -> TargetState:
    one = engine(name)
    return TargetState(name, one.why_not_build(), one.why_not_run(), one.why_not_run_on_gpu(), one.fix())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _torchvision() -> str:
    """Why torchvision's compiled operators do not load; empty where they do, or it is missing."""
    return mismatch() if _version("torch") and _version("torchvision") else ""


def _requirements(package: str) -> list[str]:
    try:
        return requires(package) or []
    except PackageNotFoundError:
        return []


def _installed() -> list[str]:
    return [str(item.metadata["Name"]) for item in distributions() if item.metadata["Name"]]
