"""Identify the processor that an offline-optimized model was built for."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

# Instruction sets by which ONNX Runtime chooses kernels and memory layouts.
_FEATURES = (
    "avx",
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "asimddp",
    "asimdhp",
    "bf16",
    "i8mm",
    "sve",
    "sme",
)

_MULTIPLY_IN = {
    "bf16": {"x86": ("avx512_bf16", "amx_bf16"), "arm": ("bf16",)},
    "fp16": {"x86": ("avx512_fp16", "amx_fp16"), "arm": ("asimdhp",)},
}
"""Instruction sets that multiply in a precision. Without one a runtime widens to float32 and rounds back,
and may report the precision that it emulates (OpenVINO 2026.4: 3.5 times slower than float32)."""


def processor() -> dict[str, object]:
    """Return name, architecture and the instruction sets that matter, as far as the system says."""
    flags, name = _read_cpuinfo()
    return {
        "processor": name or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "features": [feature for feature in _FEATURES if feature in flags],
    }


def is_arm() -> bool:
    """Return whether this processor is an ARM."""
    return platform.machine().startswith(("arm", "aarch"))


def why_emulated(precision: str) -> str:
    """Return why this processor does not compute in a precision; empty where it does.

    It is empty, too, where the system tells no instruction sets at all: there the runtime's word must do.
    """
    here = processor()
    features = here["features"]
    family = "arm" if is_arm() else "x86"
    needed = _MULTIPLY_IN.get(precision, {}).get(family, ())
    if not needed or not isinstance(features, list) or not features or set(needed) & set(features):
        return ""
    return f"{here['processor']} does not multiply in {precision} (it has no {', no '.join(needed)})"


def missing_features(device: Mapping[str, object]) -> list[str]:
    """Return what an artifact's device had and this machine lacks; without an architecture it is any."""
    here = processor()
    if "architecture" in device and device.get("architecture") != here["architecture"]:
        return [str(device.get("architecture"))]
    needed, present = device.get("features"), here["features"]
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
