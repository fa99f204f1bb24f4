"""For which instruction set the INT8 of an artifact is, and whether it is computed exactly here."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from ..errors import ArtifactError
from ..processor import isa_here, isa_of, overflows, why_not_exact
from ..spec.words import CPU_TARGETS, FORMER_ISAS, ISAS, Isa
from .artifact import Manifest, read_manifest

_EXACT = "with `isa` avx2, which every x86 processor computes exactly"
BUILD_AGAIN = f"build it again here, or {_EXACT}"
QUANTIZE_AGAIN = f"quantize the float model again here, or {_EXACT}"
PACKAGE_ELSEWHERE = f"package it on a processor like the server's, or build it {_EXACT}"
_OF_0_2: Isa = "avx512-vnni"
"""What `quantize` of 0.2.0 quantized for where its manifest does not say: its default, then named "vnni"."""


def int8_isa(manifest: Manifest | None) -> Isa:
    """Return what an artifact's INT8 is for, by its options, its device, or its version.

    It is "auto" where nothing tells, or no product of the artifact is of two integers of 8 bits.
    """
    if (
        manifest is None
        or manifest.target not in ("", *CPU_TARGETS)
        or manifest.precision != "int8"
        or manifest.options.get("mode", "static") not in ("static", "dynamic")
    ):
        return "auto"
    device = manifest.device
    for isa in (
        manifest.current_options.get("isa"),
        FORMER_ISAS.get(str(device.get("isa")), device.get("isa")),
    ):
        if isa in ISAS and isa != "auto":
            return cast(Isa, isa)
    if manifest.stage == "quantize" and manifest.target:
        return _OF_0_2
    features = device.get("features")
    if manifest.stage != "build" or not isinstance(features, list) or not features:
        return "auto"
    return isa_of(features, arm=str(device.get("architecture")).startswith(("arm", "aarch")))


def carried_isa(model: Path) -> dict[str, object]:
    """Return the option of a manifest that says what the INT8 of a file is for, for a file made from it."""
    isa = int8_isa(read_manifest(model))
    return {} if isa == "auto" else {"isa": isa}


def require_exact(
    path: str | Path, manifest: Manifest | None, *, on: Isa = "auto", hint: str = BUILD_AGAIN
) -> None:
    """Refuse an artifact whose INT8 overflows on an instruction set; "auto" is this processor's."""
    isa = int8_isa(manifest)
    if not overflows(isa, isa_here() if on == "auto" else on):
        return
    reason = why_not_exact(isa) or f"its INT8 is for {isa}; on {on} products would overflow, added in 16 bits"
    raise ArtifactError(f"{path}: {reason}", hint=hint, file=path)
