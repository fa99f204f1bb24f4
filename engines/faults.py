"""A known fault of a runtime: a graph that it computes wrongly, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class KnownFault:
    """One of them.

    Attributes:
        name: How it is spelled in an option, and in manifests.
        operator: The operator that is computed wrongly.
        issues: Where it is reported or can be read.
        what: What the runtime does, as the end of a sentence that begins with the operator.
        action: What is done about it.
        versions: Target to the first version that has it, and the first without: "" where there is no bound.
        precisions: The precisions that are affected; empty for all.
        gpus: The GPUs that are affected, such as "sm120"; empty for all.
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
        """Whether a version has it, on a GPU such as "sm86"."""
        if target not in self.versions or (self.gpus and gpu not in self.gpus):
            return False
        since, until = self.versions[target]
        numbers = version_numbers(version)
        return numbers >= version_numbers(since) and (not until or numbers < version_numbers(until))

    def __str__(self) -> str:
        return f"{self.name}: {self.operator} {self.what} ({'; '.join(self.issues)})"


def faults_of(
    faults: Iterable[KnownFault], target: str, version: str, gpu: str = ""
) -> tuple[KnownFault, ...]:
    """Return those of a version such as "10.16.1.11", on a GPU such as "sm120" or, empty, any."""
    return tuple(fault for fault in faults if fault.affects(target, version, gpu))


def version_numbers(version: str, count: int = 2) -> tuple[int, ...]:
    """Return the first numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:count] if part.isdecimal())
