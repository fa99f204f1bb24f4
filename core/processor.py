"""The processor of this machine: its instruction sets, and which of them multiplies integers (`isa`)."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from pathlib import Path

from ..spec.words import ARM_ISAS, CPU_TARGETS, Isa

# Instruction sets by which ONNX Runtime chooses kernels and memory layouts.
_FEATURES = (
    "avx", "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
    "amx_fp16", "asimd", "asimddp", "asimdhp", "bf16", "i8mm", "sve", "sme",
)  # fmt: skip

_MULTIPLY_IN = {
    "bf16": {"x86": ("avx512_bf16", "amx_bf16"), "arm": ("bf16",)},
    "fp16": {"x86": ("avx512_fp16", "amx_fp16"), "arm": ("asimdhp",)},
}
"""Instruction sets that multiply in a precision. Without one a runtime widens to float32 and rounds back,
and may report the precision that it emulates, 3.5 times slower than float32."""


def processor() -> dict[str, object]:
    """Return name, architecture and the instruction sets that matter, as far as the system says."""
    flags, name = _read_cpuinfo()
    return {
        "processor": name or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "features": [feature for feature in _FEATURES if feature in flags],
    }


_ISAS: Mapping[Isa, str] = {
    "amx": "amx_int8",
    "avx512-vnni": "avx512_vnni",
    "avx-vnni": "avx_vnni",
    "i8mm": "i8mm",
    "neon-dotprod": "asimddp",
}
"""Instruction set to its flag in /proc/cpuinfo, the best first."""


def isa_here() -> Isa:
    """Return the instruction set that multiplies integers of 8 bits here.

    Where the system tells no instruction sets, it is the least of the architecture: "avx2" or "neon". A
    processor with AVX-512 and without VNNI counts as "avx2", whose products its kernels use.
    """
    features = processor()["features"]
    return isa_of(features if isinstance(features, list) else (), arm=is_arm())


def isa_of(features: Collection[str], *, arm: bool) -> Isa:
    """Return the instruction set that multiplies integers of 8 bits on a processor with these features."""
    present = (isa for isa, flag in _ISAS.items() if flag in features and (isa in ARM_ISAS) == arm)
    return next(present, "neon" if arm else "avx2")


def resolve_isa(isa: Isa, target: str) -> Isa:
    """Return what "auto" stands for here; it stays "auto" for a target that runs on no processor."""
    return isa_here() if isa == "auto" and target in CPU_TARGETS else isa


def is_foreign(isa: Isa) -> bool:
    """Return whether files for an instruction set are for another architecture than this machine's."""
    return isa != "auto" and (isa in ARM_ISAS) != is_arm()


def is_elsewhere(isa: Isa) -> bool:
    """Return whether files for an instruction set are for another processor than this one.

    Such files hold nothing of this processor, so that they run on any that has the instruction set.
    """
    return isa not in ("auto", isa_here())


def device_for(isa: Isa) -> dict[str, object]:
    """Return the device of a manifest: this processor, or all of an architecture with an instruction set."""
    if not is_elsewhere(isa):
        return {**processor(), "isa": isa}
    arm = isa in ARM_ISAS
    architecture = ("aarch64" if arm else "x86_64") if is_foreign(isa) else platform.machine()
    return {"processor": "ARM" if arm else "x86", "architecture": architecture, "isa": isa}


def why_unchecked(isa: Isa) -> list[str]:
    """Return what a build for an instruction set cannot tell here: nothing for this processor's."""
    if not is_elsewhere(isa):
        return []
    name, it = ("ARM", "ARM") if is_foreign(isa) and isa in ARM_ISAS else (isa, "it")
    return [
        f"built for {name} on another processor, whose speed says nothing about {it}",
        f"which kernels run on {isa} was not checked: the proof of types is of this processor ({isa_here()})",
    ]


def overflows(isa: Isa, on: Isa) -> bool:
    """Return whether INT8 that is fitted to an instruction set is computed wrongly on another one.

    Weights for "avx2" are right everywhere. Those for other instruction sets of x86, and for ARM, overflow
    where pairs of products are added in 16 bits, as kernels for AVX2 do.
    """
    return on == "avx2" and isa not in ("auto", "avx2")


def why_not_exact(isa: Isa) -> str:
    """Return why INT8 that is fitted to an instruction set is computed wrongly here; empty otherwise."""
    if not overflows(isa, isa_here()):
        return ""
    return (
        f"its INT8 is for {isa}, and this processor ({processor()['processor']}) has no VNNI: "
        "its kernels add two products in 16 bits, which overflow"
    )


def is_arm() -> bool:
    """Return whether this processor is an ARM."""
    return platform.machine().startswith(("arm", "aarch"))


def why_emulated(precision: str) -> str:
    """Return why this processor does not compute in a precision; empty where it does.

    It is empty, too, where the system tells no instruction sets at all: there the runtime's word must do.
    """
    machine = processor()
    features = machine["features"]
    family = "arm" if is_arm() else "x86"
    needed = _MULTIPLY_IN.get(precision, {}).get(family, ())
    if not needed or not isinstance(features, list) or not features or set(needed) & set(features):
        return ""
    return f"{machine['processor']} does not multiply in {precision} (it has no {', no '.join(needed)})"


def missing_features(device: Mapping[str, object]) -> list[str]:
    """Return what an artifact's device had and this machine lacks; without features it is any."""
    machine = processor()
    if "features" not in device:
        return []
    if "architecture" in device and device.get("architecture") != machine["architecture"]:
        return [str(device.get("architecture"))]
    needed, present = device.get("features"), machine["features"]
    if not isinstance(needed, list) or not isinstance(present, list):
        return []
    return [feature for feature in needed if feature not in present]


def _read_cpuinfo() -> tuple[set[str], str]:
    flags: set[str] = set()
    name = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():  # elsewhere the features stay empty and nothing is compared
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags.update(value.split())
            elif key.strip() == "model name":
                name = value.strip()
    return flags, name
