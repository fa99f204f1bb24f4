"""Parse an ONNX file into TensorRT's network, and compare the precision of its layers with the request.

In a strongly typed network the tensor types are binding, so the parsed network shows, without a GPU, which
types will run. In a weakly typed network TensorRT chooses the types, so the built engine is inspected in each
profile (`inspector`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ....errors import BuildError, InvalidOption
from ....model.graph.graph import weighted_nodes
from ....model.graph.onnx_file import read_graph
from ...base import BuildRequest, PlannedLayers
from ..adapter import Adapter, member_name
from ..log import Log, last_error, setting
from .inspector import UNREPORTED, EngineLayer, Inspection, node_in_metadata
from .refusals import refusal

FLOATS = ("FLOAT", "HALF", "BF16")
_TYPES = {"fp32": "FLOAT", "fp16": "HALF", "bf16": "BF16", "int8": "INT8"}
_NUMBERED = re.compile(r"(.+)_\d+")


def parse(
    adapter: Adapter, network: Any, log: Log, path: Path, *, shown: str = "", portable: bool = False
) -> Any:
    """Parse an ONNX file into a network and return the parser, which holds the weights until the build.

    `shown` is the file's name in messages. With `portable`, the engine is for other versions or
    hardware, too, and must not contain TensorRT 8.6's plugin for InstanceNormalization (NvOnnxParser.h of
    8.6-GA, kNATIVE_INSTANCENORM; trtexec sets this flag).
    """
    parser = adapter.module.OnnxParser(network, log.logger)
    if portable and hasattr(adapter.module, "OnnxParserFlag"):
        parser.set_flag(adapter.module.OnnxParserFlag.NATIVE_INSTANCENORM)
    if parser.parse_from_file(str(path)):
        return parser
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    if not errors:
        reason = last_error(log, "no reason given")
        raise BuildError(f"{shown or path}: {adapter.name} cannot parse it: {reason}")
    raise refusal(adapter, errors[0], read_graph(path).model, shown or str(path))


def set_formats(adapter: Adapter, network: Any, log: Log, formats: Mapping[str, tuple[str, str]]) -> None:
    """Set the memory formats of inputs and outputs; the graph already has their types."""
    outputs = map(network.get_output, range(network.num_outputs))
    tensors = {tensor.name: tensor for tensor in (*network_inputs(network), *outputs)}
    members = adapter.module.TensorFormat.__members__
    for name, (_, spelled) in formats.items():
        if name not in tensors:
            raise InvalidOption(f"`io_formats`: no input or output {name!r}; there are {', '.join(tensors)}")
        if not spelled:
            continue
        if spelled.upper() not in members:
            formats_here = f"format {spelled!r}; it has {', '.join(sorted(members)).lower()}"
            raise InvalidOption(f"`io_formats` {name}: {adapter.name} has no {formats_here}")
        with setting(log, f"`io_formats` {name}={spelled}", adapter.name):
            tensors[name].allowed_formats = 1 << int(members[spelled.upper()])


def network_inputs(network: Any) -> list[Any]:
    return [*map(network.get_input, range(network.num_inputs))]


def layer_outputs(network: Any) -> list[tuple[Any, Any]]:
    layers = map(network.get_layer, range(network.num_layers))
    return [(layer.get_output(index), layer) for layer in layers for index in range(layer.num_outputs)]


def force_layer_precisions(
    adapter: Adapter, network: Any, config: Any, log: Log, request: BuildRequest
) -> list[str]:
    """Force layers of a weakly typed network to the requested precisions.

    Layers that compute integers, booleans or shapes are not changed, as in trtexec
    (samples/common/sampleEngines.cpp of release/8.5, setLayerPrecisions). Returns a warning about nodes
    without a layer, because the parser folds constants. Raises InvalidOption if no node has a layer, or if
    the user gave the exact name of a node without a layer.
    """
    spec, layers = request.spec, request.layers
    if not layers:
        return []
    by_node = _layers_by_node(network, layers)
    missing = [name for name in layers if name not in by_node]
    exact = {*spec.layer_precisions, *spec.exclude, *spec.only} & set(missing)
    if not by_node or exact:
        reported = [name for name in missing if name in exact] or missing
        raise InvalidOption(f"`layers`: the network has no layer {', '.join(reported)}", option="layers")
    for name, layers_of_node in by_node.items():
        for layer in layers_of_node:
            _force(adapter, layer, layers[name], log)
    flag = "PREFER" if spec.tensorrt.precision_constraints == "prefer" else "OBEY"
    config.set_flag(adapter.flag(f"{flag}_PRECISION_CONSTRAINTS", "`layers`"))
    if not missing:
        return []
    return [f"{len(missing)} of {len(layers)} named layers are not in the network: {', '.join(missing)}"]


def _layers_by_node(network: Any, names: Collection[str]) -> dict[str, list[Any]]:
    """Return the layers that the parser created for each ONNX node, by the node's name.

    The first layer has the node's name; later layers add a numeric suffix (ImporterContext::registerLayer).
    From 8.6 on, each layer's metadata names its node ("[ONNX Layer: NAME]").
    """
    by_node: dict[str, list[Any]] = {}
    for layer in map(network.get_layer, range(network.num_layers)):
        numbered = _NUMBERED.fullmatch(layer.name)
        candidates = [layer.name, node_in_metadata(layer), numbered[1] if numbered else ""]
        name = next((candidate for candidate in candidates if candidate in names), "")
        if name:
            by_node.setdefault(name, []).append(layer)
    return by_node


def _force(adapter: Adapter, layer: Any, precision: str, log: Log) -> None:
    kind, option = _TYPES[precision], f"`layers` {layer.name}={precision}"
    outputs = [*map(layer.get_output, range(layer.num_outputs))]
    first = [layer.get_input(0)] if layer.num_inputs else []
    if any(tensor is not None and tensor.is_shape_tensor for tensor in (*first, *outputs)):
        return
    floats = [index for index, tensor in enumerate(outputs) if member_name(tensor.dtype) in FLOATS]
    if not floats:
        return
    if not hasattr(adapter.module.DataType, kind):
        raise adapter.lacks(option, f"type {kind}")
    dtype = getattr(adapter.module.DataType, kind)
    with setting(log, option, adapter.name):
        layer.precision = dtype
        for index in floats if precision != "int8" else ():  # an INT8 output would need a dynamic range
            layer.set_output_type(index, dtype)


def can_mark_unfused_tensors(adapter: Adapter) -> bool:
    return hasattr(adapter.module.INetworkDefinition, "mark_unfused_tensors_as_debug_tensors")


def mark_debug_tensors(adapter: Adapter, network: Any, names: Sequence[str] | None) -> None:
    """Mark the tensors that an engine can show while it runs: those in `names`; None means all unfused ones.

    `markDebug` prevents a tensor's fusion. `markUnfusedTensorsAsDebugTensors` (10.12 and newer) does not: it
    shows only tensors that are not fused, under the inspector's names (NvInfer.h, release/10.16).
    """
    if names is None:
        if not can_mark_unfused_tensors(adapter) or not network.mark_unfused_tensors_as_debug_tensors():
            raise InvalidOption(f"debug tensors: {adapter.name} marks no unfused tensors")
        return
    if not names:
        return
    if not hasattr(network, "mark_debug"):
        raise InvalidOption(f"debug tensors: {adapter.name} has none; TensorRT 10 is required")
    for tensor, _ in layer_outputs(network):
        if tensor.name in names and not network.mark_debug(tensor):
            raise InvalidOption(f"debug tensors: {adapter.name} does not mark {tensor.name!r}")


_COMPUTES = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
_MOVES = ("SHUFFLE", "IDENTITY", "SQUEEZE", "UNSQUEEZE", "SLICE")
_NAMES = {
    "FLOAT": "fp32", "HALF": "fp16", "BF16": "bf16", "INT8": "int8", "FP8": "fp8", "INT4": "int4",
    "FP4": "nvfp4", "E8M0": "mxfp8",
}  # fmt: skip


@dataclass(frozen=True)
class ComputeLayer:
    """A network layer that does arithmetic: the parser's name, the kind ("CONVOLUTION", "DECONVOLUTION" or
    "MATRIX_MULTIPLY"), the precision of the operands, and the ONNX node ("" in TensorRT 8.5)."""

    name: str
    kind: str
    precision: str
    node: str = ""


def compute_layers(network: Any) -> list[ComputeLayer]:
    """Return the layers that do arithmetic, with their precision in the network.

    A layer computes in INT8, FP8, NVFP4 or MXFP8 if each operand comes from a DEQUANTIZE layer. Only layers
    that move data and, for NVFP4, a CAST (as Model-Optimizer writes it) may be in between. "int4" means that
    only the weights have 4 bits. All other layers compute in the type of their first operand.
    """
    producers = {tensor.name: layer for tensor, layer in layer_outputs(network) if tensor is not None}
    return [
        ComputeLayer(layer.name, kind, _precision(layer, producers), node_in_metadata(layer))
        for layer in map(network.get_layer, range(network.num_layers))
        if (kind := member_name(layer.type)) in _COMPUTES
    ]


def by_precision(layers: Sequence[ComputeLayer]) -> dict[str, dict[str, int]]:
    precisions: dict[str, Counter[str]] = {}
    for layer in layers:
        precisions.setdefault(layer.precision, Counter())[layer.kind] += 1
    return {precision: dict(counts) for precision, counts in precisions.items()}


def _precision(layer: Any, producers: dict[str, Any]) -> str:
    operands = [layer.get_input(index) for index in range(min(layer.num_inputs, 2))]
    operands = [tensor for tensor in operands if tensor is not None]
    stored = [_quantized_type(tensor, producers) for tensor in operands]
    if len(stored) == 2 and stored[1] == "INT4":
        return "int4"
    dtype = stored[0] if len(stored) == 2 and all(stored) else member_name(operands[0].dtype)
    return _NAMES.get(dtype, dtype.lower())


def _quantized_type(tensor: Any, producers: dict[str, Any]) -> str:
    """Return the type from which a tensor is dequantized (for MXFP8, of the scales); "" if not dequantized.

    TensorRT 8 quantizes only to INT8, and reports quantized tensors as FLOAT until the build:
    "x_QuantizeLinear_Output -> (-1, 16, 16, 16)[FLOAT]" (its parser's log at 8.5.3.1 on an H200, 2026-11-28).
    """
    layer, cast = producers.get(tensor.name), False
    while layer is not None and (kind := member_name(layer.type)) in (*_MOVES, "CAST"):
        cast = cast or kind == "CAST"
        layer = producers.get(layer.get_input(0).name)
    if layer is None or member_name(layer.type) != "DEQUANTIZE":
        return ""
    stored = member_name(layer.get_input(0).dtype)
    if stored in FLOATS:
        stored = "INT8"
    if stored == "FP8" and member_name(layer.get_input(1).dtype) == "E8M0":
        stored = "E8M0"
    return "" if cast and stored != "FP4" else stored


@dataclass
class Verdict:
    """Names of network layers. `reached` have the planned precision in the engine. `fell_back` maps layers
    with another precision to that precision; `unreported` maps the others to a reason."""

    reached: list[str] = field(default_factory=list)
    fell_back: dict[str, str] = field(default_factory=dict)
    unreported: dict[str, str] = field(default_factory=dict)


def judge(planned: Sequence[ComputeLayer], precision: str, inspections: Sequence[Inspection]) -> Verdict:
    """A planned layer has reached the precision if all profiles that report the layer's precision agree."""
    verdict = Verdict()
    problem = next((inspection.problem for inspection in inspections if inspection.problem), "")
    has_blocks = any(item.is_block for inspection in inspections for item in inspection.layers)
    for layer in planned:
        matches = [item for inspection in inspections for item in _engine_layers(layer, inspection.layers)]
        precisions = {item.precision for item in matches} - {UNREPORTED}
        if not precisions:
            if any(item.is_block for item in matches):
                reason = "inside a fused block: TensorRT reports no precision"
            elif matches:
                reason = "TensorRT reports no type"
            elif problem:
                reason = f"TensorRT's inspector: {problem}"
            elif has_blocks:
                reason = "inside a fused block, which names only its first and last layer"
            else:
                reason = "the engine does not name it"
            verdict.unreported[layer.name] = reason
        elif precisions == {precision}:
            verdict.reached.append(layer.name)
        else:
            verdict.fell_back[layer.name] = ", ".join(sorted(precisions - {precision}))
    return verdict


def _engine_layers(layer: ComputeLayer, layers: Sequence[EngineLayer]) -> list[EngineLayer]:
    """Return the engine layers that multiply for a network layer, else fused blocks with the layer's name,
    else all with this name. A kernel that only adds the layer's bias can have the name, too (from 10 on)."""
    matching = [item for item in layers if item.members.has(layer.name, layer.node)]
    products = [item for item in matching if item.multiplies and not item.is_block]
    return products or [item for item in matching if item.is_block] or matching


_ONLY_WEIGHTS = "int4"
"""Layers of this precision multiply floats, and the engine reports the floats' type."""
_FLOATS = ("fp32", "fp16", "bf16")
_INSPECTOR_NAMES = {"nvfp4": "fp4", "mxfp8": "fp8"}
"""Maps block formats to possible names in the inspector: the types of values in NvInferRuntimeBase.h."""
_BINDING = "no other type is permitted: the network's types are binding, or no builder flag permits another"
_REQUESTED = "requested by Q/DQ or flags; TensorRT reports no types inside fused layers"
_NOT_INSPECTED = "this machine has no GPU to inspect the engine"


def verify_precision(
    adapter: Adapter,
    request: BuildRequest,
    layers: Sequence[ComputeLayer],
    inspections: Sequence[Inspection],
    *,
    weak: bool,
) -> tuple[PlannedLayers, int, int, dict[str, object]]:
    """Compare the request with the network and, if a GPU is present, with the engine in each profile.

    Returns the planned layers, how many layers should compute in the precision, how many do (by the
    inspection or else the network's types), and these results for the manifest.
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
    planned_names = tuple(dict.fromkeys(layer.name for layer in planned))
    nodes = () if chooses else weighted_nodes(request.onnx.model).get(in_graph, ())
    # The parser may rename layers: a node is missing only if the network has fewer layers in the precision.
    states = {layer.name: f"in TensorRT's network it is {layer.precision}" for layer in layers}
    absent = [node.name for node in nodes if node.name not in planned_names]
    absent.sort(key=lambda name: name not in states)
    missing = max(len(nodes) - len(planned), 0)
    missing_nodes = {name: states.get(name, "not in TensorRT's network") for name in absent[:missing]}
    if (not inspections and not chooses) or precision == _ONLY_WEIGHTS:
        verdict = Verdict(reached=[layer.name for layer in planned])
    elif not inspections:
        verdict = Verdict(unreported=dict.fromkeys(planned_names, _NOT_INSPECTED))
    else:
        verdict = judge(planned, _INSPECTOR_NAMES.get(precision, precision), inspections)
    precisions = dict.fromkeys(verdict.unreported, UNREPORTED)
    precisions |= dict.fromkeys(verdict.reached, precision) | verdict.fell_back
    fell_back = {name: _reason(name, kind, precision, weak) for name, kind in verdict.fell_back.items()}
    binding = precision in _FLOATS and not chooses
    evidence = (_BINDING if binding else _REQUESTED) if verdict.unreported else ""
    counted = [replace(layer, precision=precisions.get(layer.name, layer.precision)) for layer in layers]
    if request.precision == "tf32":
        counted = [replace(item, precision="tf32") if item.precision == "fp32" else item for item in counted]
    proof: dict[str, object] = {
        "layers_by_precision": by_precision(counted),
        "typing": "weak" if weak else "strong",
    }
    if inspections:
        proof |= {"fell_back": fell_back, **inspections[0].as_json()}
    names, missed = (*planned_names, *missing_nodes), {**missing_nodes, **fell_back}
    by_name = PlannedLayers(names, missed, verdict.unreported, not binding, evidence)
    return by_name, max(len(nodes), len(planned)), len(verdict.reached), proof


def _reason(name: str, kind: str, precision: str, weak: bool) -> str:
    if weak:
        forced = f"`layers` '{name}={precision}' forces it"
        return f"{kind}: it had no {precision} kernel or timed it slower; {forced}"
    if precision in _FLOATS:
        return f"{kind}: the inspector reports it, although the network's type is {precision}"
    return f"{kind}: TensorRT did not fuse its Q/DQ into a {precision} kernel"
