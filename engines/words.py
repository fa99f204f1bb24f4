"""Types of the data that engines declare for `doctor`, `init`, `auto` and `deploy`, and of known faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..spec.words import Mode, Precision

State = Literal["fast", "runs", "emulated", "builds", "no"]
Verdict = tuple[State, str, str]
"""State of a precision, the reason unless the state is "fast", and the fix. If the fix is empty, `doctor`
suggests other targets that have the precision, or INT8."""
FAST: Verdict = ("fast", "", "")
FOUR_BITS: Verdict = ("runs", "only weights have 4 bits: this saves memory, but products use wider types", "")

When = Literal["float", "float alone", "static", "dynamic", "bf16", "named"]


@dataclass(frozen=True)
class Proposal:
    """An artifact that `init` may propose for a recipe, with the reason for the recipe's comment.

    `when` is the condition: "float" (a float32 model), "float alone" (a float32 model without static INT8),
    "static" or "dynamic" (INT8 of this mode is possible), "bf16" (the processor multiplies in bfloat16), or
    "named" (the user named the target). `mode` is the mode of quantization, empty for static.
    """

    name: str
    precision: Precision
    why: str
    when: When
    mode: Mode | Literal[""] = ""


@dataclass(frozen=True)
class TritonBackend:
    """A backend of the Triton inference server.

    Attributes:
        platform: Value of `platform` in Triton's configuration; empty for none.
        file: Name of the model file in a version's folder.
        dtypes: Supported types, by numpy's names.
        kinds: Devices for instances, "cpu" or "gpu"; artifacts were checked on the first.
        default_file: Triton's default for `file`, if different.
        batches: Whether dynamic batching accepts every batch size up to the maximum.
        infers_extents: Whether Triton's configuration must match extents that the backend infers itself.
    """

    name: str
    platform: str
    file: str
    dtypes: frozenset[str]
    kinds: tuple[str, ...]
    default_file: str = ""
    batches: bool = True
    infers_extents: bool = False
    note: str = ""


TRITON_TYPES = {
    name: f"TYPE_{name.upper().replace('BFLOAT', 'BF').replace('FLOAT', 'FP')}"
    for name in (
        "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 bfloat16 string"
    ).split()
}
"""Maps numpy's name of a type to Triton's."""


@dataclass(frozen=True)
class KnownFault:
    """An operator that a runtime computes wrongly, and the action on it.

    Attributes:
        defect: The wrong behavior, as the end of a sentence that begins with the operator.
        versions: Maps targets to the first version with the fault and the first without it; "" for no bound.
        precisions: Affected precisions; empty for all.
        gpus: Affected compute capabilities ("sm120"); empty for all.
        profiles: Least number of optimization profiles that shows the fault.
        hint: Hint of the error if the build is refused.
    """

    name: str
    operator: str
    issues: tuple[str, ...]
    defect: str
    action: Literal["rewrite", "refuse", "warn"]
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    precisions: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    profiles: int = 0
    hint: str = ""

    def affects(self, target: str, version: str, gpu: str = "") -> bool:
        """Return whether a version ("10.16.1.11") has the fault on a GPU ("sm120", or empty if unknown)."""
        if target not in self.versions or (self.gpus and gpu not in self.gpus):
            return False
        since, until = self.versions[target]
        numbers = version_numbers(version)
        return numbers >= version_numbers(since) and (not until or numbers < version_numbers(until))

    def __str__(self) -> str:
        return f"{self.name}: {self.operator} {self.defect} ({'; '.join(self.issues)})"


def version_numbers(version: str, count: int = 2) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:count] if part.isdecimal())
