"""What INT8 gains and costs on a processor, by measurements on processors of its kind.

The figures are medians of November 2026, ResNet-50 with random weights, two threads. This processor was not
measured: `bench` does that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...processor import isa_of
from ...spec.words import ARM_ISAS, Isa
from .machine import Machine

_COST = {
    "avx2": "weights are fitted so that no pair of products overflows, which costs accuracy",
    "vnni": "weights use all 8 bits",
    "arm": "activations are signed",
}


@dataclass(frozen=True)
class Int8Timing:
    """Latencies of one runtime, in milliseconds."""

    runtime: str
    fp32_ms: float
    int8_ms: float

    @property
    def speedup(self) -> float:
        """FP32's latency by INT8's."""
        return self.fp32_ms / self.int8_ms


@dataclass(frozen=True)
class Int8Gain:
    """What INT8 gains and costs.

    Attributes:
        isa: The instruction set that multiplies integers here; "auto" where the system tells none.
        cost: What is done to the graph for it.
        measured: On a processor of this kind; empty where none was measured.
        measured_on: Model, batch, threads and processor; empty as above.
    """

    isa: Isa
    cost: str
    measured: tuple[Int8Timing, ...] = ()
    measured_on: str = ""

    @property
    def sentence(self) -> str:
        """The line that `doctor` prints."""
        if self.isa == "auto":
            return "INT8: the system does not tell what multiplies integers here"
        if not self.measured:
            return f"INT8 on {self.isa}: {self.cost}; its speed was measured on no such processor"
        gains = ", ".join(
            f"{one.speedup:.1f}x of FP32's speed by {one.runtime} ({one.fp32_ms:g} and {one.int8_ms:g} ms)"
            for one in self.measured
        )
        return f"INT8 on {self.isa}: {self.cost}; measured: {gains}: {self.measured_on}"


_MEASURED: dict[str, tuple[Sequence[Int8Timing], str]] = {
    "avx2": (
        (Int8Timing("ONNX Runtime", 60.9, 37.1), Int8Timing("OpenVINO", 63.6, 30.1)),
        "ResNet-50, one image, 2 threads of an AMD EPYC with AVX2 and no VNNI",
    ),
    "vnni": (
        (Int8Timing("ONNX Runtime", 151.0, 46.0),),
        "ResNet-50, batch 8, 2 threads of an AMD EPYC with AVX-512 VNNI",
    ),
    "arm": ((), ""),
}


def int8_gain(machine: Machine) -> Int8Gain:
    """Return what INT8 gains and costs on a machine."""
    if not machine.features:
        return Int8Gain("auto", "")
    isa = isa_of(machine.features, arm=machine.is_arm)
    kind = "arm" if isa in ARM_ISAS else "avx2" if isa == "avx2" else "vnni"
    measured, measured_on = _MEASURED[kind]
    return Int8Gain(isa, _COST[kind], tuple(measured), measured_on)
