"""Compare an engine with the request, by the network's types and the engine inspector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ....model.graph import weighted_nodes
from ....model.weightless import read_weightless
from ....spec.words import BLOCK_FORMATS
from ...base import BuildRequest, Planned
from ..adapter import Adapter
from .engine_layers import UNREPORTED
from .inspector import Inspection
from .narrowed import narrowed_layers
from .proof import ComputeLayer, by_precision
from .stored_weights import widest_share
from .verdict import Verdict, judge

if TYPE_CHECKING:
    import onnx

_BY_WEIGHTS_ALONE = "int4"
"""Products of such layers are of floats: the engine tells the floats' type."""
_FLOATS = ("fp32", "fp16", "bf16")
_TOLD_AS = {"nvfp4": "fp4", "mxfp8": "fp8"}
"""How the inspector can spell block formats: by the types of their values in NvInferRuntimeBase.h."""
_BINDING = "no other type is permitted: the network's are binding, or no flag allows one"
_UNASKED = "no GPU is here to ask the engine"


@dataclass(frozen=True)
class Proven:
    """What was found.

    Attributes:
        planned: Layers that should compute in the asked precision.
        reached: Those that do: the engine tells it, or, where none can be asked, the strong types.
        proof: For the manifest.
        layers: The planned ones by name.
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
    plan_bytes: int = 0,
) -> Proven:
    """Compare what was asked for with the network, and with the engine where one could be inspected.

    Args:
        adapter: Which TensorRT.
        request: What was asked for.
        layers: The network's layers that compute.
        inspections: The engine's own words, one for each profile; empty where no GPU is here to ask it.
        weak: Whether TensorRT chooses types by itself.
        plan_bytes: Size of the engine; 0 where it says nothing of the weights.
    """
    precision = "fp32" if request.precision == "tf32" else request.precision
    in_graph = adapter.graph_precision(request.precision)
    chooses = weak and (in_graph != precision or bool(request.spec.calibrator))
    planned = [
        layer
        for layer in layers
        if request.layers.get(layer.name, precision) == precision
        and (chooses or layer.precision == precision)
    ]
    weighted = weighted_nodes(read_weightless(Path(request.model)).model)
    promised = len(planned) if chooses else max(len(weighted.get(in_graph, ())), len(planned))
    lost = {} if chooses else _lost(weighted.get(in_graph, ()), layers, planned)
    if (not inspections and not chooses) or precision == _BY_WEIGHTS_ALONE:
        verdict = Verdict(reached=[layer.name for layer in planned])
    elif not inspections:
        verdict = Verdict(unreported=dict.fromkeys(_names(planned), _UNASKED))
    else:
        verdict = judge(planned, _TOLD_AS.get(precision, precision), inspections)
    told = dict.fromkeys(verdict.unreported, UNREPORTED)
    told |= dict.fromkeys(verdict.reached, precision) | verdict.fell_back
    half = request.spec.float_precision if precision in ("int8", "fp8") else precision
    narrowed = [] if weak else _narrowed(request, layers, half)
    told |= dict.fromkeys(narrowed, half)
    fell_back = {name: _why(name, kind, precision, weak) for name, kind in verdict.fell_back.items()}
    unproven, evidence = _other_evidence(request, verdict, precision, plan_bytes, chooses=chooses)
    return Proven(
        promised,
        len(verdict.reached),
        {
            "layers_by_precision": _counted(layers, told, request),
            "typing": "weak" if weak else "strong",
            **({"fell_back": fell_back} if inspections else {}),
            **(inspections[0].as_json() if inspections else {}),
        },
        Planned((*_names(planned), *lost), {**lost, **fell_back}, verdict.unreported, unproven, evidence),
        [*_problems(inspections), *_not_kept(narrowed, half)],
    )


def _other_evidence(
    request: BuildRequest, verdict: Verdict, precision: str, plan_bytes: int, *, chooses: bool
) -> tuple[float, str]:
    """The share of the unreported layers that can be in another precision, and what says so."""
    if not verdict.unreported:
        return 1.0, ""
    if precision in _FLOATS and not chooses:
        return 0.0, _BINDING
    options = request.spec.tensorrt
    if not plan_bytes or options.strip_weights or options.sparse_weights or precision == "fp32":
        return 1.0, ""
    wide = request.spec.float_precision if precision in ("int8", "fp8", *BLOCK_FORMATS) else "fp32"
    share = widest_share(
        Path(request.model), set(verdict.unreported), plan_bytes, narrow=precision, wide=wide
    )
    if share is None:
        return 1.0, ""
    return share, f"by the engine's size at most {share:.0%} of their weights are in {wide}"


def _narrowed(request: BuildRequest, layers: Sequence[ComputeLayer], half: str) -> list[str]:
    kept = [layer.name for layer in layers if layer.precision == "fp32"]
    return narrowed_layers(Path(request.model), kept, request.output, half)


def _not_kept(narrowed: Sequence[str], half: str) -> list[str]:
    if not narrowed:
        return []
    return [
        f"the graph has these layers in fp32, and TensorRT stores their weights in {half}: "
        f"{', '.join(narrowed)}; they stay in fp32 where the layer behind each is in fp32, too (`layers`)"
    ]


def _problems(inspections: Sequence[Inspection]) -> list[str]:
    found = dict.fromkeys(one.problem for one in inspections if one.problem)
    return [f"TensorRT's inspector does not say what is in the engine: {problem}" for problem in found]


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


def _why(name: str, kind: str, precision: str, weak: bool) -> str:
    if weak:
        forced = f"`layers` '{name}={precision}' forces it"
        return f"{kind}: it had no {precision} kernel or timed it slower; {forced}"
    if precision in _FLOATS:
        return f"{kind}: the inspector tells it, although the network's type is {precision}"
    return f"{kind}: TensorRT did not fuse its Q/DQ into a {precision} kernel"
