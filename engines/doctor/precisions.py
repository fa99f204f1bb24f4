"""Which precisions each target builds and runs on this machine, and whether an instruction does it.

| state    | means                                                                             |
|----------|-----------------------------------------------------------------------------------|
| fast     | builds and runs here; the processor or the GPU multiplies in this precision       |
| runs     | builds and runs here; products take several instructions, or fewer bits in memory |
| emulated | would be computed in float32 and rounded: qcompile does not call it reached       |
| builds   | builds here for another machine                                                   |
| no       | neither                                                                           |

It is concluded from instruction sets and NVIDIA's tables, not measured: a fast one can be slower than FP32 on
a small model. `build` proves what was reached, `bench` measures it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...processor import why_emulated
from ...spec.words import PRECISIONS, TENSORRT_TARGETS, Precision
from .gpu_types import GpuTypes
from .machine import Machine

State = Literal["fast", "runs", "emulated", "builds", "no"]
_NOT_HERE = "formats of NVIDIA's Tensor Cores"
_OF_TENSORRT = (
    "choose `target` tensorrt-rtx or tensorrt: tf32 from sm80, fp8 from sm89, nvfp4 and mxfp8 from sm100"
)
_FOUR_BITS = "weights alone have 4 bits: less memory, the products are of wider types"
_OLDEST = 70
_RTX_BUILDS_FOR = (75, 80, 86, 89, 120, 121)
"""TensorRT-RTX 1.7; on the first it refuses products of all types but FP16."""
_TAKES = {
    "onnxruntime": ("fp32", "fp16", "bf16", "int8", "int4"),
    "openvino": ("fp32", "fp16", "bf16", "int8", "int4"),
    "torchscript": ("fp32",),
}


@dataclass(frozen=True)
class Installed:
    """Of a target: why it does not build here, why it does not run here, and the fix; empty where it does."""

    why_not_build: str = ""
    why_not_run: str = ""
    fix: str = ""


@dataclass(frozen=True)
class PrecisionState:
    """A target's precision on a device.

    Attributes:
        target: Such as "openvino".
        device: "cpu", or a compute capability.
        precision: Such as "int8".
        state: As the table above has it.
        reason: Why it is not fast; empty where it is.
        fix: What to install or to choose; empty where nothing helps here.
    """

    target: str
    device: str
    precision: str
    state: State
    reason: str = ""
    fix: str = ""


def precision_states(
    installed: Mapping[str, Installed], machine: Machine, gpus: Sequence[GpuTypes], *, here: bool
) -> list[PrecisionState]:
    """Return every target's precisions: on this processor, and on each GPU for TensorRT's.

    Args:
        installed: Target to what was found of it.
        machine: This machine.
        gpus: GPUs of this machine, or those that were asked for.
        here: Whether they are of this machine.
    """
    states = []
    for target, found in installed.items():
        for precision in PRECISIONS:
            if target in TENSORRT_TARGETS:
                states += [_on_gpu(target, precision, found, gpu, here=here) for gpu in gpus]
                if not gpus:
                    states.append(_on_no_gpu(target, precision, found))
            elif target in _TAKES:
                states.append(_on_cpu(target, precision, found, machine))
    return states


def _on_cpu(target: str, precision: Precision, found: Installed, machine: Machine) -> PrecisionState:
    def state(word: State, reason: str = "", fix: str = "") -> PrecisionState:
        return PrecisionState(target, "cpu", precision, word, reason, fix)

    if precision not in _TAKES[target]:
        of_tensorrt = precision not in _TAKES["onnxruntime"]
        reason = _NOT_HERE if of_tensorrt else "it is built in fp32 alone"
        return state("no", reason, _OF_TENSORRT if of_tensorrt else "")
    if found.why_not_build or found.why_not_run:
        return state("no", found.why_not_build or found.why_not_run, found.fix)
    if precision in ("fp16", "bf16"):
        return state(*_half(target, precision, machine))
    if precision == "int8" and (reason := machine.why_int8_is_slow()):
        return state("runs", reason, "measure it with `qcompile bench`: fp32 may be faster here")
    if precision == "int4":
        if target == "openvino":
            reason = "OpenVINO does not tell which weights it keeps in 4 bits: it cannot be proven"
            return state("no", reason, "choose `target` onnxruntime or tensorrt-rtx")
        return state("runs", _FOUR_BITS)
    return state("fast")


def _half(target: str, precision: str, machine: Machine) -> tuple[State, str, str]:
    if target == "onnxruntime":
        if precision == "bf16":
            return "no", "ONNX Runtime's CPU provider has no bf16 kernels for most operators", _OTHER_HALF
        if machine.is_arm and "asimdhp" in machine.features:
            return (
                "runs",
                "ONNX Runtime has fp16 kernels for some operators on ARM",
                "build and read the proof",
            )
        return "emulated", "ONNX Runtime's CPU provider computes fp16 in fp32", _OTHER_HALF
    emulated = why_emulated(precision)
    if emulated:
        return "emulated", emulated, "choose `precision` int8, or fp32"
    return "fast", "", ""


_OTHER_HALF = "choose `target` openvino where the processor has it, or `precision` int8"


def _on_gpu(
    target: str, precision: Precision, found: Installed, gpu: GpuTypes, *, here: bool
) -> PrecisionState:
    def state(word: State, reason: str = "", fix: str = "") -> PrecisionState:
        return PrecisionState(target, gpu.capability, precision, word, reason, fix)

    lacks = gpu.why_not(precision)
    if lacks:
        return state("no", lacks, "choose another `precision`, or a newer GPU")
    if target == "tensorrt-rtx" and gpu.number not in _RTX_BUILDS_FOR:
        known = ", ".join(f"sm{number}" for number in _RTX_BUILDS_FOR)
        return state("no", f"TensorRT-RTX builds for {known}", "choose `target` tensorrt")
    if target == "tensorrt-rtx" and gpu.number == _RTX_BUILDS_FOR[0] and precision not in ("fp16", "int8"):
        reason = f"TensorRT-RTX multiplies matrices of fp16 and int8 alone on {gpu.capability}"
        return state("no", reason, "choose `precision` fp16 or int8, or `target` tensorrt")
    if gpu.number < _OLDEST:
        return state("no", f"TensorRT 10 begins with sm{_OLDEST}")
    if found.why_not_build:
        return state("no", found.why_not_build, found.fix)
    if not here or found.why_not_run:
        reason = found.why_not_run or f"{gpu.capability} was asked for; it need not be here"
        return state("builds", reason, "" if not found.why_not_run else found.fix)
    if precision == "int4":
        return state("runs", _FOUR_BITS)
    if precision == "mxfp8" and target == "tensorrt-rtx":
        return state("runs", "TensorRT-RTX 1.7 multiplies MXFP8 after it is dequantized")
    return state("fast")


def _on_no_gpu(target: str, precision: Precision, found: Installed) -> PrecisionState:
    if found.why_not_build:
        return PrecisionState(target, "gpu", precision, "no", found.why_not_build, found.fix)
    return PrecisionState(target, "gpu", precision, "builds", found.why_not_run, found.fix)
