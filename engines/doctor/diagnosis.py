"""All that `doctor` finds, in one value; the extras: complete, incomplete, or of packages that do not fit."""

from __future__ import annotations

import functools
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, requires

from ...artifact import tool_versions
from ...errors import QCompileError
from ...machine_memory import machine_bytes
from ...model.session import usable_cores
from ...model.tensorflow import ANOTHER, INSTALL, tensorflow_python, tensorflow_versions
from ...processor import is_arm, isa_here, processor
from ...spec.words import CPU_TARGETS, TENSORRT_TARGETS
from ..gpu import Gpu, find_gpus
from ..onnx_runtime.words import PACKAGES as ONNX_RUNTIMES
from ..registry import engine, names, packages_of
from .precisions import GpuTypes, PrecisionState, TargetState, gpu_types, precision_states


@functools.cache
def extras() -> Mapping[str, tuple[str, ...]]:
    """Return extra of setup.cfg to its packages, by the names of their distributions."""

    def of_engines(targets: Iterable[str]) -> dict[str, tuple[str, ...]]:
        runtimes = [engine(name) for name in targets]
        return {one.extra: tuple(one.packages) for one in runtimes if one.extra}

    return {
        "torch": ("torch", "onnxscript"),
        **of_engines(CPU_TARGETS),
        "cpu": ("onnxruntime", "onnxsim", "polygraphy", "nvidia-ml-py", "numba"),
        "cluster": ("distributed",),
        **of_engines(TENSORRT_TARGETS[::-1]),
        "cuda": ("cuda-bindings",),
        "models": ("torch", "onnxscript", "pillow", "timm", "torchvision", "transformers"),
        "data": ("datasets", "pillow", "scipy", "soundfile", "transformers"),
        "metrics": ("jiwer", "pycocotools", "scikit-learn", "seqeval"),
        "qat": ("torch", "onnxscript", "torchao"),
        "report": ("jinja2",),
        "triton": ("tritonclient",),
        "tensorflow": ("tensorflow", "tf2onnx"),
    }


_INSTEAD = {
    "tensorflow": ("tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
    "onnxruntime": tuple(ONNX_RUNTIMES)[1:],
}
"""Distributions that serve as well."""
_ONE_BUILD = "install torch and torchvision of one build together: https://pytorch.org/get-started"
_PAIRS = ("torchvision", "torchao", "tensorflow", "tensorflow-cpu", "tf2onnx", "transformers")
"""Packages whose requirements decide whether they can be imported beside the others."""

Versions = Callable[[str], str]  # of a distribution; empty where it is not installed
Requirements = Callable[[str], Sequence[str] | None]  # of an installed distribution


def installed_version(package: str) -> str:
    """Return the version of an installed distribution; empty where it is not installed."""
    return tool_versions(package).get(package, "")


@dataclass(frozen=True)
class ExtraState:
    """An extra: "installed", "missing", "incomplete", or "broken" where its packages do not
    fit together; what is missing or does not fit, and what to type."""

    extra: str
    state: str
    missing: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""


def extra_states(version_of: Versions = installed_version, asks: Requirements = requires) -> list[ExtraState]:
    """Return the state of every extra."""
    states = []
    for extra, packages in extras().items():
        present = {name: next(filter(version_of, (name, *_INSTEAD.get(name, ()))), "") for name in packages}
        missing = tuple(name for name, distribution in present.items() if not distribution)
        install = f"pip install 'qcompile[{extra}]'"
        pairs = [distribution for distribution in present.values() if distribution in _PAIRS]
        problem = next(filter(None, (clash(pair, version_of, asks) for pair in pairs)), "")
        if problem:
            apart = f"{install}, in an environment of its own if other packages need these versions"
            fix = _ONE_BUILD if problem.startswith("torchvision") else apart
            states.append(ExtraState(extra, "broken", missing, problem, fix))
        elif missing:
            state = "missing" if len(missing) == len(packages) else "incomplete"
            states.append(ExtraState(extra, state, missing, fix=install))
        else:
            states.append(ExtraState(extra, "installed"))
    return states


def clash(name: str, version_of: Versions, asks: Requirements) -> str:
    """Return which requirement of a distribution the installed versions do not meet; empty where they do."""
    from packaging.requirements import Requirement

    for text in (asks(name) or ()) if version_of(name) else ():
        required = Requirement(text)
        if required.marker is not None and not required.marker.evaluate({"extra": ""}):
            continue
        present = version_of(required.name)
        if present and not required.specifier.contains(present, prereleases=True):
            asked = f"{required.name}{required.specifier}"
            return f"{name} {version_of(name)} is built for {asked}; {present} is installed"
    return ""


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
