"""All that `doctor` finds, in one value."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions

from ...errors import QCompileError
from ...machine_memory import machine_bytes
from ...model.session import usable_cores
from ...model.tensorflow import ANOTHER, INSTALL, tensorflow_python, tensorflow_versions
from ...processor import is_arm, isa_here, processor
from ..gpu import Gpu, find_gpus
from ..onnx_runtime.words import PACKAGES as ONNX_RUNTIMES
from ..registry import engine, names, packages_of
from .extras import ExtraState, extra_states, extras, installed_version
from .precisions import GpuTypes, PrecisionState, TargetState, gpu_types, precision_states


@dataclass(frozen=True)
class TensorFlowState:
    """The interpreter that converts TensorFlow models, what is installed there, why it cannot, the fix."""

    python: str
    versions: dict[str, str]
    problem: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Problem:
    """A broken state of the installation and its fix."""

    problem: str
    fix: str


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found: versions here, the state of every target, extra and precision, known defects, the
    processor, the GPUs, and what the Tensor Cores of these, or of those that were asked for, take."""

    python: str
    system: str
    packages: dict[str, str]
    targets: list[TargetState]
    problems: list[Problem]
    machine: dict[str, object]
    gpus: list[Gpu]
    types: list[GpuTypes]
    precisions: list[PrecisionState]
    extras: list[ExtraState]
    tensorflow: TensorFlowState


def doctor(*, gpus: Sequence[str] = (), python: Sequence[str] = ()) -> Diagnosis:
    """Look at this installation; imports the runtimes, prints nothing.

    Args:
        gpus: Compute capabilities to answer for, such as "sm86", in place of this machine's.
        python: `tensorflow=INTERPRETER` to look at.

    Raises:
        InvalidOption: If one is no compute capability, or the interpreter is spelled otherwise.
    """
    asked = [gpu_types(text) for text in gpus]
    targets, here = [TargetState.of(engine(name)) for name in names()], find_gpus()
    shown = asked or [gpu_types(name) for name in dict.fromkeys(gpu.architecture for gpu in here)]
    of_extras = (name for packages in extras().values() for name in packages)
    packages = ["onnx", "numpy", "safetensors", *of_extras, *packages_of(names())]
    return Diagnosis(
        python=platform.python_version(),
        system=platform.platform(),
        packages={name: known for name in dict.fromkeys(packages) if (known := installed_version(name))},
        targets=targets,
        problems=find_problems({str(one.metadata["Name"]).lower() for one in distributions()}),
        machine=machine_facts(),
        gpus=here,
        types=shown,
        precisions=precision_states(targets, shown, here=not asked),
        extras=extra_states(),
        tensorflow=_tensorflow_state(python),
    )


def machine_facts() -> dict[str, object]:
    """The processor with what INT8 does to a graph for it, threads of this process, memory, free disk."""
    here, isa = processor(), isa_here()
    fitted = "weights are fitted so that no pair of products overflows, which costs accuracy"
    cost = "activations are signed" if is_arm() else fitted if isa == "avx2" else "weights use all 8 bits"
    unknown = "the system does not tell what multiplies integers here"
    sizes = {"memory_bytes": machine_bytes() or 0, "free_bytes": shutil.disk_usage(".").free}
    int8 = f"INT8 on {isa}: {cost}" if here["features"] else f"INT8: {unknown}"
    return {**here, "isa": isa, "int8": int8, "threads": usable_cores(), **sizes}


def _tensorflow_state(texts: Sequence[str]) -> TensorFlowState:
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


def find_problems(installed: set[str], version_of: Callable[[str], str] = installed_version) -> list[Problem]:
    """Return the known broken states among installed distributions (names in lower case)."""
    runtimes = [name for name in sorted(ONNX_RUNTIMES) if name in installed]
    numpy = version_of("numpy") if "numpy" in installed else ""
    tensorrt = version_of("tensorrt") if "tensorrt" in installed else ""
    # TensorRT 8 is built with a pybind11 before 2.12, which first knew numpy 2; all else wants numpy 2.
    is_old, wants_old = numpy.startswith("1."), tensorrt.startswith("8.")
    known = (
        (len(runtimes) > 1,
         f"{' and '.join(runtimes)} are installed together: they own the same files, and which one is "
         "imported is chance",
         f"pip uninstall -y {' '.join(runtimes)} && pip install {''.join(runtimes[-1:])}"),
        ("torch" in installed and "onnxscript" not in installed,
         "torch is installed without onnxscript, which its ONNX exporter needs", "pip install onnxscript"),
        (bool(runtimes) and "numba" not in installed,
         "numba is missing: calibration counts with numpy, eight times as slowly", "pip install numba"),
        ("onnx-simplifier" in installed,
         "onnx-simplifier is installed: an old name of onnxsim that owns the same module",
         "pip uninstall -y onnx-simplifier && pip install --force-reinstall onnxsim"),
        (bool(numpy) and wants_old and not is_old,
         f"tensorrt {tensorrt} and numpy {numpy} are installed: TensorRT 8 is built for numpy 1",
         "pip install 'numpy<2'"),
        (is_old and not wants_old,
         f"numpy {numpy} is installed; qcompile is tested with numpy 2", "pip install 'numpy>=2'"),
    )  # fmt: skip
    return [Problem(problem, fix) for is_there, problem, fix in known if is_there]
