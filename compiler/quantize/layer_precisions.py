"""Precisions of single layers: what patterns ask for, and the halves among what is not quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from ...spec.words import HALVES
from .half.precision import to_half
from .request import QuantizeRequest, exactly, match_nodes


@dataclass(frozen=True)
class Layer:
    """What a node was asked to be by name, and the pattern that says so."""

    kind: str
    reason: str


def layer_precisions(request: QuantizeRequest, graph: onnx.GraphProto) -> dict[str, Layer]:
    """Node name to what it was asked to be: the last pattern that names a node decides."""
    return {
        name: Layer(kind, reason)
        for pattern, kind in request.spec.layer_precisions.items()
        for name, reason in match_nodes(graph, [pattern]).items()
    }


def in_own_patterns(left: object, reasons: Mapping[str, str]) -> dict[str, str]:
    """Name to reason, in the user's own patterns."""
    assert isinstance(left, Mapping)
    return {name: reasons.get(name, reason) for name, reason in left.items()}


def in_mixed_precision(
    request: QuantizeRequest, model: onnx.ModelProto, layers: Mapping[str, Layer]
) -> tuple[onnx.ModelProto, dict[str, str], list[str]]:
    """What is not quantized in the precisions that were asked for; what stays in float32, and why; and
    what of that was to be half by name.
    """
    halves = {
        kind for kind in (request.spec.floats, *request.spec.layer_precisions.values()) if kind in HALVES
    }
    if not halves:
        return model, {}, []
    (half,) = halves
    names = [node.name for node in model.graph.node]
    asked = {name for name, layer in layers.items() if layer.kind == half}
    if request.spec.floats == half:
        block = {
            name: layers[name].reason for name in names if name in layers and layers[name].kind == "fp32"
        }
    else:
        block = {name: "not among the layers" for name in names if name not in asked}
    mixed, kept = to_half(model, HALVES[half], block=map(exactly, block), ranges=request.ranges)
    expected = asked if request.spec.floats != half else kept.keys()
    kept = {name: block.get(name, reason) for name, reason in kept.items() if name in expected}
    missed = [f"node {name!r} was to be {half}: {reason}" for name, reason in kept.items() if name in asked]
    return mixed, kept, missed
