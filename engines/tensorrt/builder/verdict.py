"""Decide which of the network's layers reached a precision, from what the inspector tells of each profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .engine_layers import UNREPORTED, EngineLayer
from .inspector import Inspection
from .proof import ComputeLayer


@dataclass
class Verdict:
    """Which of the network's layers reached a precision in the engine.

    Attributes:
        reached: Names of layers that the inspector tells in the precision.
        fell_back: Name of each that it tells in another one, to that precision.
        unreported: Name of each of which it tells nothing, to the reason.
    """

    reached: list[str] = field(default_factory=list)
    fell_back: dict[str, str] = field(default_factory=dict)
    unreported: dict[str, str] = field(default_factory=dict)


def judge(planned: Sequence[ComputeLayer], precision: str, inspections: Sequence[Inspection]) -> Verdict:
    """Compare the layers that should compute in a precision with what the engine tells of them.

    A layer has reached it when it has in every profile that tells.
    """
    verdict = Verdict()
    problem = next((one.problem for one in inspections if one.problem), "")
    has_blocks = any(home.is_block for inspection in inspections for home in inspection.layers)
    for layer in planned:
        homes = [_homes(layer, inspection.layers) for inspection in inspections]
        told = {home.precision for some in homes for home in some} - {UNREPORTED}
        if not told:
            verdict.unreported[layer.name] = _why_not(homes, problem, has_blocks=has_blocks)
        elif told == {precision}:
            verdict.reached.append(layer.name)
        else:
            verdict.fell_back[layer.name] = ", ".join(sorted(told - {precision}))
    return verdict


def _homes(layer: ComputeLayer, layers: Sequence[EngineLayer]) -> list[EngineLayer]:
    """The engine's layers that multiply for a layer of the network.

    Its name is on others, too: on a kernel that adds its bias (from 10 on), or on the block that it is in.
    """
    homes = [home for home in layers if home.members.has(layer.name, layer.node)]
    products = [home for home in homes if home.multiplies and not home.is_block]
    return products or [home for home in homes if home.is_block] or homes


def _why_not(homes: Sequence[Sequence[EngineLayer]], problem: str, *, has_blocks: bool) -> str:
    found = [home for some in homes for home in some]
    if any(home.is_block for home in found):
        return "inside a fused block, of which TensorRT tells no precision"
    if found:
        return "TensorRT tells no type of it"
    if problem:
        return f"TensorRT's inspector: {problem}"
    return "inside a fused block, which names its ends alone" if has_blocks else "the engine does not name it"
