"""Whether an engine is what was asked for: the network's types, and what the engine tells of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ....model.graph import weighted_nodes
from ....model.weightless import read_weightless
from ...base import BuildRequest, Planned
from ..adapter import Adapter
from .inspector import UNREPORTED, Inspection, Verdict, judge
from .proof import ComputeLayer, by_precision

if TYPE_CHECKING:
    import onnx

_BY_WEIGHTS_ALONE = "int4"
"""Products of such layers are of floats: the engine tells the floats' type."""


@dataclass(frozen=True)
class Proven:
    """What was found.

    Attributes:
        planned: Layers that should compute in the asked precision.
        reached: Those that do.
        proof: For the manifest.
        layers: The planned ones by name. What TensorRT does not tell of a fused block is no part of
            `unreported`: with strong types the network's are binding, with weak ones a warning says it.
        warnings: What the user should know.
    """

    planned: int
    reached: int
    proof: dict[str, object]
    layers: Planned
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
    precision = "fp32" if request.precision == "tf32" else request.precision
    in_graph = adapter.graph_precision(request.precision)
    chooses = weak and (in_graph != precision or request.calibration is not None)
    planned = [
        layer
        for layer in layers
        if request.layers.get(layer.name, precision) == precision
        and (chooses or layer.precision == precision)
    ]
    weighted = weighted_nodes(read_weightless(Path(request.model)).model)
    promised = len(planned) if chooses else max(len(weighted.get(in_graph, ())), len(planned))
    lost = {} if chooses else _lost(weighted.get(in_graph, ()), layers, planned)
    first = inspections[0].as_json() if inspections else {}
    if not inspections or precision == _BY_WEIGHTS_ALONE:
        precisions = dict.fromkeys((layer.name for layer in planned), UNREPORTED if chooses else precision)
        return Proven(
            promised,
            0 if chooses else len(planned),
            {"layers_by_precision": _counted(layers, precisions, request), "typing": _typing(weak)} | first,
            Planned((*_names(planned), *lost), lost),
        )
    verdict = judge(planned, precision, inspections)
    told = dict.fromkeys(verdict.unreported, UNREPORTED if chooses else precision)
    told |= dict.fromkeys(verdict.reached, precision) | verdict.fell_back
    fell_back = {name: _why(name, kind, precision, weak) for name, kind in verdict.fell_back.items()}
    return Proven(
        promised,
        len(planned) - len(verdict.fell_back),
        {
            "layers_by_precision": _counted(layers, told, request),
            "typing": _typing(weak),
            "fell_back": fell_back,
            "untold": len(verdict.unreported),
            **first,
        },
        Planned((*_names(planned), *lost), {**lost, **fell_back}),
        _warnings(verdict, chooses),
    )


def _names(layers: Sequence[ComputeLayer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(layer.name for layer in layers))


def _lost(
    nodes: Sequence[onnx.NodeProto], layers: Sequence[ComputeLayer], planned: Sequence[ComputeLayer]
) -> dict[str, str]:
    """Nodes of the graph that the parsed network has in another precision than the graph, or not at all.

    The parser may name a layer otherwise: where it has as many layers in the precision as the graph, none is
    lost.
    """
    missing = len(nodes) - len(planned)
    names, by_name = set(_names(planned)), {layer.name: layer for layer in layers}
    lost: dict[str, str] = {}
    absent = [node.name for node in nodes if node.name not in names]
    for name in sorted(absent, key=lambda name: name not in by_name)[: max(missing, 0)]:
        layer = by_name.get(name)
        lost[name] = (
            f"in TensorRT's network it is {layer.precision}" if layer else "not in TensorRT's network"
        )
    return lost


def _counted(
    layers: Sequence[ComputeLayer], told: Mapping[str, str], request: BuildRequest
) -> dict[str, dict[str, int]]:
    counted = [replace(layer, precision=told.get(layer.name, layer.precision)) for layer in layers]
    if request.precision == "tf32":
        counted = [replace(one, precision="tf32") if one.precision == "fp32" else one for one in counted]
    return by_precision(counted)


def _typing(weak: bool) -> str:
    return "weak" if weak else "strong"


def _why(name: str, kind: str, precision: str, weak: bool) -> str:
    if weak:
        forced = f"`layers` '{name}={precision}' forces it"
        return f"{kind}: it had no {precision} kernel or timed it slower; {forced}"
    return f"{kind}: TensorRT did not fuse its Q/DQ into a {precision} kernel"


def _warnings(verdict: Verdict, chooses: bool) -> list[str]:
    if not (verdict.unreported and chooses):
        return []
    return [
        f"of {len(verdict.unreported)} layers inside fused blocks TensorRT tells no precision; "
        "its weak types permit a slower one"
    ]
