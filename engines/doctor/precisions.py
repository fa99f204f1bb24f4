"""Which precisions each target builds and runs on this machine, and whether an instruction does it.

It is concluded from what the engines take, instruction sets and NVIDIA's tables, not measured.
docs/doctor.md says what the states mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import InvalidOption
from ...processor import isa_here, processor, why_emulated
from ...spec.words import CPU_TARGETS, PRECISIONS, TARGETS, TENSORRT_TARGETS, Precision
from ..base import Engine
from ..registry import engine
from ..words import FAST, FOUR_BITS, State, Verdict

_OF_TENSORRT = (
    "choose `target` tensorrt-rtx or tensorrt: tf32 from sm80, fp8 from sm89, nvfp4 and mxfp8 from sm100"
)
_OLDEST = 70
_RTX_BUILDS_FOR = (75, 80, 86, 89, 120, 121)
"""TensorRT-RTX 1.7; on the first it refuses products of all types but FP16."""


@dataclass(frozen=True)
class TargetState:
    """Whether a target builds here, runs here, and runs on a GPU here; reasons are empty when it does."""

    target: str
    why_not_build: str = ""
    why_not_run: str = ""
    why_not_run_on_gpu: str = ""
    fix: str = ""

    @classmethod
    def of(cls, one: Engine) -> TargetState:
        """Ask an engine, whose runtime is imported."""
        return cls(one.name, one.why_not_build(), one.why_not_run(), one.why_not_run_on_gpu(), one.fix())


@dataclass(frozen=True)
class PrecisionState:
    """A target's precision on a device ("cpu", or a compute capability), why it is not fast, the way out."""

    target: str
    device: str
    precision: str
    state: State
    reason: str = ""
    fix: str = ""


def precision_states(
    targets: Sequence[TargetState], gpus: Sequence[GpuTypes], *, here: bool
) -> list[PrecisionState]:
    """Return every target's precisions: on this processor, and for TensorRT's on each of the GPUs, which are
    `here` or were asked for."""
    states = []
    for target in targets:
        for precision in PRECISIONS if target.target in TARGETS else ():  # a baseline is not built
            if target.target not in TENSORRT_TARGETS:
                verdicts = {"cpu": _on_cpu(target, precision)}
            else:
                verdicts = {gpu.capability: _on_gpu(target, precision, gpu, here=here) for gpu in gpus}
                verdicts = verdicts or {"gpu": _installed(target)}
            states += [PrecisionState(target.target, on, precision, *said) for on, said in verdicts.items()]
    return states


def _installed(target: TargetState) -> Verdict:
    if target.why_not_build:
        return "no", target.why_not_build, target.fix
    return "builds", target.why_not_run or "no GPU is here", target.fix


def _on_cpu(target: TargetState, precision: Precision) -> Verdict:
    runtime, features = engine(target.target), processor()["features"]
    if runtime.takes == "pytorch" and precision != "fp32":
        return "no", "it is built in fp32 alone", "choose another `target`"
    if precision not in runtime.precisions:
        return "no", "formats of NVIDIA's Tensor Cores", _OF_TENSORRT
    if target.why_not_build or target.why_not_run:
        return "no", target.why_not_build or target.why_not_run, target.fix
    if verdict := runtime.verdict(precision):
        state, reason, fix = verdict
        return state, reason, fix if fix or state == "runs" else _way_out(precision)
    if precision in ("fp16", "bf16") and (reason := why_emulated(precision)):
        return "emulated", reason, "choose `precision` int8, or fp32"
    if precision == "int8" and features and isa_here() in ("avx2", "neon"):
        reason = f"{isa_here()} has no product of 8 bits: it takes several instructions"
        return "runs", reason, "measure it with `qcompile bench`: fp32 may be faster here"
    return FAST


def _way_out(precision: Precision) -> str:
    """Name the targets that compute in a precision on processors that have it."""
    runtimes = [one for one in map(engine, CPU_TARGETS) if precision in one.precisions]
    others = [one.name for one in runtimes if one.verdict(precision) is None]
    instead = f"`target` {' or '.join(others)} where the processor has it, or " if others else ""
    return f"choose {instead}`precision` int8"


def _on_gpu(target: TargetState, precision: Precision, gpu: GpuTypes, *, here: bool) -> Verdict:
    rtx = target.target == "tensorrt-rtx"
    if lacks := gpu.why_not(precision):
        return "no", lacks, "choose another `precision`, or a newer GPU"
    if rtx and gpu.number not in _RTX_BUILDS_FOR:
        known = ", ".join(f"sm{number}" for number in _RTX_BUILDS_FOR)
        return "no", f"TensorRT-RTX builds for {known}", "choose `target` tensorrt"
    if rtx and gpu.number == _RTX_BUILDS_FOR[0] and precision not in ("fp16", "int8"):
        reason = f"TensorRT-RTX multiplies matrices of fp16 and int8 alone on {gpu.capability}"
        return "no", reason, "choose `precision` fp16 or int8, or `target` tensorrt"
    if gpu.number < _OLDEST:
        return "no", f"TensorRT 10 begins with sm{_OLDEST}", ""
    if target.why_not_build or target.why_not_run:
        return _installed(target)
    if not here:
        return "builds", f"{gpu.capability} was asked for; it need not be here", ""
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
_NEEDS = {
    "fp32": "", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16", "int8": "INT8", "fp8": "FP8",
    "nvfp4": "FP4", "mxfp8": "FP4",
}  # fmt: skip
"""Precision to the type that its GPU has; MXFP8's blocks came with FP4, with compute capability 10.0."""
_INT4_WEIGHTS = 80
"""TensorRT-RTX Support Matrix: products of INT4 weights ("WoQ GEMM") from 8.6 on, not on 7.5."""


@dataclass(frozen=True)
class GpuTypes:
    """A compute capability ("sm86"), its architecture, the types that its Tensor Cores multiply, and a note
    where that was concluded from the row of an older one."""

    capability: str
    architecture: str
    types: tuple[str, ...]
    note: str = ""

    @property
    def number(self) -> int:
        """86 of "sm86"."""
        return int(self.capability.removeprefix("sm"))

    def why_not(self, precision: str) -> str:
        """Return why it does not multiply in a precision; empty where it does."""
        if precision == "int4":
            return "" if self.number >= _INT4_WEIGHTS else f"{self.capability} has no product of INT4 weights"
        needed = _NEEDS[precision]
        if not needed or needed in self.types:
            return ""
        first = min((number for number, row in _ROWS.items() if needed in row[1]), default=0)
        return f"the Tensor Cores of {self.capability} take no {needed}, which begins with sm{first}"


def gpu_types(capability: str) -> GpuTypes:
    """Return what a compute capability ("sm86", "86" or "8.6") has; the GPU need not be here.

    Raises:
        InvalidOption: If it is no compute capability, or older than those known.
    """
    match = re.fullmatch(r"(?:sm_?)?(\d+)\.?(\d)[a-z]?", capability.strip().lower(), re.ASCII)
    number = int(match[1]) * 10 + int(match[2]) if match else 0
    below = [known for known in _ROWS if known <= number]
    if not below or number >= 1000:
        raise InvalidOption(
            f"`gpus` {capability}: a compute capability from sm50 on is required, such as sm86", option="gpus"
        )
    note = "" if below[-1] == number else f"not in the tables: as sm{below[-1]}"
    return GpuTypes(f"sm{number}", *_ROWS[below[-1]], note)
