"""Which types the Tensor Cores of each compute capability multiply.

| source | says | rows |
|---|---|---|
| TensorRT-RTX Support Matrix, "Hardware and Precision" (docs.nvidia.com/deeplearning/tensorrt-rtx), read | FP16 on all; BF16, INT8 and INT4 products from 8.6; FP8 on 8.9; FP4 on 12.0 | 7.5, 8.6, 8.9, 12.0 |
| TensorRT-RTX 1.7's builder, asked by the tests | builds or refuses fp16, bf16, int8, fp8, nvfp4 | 7.5, 8.0, 8.6, 8.9, 12.0, 12.1 |
| NVIDIA, GTC 2019 S9926, "Tensor Core DL Performance Guide", read | Volta: FP16; Turing: INT8, INT4, INT1 too | 7.0, 7.5 |
| TensorRT for DRIVE OS 10.10.10, release properties, read | Thor: TF32, FP16, FP8, BF16, INT8 | 10.1 |
| CUDA Programming Guide, "Compute Capabilities", and the white papers of the architectures; not opened for this file | FP64, INT4 until Ada, FP4 from Blackwell | the others |

A capability that is not listed takes the row of the newest one below it, and says so.
"""  # noqa: E501 (a table's row is a line)

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from ...errors import InvalidOption

SOURCE = (
    "TensorRT-RTX Support Matrix and builder for sm75, sm80, sm86, sm89, sm120 and sm121; for the others "
    "see the CUDA Programming Guide, Compute Capabilities, and the TensorRT Support Matrix"
)
TYPES = ("FP64", "TF32", "FP16", "BF16", "INT8", "INT4", "FP8", "FP4")

_AMPERE = ("TF32", "FP16", "BF16", "INT8", "INT4")
_BLACKWELL = ("TF32", "FP16", "BF16", "INT8", "FP8", "FP4")
_ROWS: dict[int, tuple[str, str, tuple[str, ...]]] = {
    50: ("Maxwell", "", ()),
    60: ("Pascal", "", ()),
    70: ("Volta", "1st", ("FP16",)),
    72: ("Volta (Xavier)", "1st", ("FP16", "INT8")),
    75: ("Turing", "2nd", ("FP16", "INT8", "INT4")),
    80: ("Ampere", "3rd", ("FP64", *_AMPERE)),
    86: ("Ampere", "3rd", _AMPERE),
    87: ("Ampere (Orin)", "3rd", _AMPERE),
    89: ("Ada Lovelace", "4th", (*_AMPERE, "FP8")),
    90: ("Hopper", "4th", ("FP64", "TF32", "FP16", "BF16", "INT8", "FP8")),
    100: ("Blackwell", "5th", ("FP64", *_BLACKWELL)),
    103: ("Blackwell Ultra", "5th", _BLACKWELL),
    110: ("Blackwell (Thor)", "5th", _BLACKWELL),
    120: ("Blackwell (RTX)", "5th", _BLACKWELL),
    121: ("Blackwell (Spark)", "5th", _BLACKWELL),
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
    """What a compute capability has.

    Attributes:
        capability: Such as "sm86".
        architecture: Its name.
        tensor_cores: Their generation; empty where there are none.
        types: What they multiply.
        note: What was concluded from another row; empty where the row is NVIDIA's own.
    """

    capability: str
    architecture: str
    tensor_cores: str
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
        first = min((number for number, row in _ROWS.items() if needed in row[2]), default=0)
        return f"the Tensor Cores of {self.capability} take no {needed}, which begins with sm{first}"

    def as_json(self) -> dict[str, object]:
        """Return the `--json` form."""
        return asdict(self) | {"types": list(self.types), "source": SOURCE}


def gpu_types(capability: str) -> GpuTypes:
    """Return what a compute capability has, of a GPU that need not be here.

    Args:
        capability: "sm86", "86" or "8.6".

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
    nearest = max(below)
    name, generation, types = _ROWS[nearest]
    note = "" if nearest == number else f"not in the tables: as sm{nearest}"
    return GpuTypes(f"sm{number}", name, generation, types, note)
