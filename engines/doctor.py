"""Report which precisions each target (runtime) builds and runs here, and which of them have instructions.

The states follow from the engines' code, instruction sets and NVIDIA's tables, not from measurements;
docs/precision.md explains them. The report also has the pip extras, known defects, and the machine.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, requires
from typing import TYPE_CHECKING

from ..core.installation import (
    Versions,
    extras,
    install_hint,
    installed_as,
    installed_version,
    other_distribution,
    unmet,
)
from ..core.memory import machine_bytes
from ..core.processor import is_arm, isa_here, processor, why_emulated
from ..errors import InvalidOption, QCompileError
from ..model.sessions.session import usable_cores
from ..model.sources.tensorflow import ANOTHER, tensorflow_python, tensorflow_versions
from ..spec.decode import spec_from_call
from ..spec.looking import DoctorCommand
from ..spec.words import CPU_TARGETS, PRECISIONS, TARGETS, TENSORRT_TARGETS, Precision
from .gpu import Gpu, find_gpus
from .onnx_runtime.words import PACKAGES as ONNX_RUNTIMES
from .registry import engine, names, packages_of
from .words import FAST, FOUR_BITS, State, Verdict

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.keywords import DoctorKeywords

_TENSORRT_HINT = (
    "choose `target` tensorrt-rtx or tensorrt: tf32 from sm80, fp8 from sm89, nvfp4 and mxfp8 from sm100 "
    "(TensorRT-RTX: sm120)"
)
_OLDEST_CAPABILITY = 70
_RTX_BUILDS_FOR = (75, 80, 86, 89, 120, 121)
"""Compute capabilities of TensorRT-RTX 1.7, which on sm75 multiplies matrices only in FP16 and INT8."""


@dataclass(frozen=True)
class TargetState:
    """Why a target does not build here, run here, or run on a GPU here (empty if it does), and the fix."""

    target: str
    why_not_build: str = ""
    why_not_run: str = ""
    why_not_run_on_gpu: str = ""
    fix: str = ""


@dataclass(frozen=True)
class PrecisionState:
    """A target's precision on a device ("cpu", "sm86", "gpu" if absent), why it is not fast, and the fix."""

    target: str
    device: str
    precision: str
    state: State
    reason: str = ""
    fix: str = ""


def precision_states(
    targets: Sequence[TargetState], gpus: Sequence[GpuTypes], *, here: bool
) -> list[PrecisionState]:
    """Return the state of each precision: for TensorRT's targets on each GPU, for others on this processor.
    `here` is False if the user named the GPUs, which may then be absent."""
    states = []
    for target in targets:
        for precision in PRECISIONS if target.target in TARGETS else ():  # eager PyTorch builds nothing
            if target.target not in TENSORRT_TARGETS:
                verdicts = {"cpu": _on_cpu(target, precision)}
            else:
                verdicts = {gpu.capability: _on_gpu(target, precision, gpu, here=here) for gpu in gpus}
                verdicts = verdicts or {"gpu": _installed(target)}
            for device, verdict in verdicts.items():
                states.append(PrecisionState(target.target, device, precision, *verdict))
    return states


def _installed(target: TargetState) -> Verdict:
    if target.why_not_build:
        return "no", target.why_not_build, target.fix
    return "builds", target.why_not_run or "no GPU is here", target.fix


def _on_cpu(target: TargetState, precision: Precision) -> Verdict:
    runtime, features = engine(target.target), processor()["features"]
    if runtime.takes == "pytorch" and precision != "fp32":
        return "no", "it builds fp32 only", "choose another `target`"
    if precision not in runtime.precisions:
        return "no", "for NVIDIA's Tensor Cores only", _TENSORRT_HINT
    if target.why_not_build or target.why_not_run:
        return "no", target.why_not_build or target.why_not_run, target.fix
    if verdict := runtime.verdict(precision):
        state, reason, fix = verdict
        return state, reason, fix if fix or state == "runs" else _cpu_hint(precision)
    if precision in ("fp16", "bf16") and (reason := why_emulated(precision)):
        return "emulated", reason, "choose `precision` int8, or fp32"
    if precision == "int8" and features and isa_here() in ("avx2", "neon"):
        reason = f"{isa_here()} has no product of 8 bits: it takes several instructions"
        return "runs", reason, "measure it with `qcompile bench`: fp32 may be faster here"
    return FAST


def _cpu_hint(precision: Precision) -> str:
    """Return the hint to choose INT8, or a target that uses the precision if a processor supports it."""
    runtimes = [runtime for runtime in map(engine, CPU_TARGETS) if precision in runtime.precisions]
    targets = [runtime.name for runtime in runtimes if runtime.verdict(precision) is None]
    instead = f"`target` {' or '.join(targets)} where the processor has it, or " if targets else ""
    return f"choose {instead}`precision` int8"


def _on_gpu(target: TargetState, precision: Precision, gpu: GpuTypes, *, here: bool) -> Verdict:
    rtx = target.target == "tensorrt-rtx"
    if missing_type := gpu.why_not(precision):
        return "no", missing_type, "choose another `precision`, or a newer GPU"
    if rtx and gpu.number not in _RTX_BUILDS_FOR:
        capabilities = ", ".join(f"sm{number}" for number in _RTX_BUILDS_FOR)
        return "no", f"TensorRT-RTX builds for {capabilities}", "choose `target` tensorrt"
    if rtx and gpu.number == _RTX_BUILDS_FOR[0] and precision not in ("fp16", "int8"):
        reason = f"TensorRT-RTX multiplies only matrices of fp16 and int8 on {gpu.capability}"
        return "no", reason, "choose `precision` fp16 or int8, or `target` tensorrt"
    if gpu.number < _OLDEST_CAPABILITY:
        return "no", f"TensorRT 10 begins with sm{_OLDEST_CAPABILITY}", ""
    if target.why_not_build or target.why_not_run:
        return _installed(target)
    if not here:
        return "builds", f"{gpu.capability} was requested; it may be absent", ""
    if rtx and precision == "mxfp8":
        return "runs", "TensorRT-RTX 1.7 multiplies MXFP8 after it is dequantized", ""
    return FOUR_BITS if precision == "int4" else FAST


_AMPERE = ("TF32", "FP16", "BF16", "INT8", "INT4")
_BLACKWELL = ("TF32", "FP16", "BF16", "INT8", "FP8", "FP4")
_ROWS: dict[int, tuple[str, tuple[str, ...]]] = {
    50: ("Maxwell", ()),
    60: ("Pascal", ()),
    70: ("Volta", ("FP16",)),
    72: ("Volta (Xavier)", ("FP16", "INT8")),
    75: ("Turing", ("FP16", "INT8", "INT4")),
    80: ("Ampere", ("FP64", *_AMPERE)),
    86: ("Ampere", _AMPERE),
    87: ("Ampere (Orin)", _AMPERE),
    89: ("Ada Lovelace", (*_AMPERE, "FP8")),
    90: ("Hopper", ("FP64", "TF32", "FP16", "BF16", "INT8", "FP8")),
    100: ("Blackwell", ("FP64", *_BLACKWELL)),
    103: ("Blackwell Ultra", _BLACKWELL),
    110: ("Blackwell (Thor)", _BLACKWELL),
    120: ("Blackwell (RTX)", _BLACKWELL),
    121: ("Blackwell (Spark)", _BLACKWELL),
}
_TENSOR_CORE_TYPES = {"fp32": "", "nvfp4": "FP4", "mxfp8": "FP4"}
"""Tensor Core types of precisions with other names. MXFP8 came with FP4, in compute capability 10.0."""
_INT4_WEIGHTS = 80
"""The TensorRT-RTX Support Matrix lists products of INT4 weights ("WoQ GEMM") from 8.6 on, not on 7.5."""


@dataclass(frozen=True)
class GpuTypes:
    """A compute capability ("sm86"), its architecture, and the types that its Tensor Cores multiply. If the
    tables lack the capability, the types are those of the next lower one, which `note` names."""

    capability: str
    architecture: str
    types: tuple[str, ...]
    note: str = ""

    @property
    def number(self) -> int:
        return int(self.capability.removeprefix("sm"))

    def why_not(self, precision: str) -> str:
        """Return which Tensor Core type the capability lacks for a precision, as text; empty for none."""
        if precision == "int4":
            return "" if self.number >= _INT4_WEIGHTS else f"{self.capability} has no product of INT4 weights"
        needed = _TENSOR_CORE_TYPES.get(precision, precision.upper())
        if not needed or needed in self.types:
            return ""
        first = min((number for number, row in _ROWS.items() if needed in row[1]), default=0)
        return f"the Tensor Cores of {self.capability} take no {needed}, which begins with sm{first}"


def gpu_types(capability: str) -> GpuTypes:
    """Return the types of a compute capability ("sm86", "86" or "8.6"); this machine need not have it."""
    match = re.fullmatch(r"(?:sm_?)?(\d+)\.?(\d)[a-z]?", capability.strip().lower(), re.ASCII)
    number = int(match[1]) * 10 + int(match[2]) if match else 0
    below = [row for row in _ROWS if row <= number]
    if not below or number >= 1000:
        problem = f"`gpus` {capability}: a compute capability from sm50 on is required, such as sm86"
        raise InvalidOption(problem, option="gpus")
    note = "" if below[-1] == number else f"not in the tables: as sm{below[-1]}"
    return GpuTypes(f"sm{number}", *_ROWS[below[-1]], note)


_TORCH_HINT = "install torch and torchvision of one build together: https://pytorch.org/get-started"
_CHECKED_PACKAGES = ("torchvision", "torchao", "tensorflow", "tensorflow-cpu", "tf2onnx", "transformers")
"""Packages that fail to import if installed versions do not meet their requirements."""

Requirements = Callable[[str], Sequence[str] | None]  # maps an installed distribution to its requirements


@dataclass(frozen=True)
class ExtraState:
    """State of a pip extra of qcompile: "installed", "missing", "incomplete", or "broken" by conflicting
    versions; the missing packages, the conflict, and the command that fixes the state."""

    extra: str
    state: str
    missing: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""


def extra_states(version_of: Versions = installed_version, asks: Requirements = requires) -> list[ExtraState]:
    states = []
    for extra, packages in extras().items():
        installed = list(filter(None, (installed_as(package.name, version_of) for package in packages)))
        required = unmet(extra, version_of)
        missing = tuple(package.name for package in required)
        install = install_hint(extra, version_of)
        mismatches = (
            f"{package.name} {version} is installed; {package} is required"
            for package in required
            if (version := version_of(package.name))
        )
        clashes = (clash(name, version_of, asks) for name in installed if name in _CHECKED_PACKAGES)
        problem = next(filter(None, clashes), "") or next(mismatches, "")
        if problem:
            separate_install = (
                f"{install}, in an environment of its own if other packages need these versions"
            )
            fix = _TORCH_HINT if problem.startswith("torchvision") else separate_install
            states.append(ExtraState(extra, "broken", missing, problem, fix))
        elif missing:
            states.append(ExtraState(extra, "incomplete" if installed else "missing", missing, fix=install))
        else:
            states.append(ExtraState(extra, "installed"))
    return states


def clash(name: str, version_of: Versions, asks: Requirements) -> str:
    """Return the first requirement of a distribution that the installed versions violate; empty if none."""
    from packaging.requirements import Requirement

    for text in (asks(name) or ()) if version_of(name) else ():
        required = Requirement(text)
        if required.marker is not None and not required.marker.evaluate({"extra": ""}):
            continue
        present = version_of(required.name)
        if present and not required.specifier.contains(present, prereleases=True):
            requirement = f"{required.name}{required.specifier}"
            return f"{name} {version_of(name)} is built for {requirement}; {present} is installed"
    return ""


@dataclass(frozen=True)
class TensorFlowState:
    """The Python interpreter for TensorFlow models, its packages' versions, its problem, and the fix."""

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
    """Result of `doctor`: installed versions, the state of every target, extra and precision, known defects,
    the processor, the GPUs, and the Tensor Core types of the requested GPUs, else of this machine's."""

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


def doctor(spec: DoctorCommand | None = None, /, **options: Unpack[DoctorKeywords]) -> Diagnosis:
    """Diagnose this installation. Imports the runtimes and prints nothing.

    Args:
        spec: Options.
        options: Fields of `DoctorCommand` by name, in place of those of `spec`.

    Raises:
        InvalidOption: If a value of `gpus` is not a compute capability, or a value of `python` is malformed.
    """
    spec = spec_from_call(DoctorCommand, spec, options)
    named_types = [gpu_types(text) for text in spec.gpus]
    targets = [
        TargetState(
            each.name, each.why_not_build(), each.why_not_run(), each.why_not_run_on_gpu(), each.fix()
        )
        for each in map(engine, names())
    ]
    gpus = find_gpus()
    types = named_types or [gpu_types(name) for name in dict.fromkeys(gpu.architecture for gpu in gpus)]
    extra_packages = (package.name for packages in extras().values() for package in packages)
    packages = ["onnx", "numpy", "safetensors", *extra_packages, *packages_of(names())]
    return Diagnosis(
        python=platform.python_version(),
        system=platform.platform(),
        packages={name: version for name in dict.fromkeys(packages) if (version := installed_version(name))},
        targets=targets,
        problems=find_problems({str(package.metadata["Name"]).lower() for package in distributions()}),
        machine=machine_facts(),
        gpus=gpus,
        types=types,
        precisions=precision_states(targets, types, here=not named_types),
        extras=extra_states(),
        tensorflow=_tensorflow_state(spec.python),
    )


def machine_facts() -> dict[str, object]:
    """Return the processor, how INT8 graphs are fitted to it, usable threads, memory, and free disk."""
    cpu, isa = processor(), isa_here()
    fitted = "weights are fitted so that no pair of products overflows, which costs accuracy"
    cost = "activations are signed" if is_arm() else fitted if isa == "avx2" else "weights use all 8 bits"
    unknown = "the system does not report its instruction sets"
    sizes = {"memory_bytes": machine_bytes() or 0, "free_bytes": shutil.disk_usage(".").free}
    int8 = f"INT8 on {isa}: {cost}" if cpu["features"] else f"INT8: {unknown}"
    return {**cpu, "isa": isa, "int8": int8, "threads": usable_cores(), **sizes}


def _tensorflow_state(texts: Sequence[str]) -> TensorFlowState:
    """Return the state of the interpreter for TensorFlow models; TensorFlow is not imported."""
    python = tensorflow_python(texts)
    try:
        versions = tensorflow_versions(python)
    except QCompileError as error:
        return TensorFlowState(python, {}, error.message.splitlines()[0], error.hint)
    if missing := " and ".join(name for name in ("tensorflow", "tf2onnx") if name not in versions):
        fix = f"{install_hint('tensorflow')}, or in another environment: {ANOTHER}"
        return TensorFlowState(python, versions, f"{missing} cannot be imported", fix)
    return TensorFlowState(python, versions)


def find_problems(installed: set[str], version_of: Callable[[str], str] = installed_version) -> list[Problem]:
    """Return the known defects of a set of installed distributions (names in lower case)."""
    runtimes = [name for name in sorted(ONNX_RUNTIMES) if name in installed]
    numpy = version_of("numpy") if "numpy" in installed else ""
    tensorrt = version_of("tensorrt") if "tensorrt" in installed else ""
    # TensorRT 8 uses a pybind11 without support for numpy 2 (before 2.12); other packages use numpy 2.
    is_old, needs_old = numpy.startswith("1."), tensorrt.startswith("8.")
    other, fix = other_distribution() if "qcompile" in installed else ("", "")
    states = (
        (bool(other), other, fix),
        (len(runtimes) > 1,
         f"{' and '.join(runtimes)} are installed together: they own the same files, and import picks either",
         f"pip uninstall -y {' '.join(runtimes)} && pip install {''.join(runtimes[-1:])}"),
        ("torch" in installed and "onnxscript" not in installed,
         "torch is installed without onnxscript, which its ONNX exporter needs", "pip install onnxscript"),
        (bool(runtimes) and "numba" not in installed,
         "numba is missing: calibration uses numpy, eight times as slow", "pip install numba"),
        ("onnx-simplifier" in installed,
         "onnx-simplifier is installed: an old name of onnxsim that owns the same module",
         "pip uninstall -y onnx-simplifier && pip install --force-reinstall onnxsim"),
        (bool(numpy) and needs_old and not is_old,
         f"tensorrt {tensorrt} and numpy {numpy} are installed: TensorRT 8 is built for numpy 1",
         "pip install 'numpy<2'"),
        (is_old and not needs_old,
         f"numpy {numpy} is installed; qcompile is tested with numpy 2", "pip install 'numpy>=2'"),
    )  # fmt: skip
    return [Problem(problem, fix) for applies, problem, fix in states if applies]
