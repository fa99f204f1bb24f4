"""What can be built and run here, as `doctor` finds it; what is missing has the line that installs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.gpu import find_gpu
from ...engines.registry import engine
from ...processor import processor, why_emulated
from ...spec.words import TARGETS, Target

USUAL_GPUS = ("sm86", "sm89")
"""Ampere and Ada: the desktop and inference cards of two generations."""


@dataclass(frozen=True)
class Machine:
    """This machine.

    Attributes:
        missing: Target to why nothing can be built for it here; those that can are not in it.
        fixes: Target to what installs it; empty where nothing does.
        gpu: Compute capability of its GPU; empty without one.
        processor: Its name.
        cores: That may be used.
        emulates_bf16: Why the processor does not multiply in bfloat16; empty where it does.
    """

    missing: dict[str, str]
    fixes: dict[str, str]
    gpu: str = ""
    processor: str = ""
    cores: int = 1
    emulates_bf16: str = ""

    def builds(self, target: Target) -> bool:
        """Whether an artifact for a target can be built here."""
        return target not in self.missing


def look_at_machine(targets: Sequence[Target] = TARGETS) -> Machine:
    """Look at the targets; imports their runtimes."""
    from ...model.session import usable_cores

    reasons = {target: engine(target).why_not_build() for target in targets}
    gpu, here = find_gpu(), processor()
    return Machine(
        {target: reason for target, reason in reasons.items() if reason},
        {target: engine(target).fix() for target, reason in reasons.items() if reason},
        gpu.architecture if gpu else "",
        str(here["processor"]),
        usable_cores(),
        why_emulated("bf16"),
    )
