"""Which precision a command means for this file, and where the scales of INT8 come from.

Where types are weak, a flag permits a precision and TensorRT chooses. Where they are strong, the graph has
them: the lowest precision that is permitted becomes the artifact's, the next one that of what stays in float.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...errors import InvalidOption
from .intent import Intent
from .model_facts import ModelFacts

_FLOAT = "artifact.float_precision"
_IN_GRAPH = "the types of the graph decide"
Scales = Literal["", "cache", "data"]


@dataclass(frozen=True)
class ChosenPrecision:
    """What an artifact computes in.

    Attributes:
        precision: `artifact.precision`.
        float_precision: `artifact.float_precision`.
        scales: Where those of INT8 come from; empty where none are needed, or the file holds them.
    """

    precision: str
    float_precision: str = "fp32"
    scales: Scales = ""


def choose_precision(intent: Intent, facts: ModelFacts, *, cache: bool) -> ChosenPrecision:
    """Decide, and say of each option what became of it.

    Args:
        intent: What the command permits.
        facts: What the file is.
        cache: Whether the calibration cache is there.

    Raises:
        InvalidOption: If INT8 needs scales, and there is neither a cache nor data.
    """
    if intent.strong:
        for name in intent.precisions:
            intent.settle(name, "unneeded", note=f"{_IN_GRAPH}: the tool ignores it too")
        return _as_the_file(intent, facts)
    permitted = _meaningful(intent, facts, has_scales=cache or bool(intent.data))
    if intent.best:
        for name in permitted:
            intent.settle(name, "unneeded", note="best permits it")
        return ChosenPrecision("best", scales=_scales(intent, facts, "best", cache=cache))
    quantized = "fp8" if "fp8" in permitted else "int8"
    if facts.has_scales or {"int8", "fp8"} & permitted:
        return _quantized(intent, facts, facts.precision if facts.has_scales else quantized, permitted, cache)
    if facts.precision != "fp32":
        for name in permitted - {facts.precision}:
            intent.settle(name, "missing", note=f"the file is {facts.precision}; build from the FP32 file")
        return _as_the_file(intent, facts)
    if "fp16" in permitted:
        intent.settle("bf16", "unneeded", note="a layer has one type in a typed graph, and it is FP16")
        return ChosenPrecision("fp16")
    return ChosenPrecision("bf16") if "bf16" in permitted else _as_the_file(intent, facts)


def _meaningful(intent: Intent, facts: ModelFacts, *, has_scales: bool) -> set[str]:
    """The precisions that are permitted, without those that change nothing for this file."""
    permitted = set(intent.precisions)
    if "int4" in permitted and facts.precision != "int4":
        intent.settle("int4", "unneeded", note="the file holds no weights of 4 bits, so it changed nothing")
        permitted.discard("int4")
    if "fp8" in permitted and facts.precision != "fp8" and not has_scales:
        intent.settle("fp8", "unneeded", note="the file holds no Q/DQ, so it changed nothing")
        permitted.discard("fp8")
    return permitted


def _as_the_file(intent: Intent, facts: ModelFacts) -> ChosenPrecision:
    if facts.precision == "fp32" and intent.tf32:
        return ChosenPrecision("tf32")
    return ChosenPrecision(facts.precision)


def _quantized(
    intent: Intent, facts: ModelFacts, precision: str, permitted: set[str], cache: bool
) -> ChosenPrecision:
    if not facts.has_scales and facts.precision != "fp32":
        raise InvalidOption(
            f"{facts.path}: its graph is {facts.precision}; {precision} is quantized from an FP32 file",
            hint="export the model in FP32",
        )
    rest = next((half for half in ("fp16", "bf16") if half in permitted), "fp32")
    for name in ("fp16", "bf16"):
        if name == rest:
            intent.settle(name, "kept", _FLOAT, "of what is not quantized")
        elif name in permitted:
            intent.settle(name, "unneeded", note="a layer has one type in a typed graph, and it is FP16")
    return ChosenPrecision(precision, rest, _scales(intent, facts, precision, cache=cache))


def _scales(intent: Intent, facts: ModelFacts, precision: str, *, cache: bool) -> Scales:
    """Where scales come from; what the tool would do without any is not done in silence."""
    if facts.has_scales:
        intent.revise("calibrate.ranges", "unneeded", "the file's Q/DQ hold the scales, and no cache is read")
        return ""
    if cache:
        return "cache"
    if intent.cache:
        intent.revise("calibrate.ranges", "unneeded", "it is not there; the ranges are observed on the data")
    if intent.data:
        return "data"
    raise InvalidOption(
        f"`data` is missing: {precision} needs real samples. {facts.path} holds no Q/DQ, and the command "
        f"calibrates on {intent.random}: the speed is INT8's, the outputs are not the model's",
        hint="give `data`, samples as qcompile reads them, or a calibration cache that is there",
        option="data",
    )
