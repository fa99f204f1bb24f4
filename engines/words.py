"""What an engine's folder says of it beside its code: for `doctor`, `init`, `auto` and `deploy`; what its
runtime computes wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..spec.words import Mode, Precision

State = Literal["fast", "runs", "emulated", "builds", "no"]
Verdict = tuple[State, str, str]
"""How a precision runs, why it is not fast, and the way out; an empty way out is another target's, by
`doctor`, where one has the precision."""
FAST: Verdict = ("fast", "", "")
FOUR_BITS: Verdict = ("runs", "weights alone have 4 bits: less memory, the products are of wider types", "")

When = Literal["float", "float alone", "static", "dynamic", "bf16", "named"]


@dataclass(frozen=True)
class Proposal:
    """An artifact that a recipe may have, and why, for the recipe's comment.

    It is proposed `when` a model is "float", or one of which no static INT8 is proposed ("float alone"); for
    "static" or "dynamic" INT8; for a processor that multiplies in "bf16"; or where its target is "named". Its
    `mode` of quantization is empty for static.
    """

    name: str
    precision: Precision
    why: str
    when: When
    mode: Mode | Literal[""] = ""


@dataclass(frozen=True)
class TritonBackend:
    """One of Triton's backends.

    Attributes:
        platform: As Triton's `platform` spells it; empty where the backend has none.
        file: Name of the model in a version's folder; the one it looks for by itself is `default_file`.
        dtypes: numpy's names of the types that it takes.
        kinds: Where instances can run; the first is where its artifacts were checked.
        batches: Whether its dynamic batch is any batch up to the largest.
        infers_extents: Whether it infers extents that a file leaves open, and wants just these configured.
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
"""numpy's name of a type to Triton's."""


@dataclass(frozen=True)
class KnownFault:
    """An operator that a runtime computes wrongly, and what is done about it.

    Attributes:
        what: What the runtime does, as the end of a sentence that begins with the operator.
        versions: Target to the first version that has it, and the first without: "" where there is no bound.
        precisions: The precisions that are affected, as `gpus` such as "sm120"; empty for all.
        profiles: How many optimization profiles it takes.
        hint: The way out where the build is refused.
    """

    name: str
    operator: str
    issues: tuple[str, ...]
    what: str
    action: Literal["rewrite", "refuse", "warn"]
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    precisions: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    profiles: int = 0
    hint: str = ""

    def affects(self, target: str, version: str, gpu: str = "") -> bool:
        """Whether a version such as "10.16.1.11" has it, on a GPU such as "sm120" or, empty, any."""
        if target not in self.versions or (self.gpus and gpu not in self.gpus):
            return False
        since, until = self.versions[target]
        numbers = version_numbers(version)
        return numbers >= version_numbers(since) and (not until or numbers < version_numbers(until))

    def __str__(self) -> str:
        return f"{self.name}: {self.operator} {self.what} ({'; '.join(self.issues)})"


def version_numbers(version: str, count: int = 2) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:count] if part.isdecimal())
