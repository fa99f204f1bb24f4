"""Instruction sets of this machine's processor; `isa` is the set for products of 8-bit integers."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from pathlib import Path

from ..spec.words import ARM_ISAS, CPU_TARGETS, Isa

# Instruction sets that determine ONNX Runtime's choice of kernels and memory layouts.
_FEATURES = (
    "avx", "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
    "amx_fp16", "asimd", "asimddp", "asimdhp", "bf16", "i8mm", "sve", "sme",
)  # fmt: skip

_MULTIPLY_IN = {
    "bf16": {"x86": ("avx512_bf16", "amx_bf16"), "arm": ("bf16",)},
    "fp16": {"x86": ("avx512_fp16", "amx_fp16"), "arm": ("asimdhp",)},
}
"""Instruction sets that multiply in a precision. Without them, a runtime converts to float32 and back
(3.5 times slower than float32), and may report the emulated precision."""


def processor() -> dict[str, object]:
    """Return name, architecture and relevant instruction sets, as far as the system reports them."""
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
"""The flag of each instruction set in /proc/cpuinfo, best set first."""


def isa_here() -> Isa:
    """Return the instruction set for 8-bit integer products on this processor.

    If the system reports no instruction sets, the result is the least of the architecture: "avx2" or "neon".
    AVX-512 without VNNI counts as "avx2", because its kernels compute products in the same way.
    """
    features = processor()["features"]
    return isa_of(features if isinstance(features, list) else (), arm=is_arm())


def isa_of(features: Collection[str], *, arm: bool) -> Isa:
    """Return the instruction set for 8-bit integer products, given a processor's features."""
    supported = (isa for isa, flag in _ISAS.items() if flag in features and (isa in ARM_ISAS) == arm)
    return next(supported, "neon" if arm else "avx2")


def resolve_isa(isa: Isa, target: str) -> Isa:
    """Return this processor's instruction set for "auto" and a target that runs on CPUs, else `isa`."""
    return isa_here() if isa == "auto" and target in CPU_TARGETS else isa


def is_foreign(isa: Isa) -> bool:
    """Return whether an instruction set belongs to another architecture than this machine's."""
    return isa != "auto" and (isa in ARM_ISAS) != is_arm()


def is_elsewhere(isa: Isa) -> bool:
    """Return whether `isa` is another processor's; files built for it run on any processor with that set."""
    return isa not in ("auto", isa_here())


def device_for(isa: Isa) -> dict[str, object]:
    """Return a manifest's `device`: this processor, or any processor with another instruction set."""
    if not is_elsewhere(isa):
        return {**processor(), "isa": isa}
    arm = isa in ARM_ISAS
    architecture = ("aarch64" if arm else "x86_64") if is_foreign(isa) else platform.machine()
    return {"processor": "ARM" if arm else "x86", "architecture": architecture, "isa": isa}


def foreign_isa_warnings(isa: Isa) -> list[str]:
    """Return warnings on the checks that a build for another instruction set could not make here."""
    if not is_elsewhere(isa):
        return []
    name, it = ("ARM", "ARM") if is_foreign(isa) and isa in ARM_ISAS else (isa, "it")
    return [
        f"built for {name} on another processor, whose speed does not apply to {it}",
        f"kernels on {isa} are not verified: layer precisions were checked on this processor ({isa_here()})",
    ]


def overflows(isa: Isa, on: Isa) -> bool:
    """Return whether INT8 weights for instruction set `isa` overflow on instruction set `on`.

    Weights for "avx2" are exact everywhere. Weights for other x86 sets and for ARM overflow on AVX2, because
    AVX2 kernels add pairs of products in 16 bits.
    """
    return on == "avx2" and isa not in ("auto", "avx2")


def why_not_exact(isa: Isa) -> str:
    """Return why INT8 for an instruction set overflows on this processor, or an empty text."""
    if not overflows(isa, isa_here()):
        return ""
    return (
        f"its INT8 is for {isa}, and this processor ({processor()['processor']}) has no VNNI: "
        "its kernels add two products in 16 bits, which overflow"
    )


def is_arm() -> bool:
    return platform.machine().startswith(("arm", "aarch"))


def why_emulated(precision: str) -> str:
    """Return why this processor emulates a precision; empty if it does not or its features are unknown."""
    machine = processor()
    features = machine["features"]
    family = "arm" if is_arm() else "x86"
    needed = _MULTIPLY_IN.get(precision, {}).get(family, ())
    if not needed or not isinstance(features, list) or not features or set(needed) & set(features):
        return ""
    return f"{machine['processor']} does not multiply in {precision} (it has no {', no '.join(needed)})"


def missing_features(device: Mapping[str, object]) -> list[str]:
    """Return the architecture or features of an artifact's device that this machine lacks, if recorded."""
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
    if cpuinfo.is_file():  # other systems report no features, and no comparison takes place
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags.update(value.split())
            elif key.strip() == "model name":
                name = value.strip()
    return flags, name
