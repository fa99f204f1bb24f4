"""Whether an engine is what was asked for: the network's types, and what the engine tells of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ....model.graph import weighted_nodes
from ....model.outline import read_outline
from ...base import BuildRequest
from ..adapter import Adapter
from .inspector import UNTOLD, Inspection, Verdict, judge
from .proof import ComputeLayer, by_precision

_BY_WEIGHTS_ALONE = "int4"
"""Products of such layers are of floats: the engine tells the floats' type."""


@dataclass(frozen=True)
class Proven:
    """What was found.

    Attributes:
        planned: Layers that should compute in the asked precision.
        reached: Those that do.
        proof: For the manifest.
        warnings: What the user should know.
    """

    planned: int
    reached: int
    proof: dict[str, object]
    warnings: Sequence[str] = ()


def prove(
    adapter: Adapter,
    request: BuildRequest,
    layers: Sequence[ComputeLayer],
    inspections: Sequence[Inspection],
    *,
    weak: bool,
) -> Proven:
    """Compare what was asked for with the network, and with the engine where one could be inspected.

    Args:
        adapter: Which TensorRT.
        request: What was asked for.
        layers: The network's layers that compute.
        inspections: The engine's own words, one for each profile; empty where no GPU is here to ask it.
        weak: Whether TensorRT chooses types by itself.
    """
    wanted = "fp32" if request.precision == "tf32" else request.precision
    in_graph = adapter.graph_precision(request.precision)
    chooses = weak and (in_graph != wanted or request.calibration is not None)
    planned = [
        layer
        for layer in layers
        if request.layers.get(layer.name, wanted) == wanted and (chooses or layer.precision == wanted)
    ]
    weighted = weighted_nodes(read_outline(Path(request.model)).model)
    promised = len(planned) if chooses else max(len(weighted.get(in_graph, ())), len(planned))
    first = inspections[0].as_json() if inspections else {}
    if not inspections or wanted == _BY_WEIGHTS_ALONE:
        found = dict.fromkeys((layer.name for layer in planned), UNTOLD if chooses else wanted)
        return Proven(
            promised,
            0 if chooses else len(planned),
            {"layers_by_precision": _counted(layers, found, request), "typing": _typing(weak)} | first,
        )
    verdict = judge(planned, wanted, inspections)
    told = dict.fromkeys(verdict.untold, UNTOLD if chooses else wanted)
    told |= dict.fromkeys(verdict.reached, wanted) | verdict.fell_back
    return Proven(
        promised,
        len(planned) - len(verdict.fell_back),
        {
            "layers_by_precision": _counted(layers, told, request),
            "typing": _typing(weak),
            "fell_back": {name: _why(name, kind, wanted, weak) for name, kind in verdict.fell_back.items()},
            "untold": len(verdict.untold),
            **first,
        },
        _warnings(verdict, chooses),
    )


def _counted(
    layers: Sequence[ComputeLayer], told: Mapping[str, str], request: BuildRequest
) -> dict[str, dict[str, int]]:
    found = [replace(layer, precision=told.get(layer.name, layer.precision)) for layer in layers]
    if request.precision == "tf32":
        found = [replace(one, precision="tf32") if one.precision == "fp32" else one for one in found]
    return by_precision(found)


def _typing(weak: bool) -> str:
    return "weak" if weak else "strong"


def _why(name: str, kind: str, wanted: str, weak: bool) -> str:
    if weak:
        return f"{kind}: it had no {wanted} kernel or timed it slower; --layer '{name}={wanted}' forces it"
    return f"{kind}: TensorRT did not fuse its Q/DQ into a {wanted} kernel"


def _warnings(verdict: Verdict, chooses: bool) -> list[str]:
    if not (verdict.untold and chooses):
        return []
    return [
        f"of {len(verdict.untold)} layers inside fused blocks TensorRT tells no precision; "
        "its weak types permit a slower one"
    ]
