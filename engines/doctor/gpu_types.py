"""Which types the Tensor Cores of each compute capability multiply. docs/doctor.md names the sources."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import InvalidOption

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
    """Return what a compute capability ("sm86", "86" or "8.6") has; the GPU need not be here."""
    match = re.fullmatch(r"(?:sm_?)?(\d+)\.?(\d)[a-z]?", capability.strip().lower(), re.ASCII)
    number = int(match[1]) * 10 + int(match[2]) if match else 0
    below = [known for known in _ROWS if known <= number]
    if not below or number >= 1000:
        raise InvalidOption(
            f"`gpus` {capability}: a compute capability from sm50 on is required, such as sm86", option="gpus"
        )
    note = "" if below[-1] == number else f"not in the tables: as sm{below[-1]}"
    return GpuTypes(f"sm{number}", *_ROWS[below[-1]], note)
