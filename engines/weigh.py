"""Decide whether an artifact reached its precision, weighing each layer by its multiply-adds.

Layers are weighed by their multiply-adds; where those of a planned layer are unknown, every layer weighs the
same. In this order:

1. Nothing planned, or nothing reached or unreported: fails. An artifact that is float32 although another
   precision was asked for never passes.
2. More than 10% missed, or one layer with `strict`: fails.
3. More than half is unreported, and nothing else is known of it: fails, for then nothing is proven. Types
   that bind the runtime prove it. Of a runtime that tells nothing of what it fuses, as TensorRT of
   Transformers, it is a warning, except with `strict`.
4. Less is missed or unreported: a warning that names the layers. Binding types need none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..model.multiply_adds import ALLOWED_SHARE, named, shares
from .base import BuildOutcome, Planned

_UNREPORTED_SHARE = 0.5


@dataclass(frozen=True)
class Weighed:
    """What was found.

    Attributes:
        failure: Why the artifact is not what was asked for; empty where it is.
        warnings: What missed or is unreported in an artifact that passes.
        proof: For the manifest.
    """

    failure: str
    warnings: Sequence[str] = ()
    proof: Mapping[str, object] = field(default_factory=dict)


def weigh(
    precision: str, outcome: BuildOutcome, multiply_adds: Mapping[str, int], *, strict: bool = False
) -> Weighed:
    """Weigh what was planned against what was reached.

    Args:
        precision: What was asked for.
        outcome: What the builder made.
        multiply_adds: Node name to its multiply-adds, as far as they are known.
        strict: Whether one layer that missed is enough to fail, and flags prove nothing.
    """
    unreported = outcome.layers.unreported if outcome.layers is not None else {}
    if (outcome.reached < 1 and not unreported) or outcome.planned < 1:
        if precision == "fp32" and not _computes(outcome):
            return Weighed("")  # nothing in it computes
        return Weighed(_told(precision, outcome) + _named_by(outcome.layers))
    if outcome.layers is None:
        missed = outcome.planned - outcome.reached
        share = missed / outcome.planned
        text = _told(precision, outcome)
        fails = missed > 0 and (strict or share > ALLOWED_SHARE)
        return Weighed(text if fails else "", () if fails or missed <= 0 else (text,))
    return _by_name(precision, outcome, outcome.layers, multiply_adds, strict=strict)


def _by_name(
    precision: str, outcome: BuildOutcome, layers: Planned, multiply_adds: Mapping[str, int], *, strict: bool
) -> Weighed:
    share, counted = shares(layers.names, multiply_adds)
    missed = sum(share[name] for name in layers.missed)
    unreported = sum(share[name] for name in layers.unreported)
    unproven = unreported if layers.unproven else 0.0
    proof = {
        "weighed_by": counted,
        "missed_share": round(missed, 6),
        "unreported_share": round(unreported, 6),
        **({"evidence": layers.evidence} if layers.evidence else {}),
        "missed": _listed(layers.missed, share),
        "unreported": _listed(layers.unreported, share),
    }
    texts = []
    if layers.missed:
        texts.append(
            f"{_told(precision, outcome)}; {missed:.1%} of the planned {counted} missed it: "
            f"{named(layers.missed, share)}"
        )
    if unproven:
        known = f"; {layers.evidence}" if layers.evidence else ""
        texts.append(
            f"{len(layers.unreported)} of {len(layers.names)} layers are unreported, {unreported:.1%} of the "
            f"planned {counted}: {named(layers.unreported, share)}{known}"
        )
    if layers.missed and (strict or missed > ALLOWED_SHARE):
        return Weighed(texts[0], (), proof)
    if unproven > _UNREPORTED_SHARE and (strict or not layers.evidence):
        return Weighed(f"{precision} was asked for and cannot be proven: {texts[-1]}", (), proof)
    return Weighed("", tuple(texts), proof)


def _listed(layers: Mapping[str, str], share: Mapping[str, float]) -> dict[str, dict[str, object]]:
    return {name: {"reason": reason, "share": round(share[name], 6)} for name, reason in layers.items()}


def _named_by(layers: Planned | None) -> str:
    if layers is None or not (layers.missed or layers.unreported):
        return ""
    share, _ = shares(layers.names, {})
    return f": {named({**layers.missed, **layers.unreported}, share)}"


def _computes(outcome: BuildOutcome) -> bool:
    layers = outcome.proof.get("layers_by_precision")
    return any(layers.values()) if isinstance(layers, dict) else True


def _told(precision: str, outcome: BuildOutcome) -> str:
    return (
        f"{precision} was asked for; {outcome.reached} of {outcome.planned} layers that compute "
        f"reached it ({_layers(outcome)})"
    )


def _layers(outcome: BuildOutcome) -> str:
    layers = outcome.proof.get("layers_by_precision")
    if not isinstance(layers, dict):
        return "no layers were found"
    counts = [f"{sum(kinds.values())} in {name}" for name, kinds in layers.items() if kinds]
    return ", ".join(counts) or "no layer computes"
