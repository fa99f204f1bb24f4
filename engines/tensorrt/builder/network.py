"""Parse an ONNX file into TensorRT's network, with errors that name the node, and mark tensors in it.

Debug tensors are what an engine can show while it runs (TensorRT 10 and newer). `markDebug` keeps a tensor
out of fusions; `markUnfusedTensorsAsDebugTensors` (10.12 and newer) does not, and shows what the builder left
unfused, by the names that the inspector has (NvInfer.h, release/10.16).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import BuildError, InvalidOption, UnsupportedOperator
from ....model.onnx_file import load_onnx, opset
from ...base import BuildRequest
from ..adapter import Adapter, member_name
from ..log import Log, last_error, setting
from .inspector import in_metadata

if TYPE_CHECKING:
    import onnx


FLOATS = ("FLOAT", "HALF", "BF16")
_TYPES = {"fp32": "FLOAT", "fp16": "HALF", "bf16": "BF16", "int8": "INT8"}
_NAMESPACE = "namespace"
"""Node metadata of PyTorch's exporter: the path of modules the node comes from."""
_NUMBERED = re.compile(r"(.+)_\d+")


def parse(
    adapter: Adapter, network: Any, log: Log, path: Path, *, shown: str = "", portable: bool = False
) -> Any:
    """Parse an ONNX file into a network and return the parser, which holds the weights until the build.

    `shown` is how messages name the file, `portable` whether the engine is version or hardware compatible,
    which the plugin that 8.6 makes of InstanceNormalization is not (NvOnnxParser.h of 8.6-GA,
    kNATIVE_INSTANCENORM; trtexec sets it).
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
    raise _refused(adapter, errors[0], load_onnx(path, external_data=False), shown or str(path))


def _refused(adapter: Adapter, error: Any, model: onnx.ModelProto, shown: str) -> UnsupportedOperator:
    nodes = model.graph.node
    refused = nodes[error.node()] if 0 <= error.node() < len(nodes) else None
    name = error.node_name() if hasattr(error, "node_name") else ""
    operator = error.node_operator() if hasattr(error, "node_operator") else ""
    if name and refused is not None and refused.name != name:
        refused = next((node for node in nodes if node.name == name), None)
    if refused is not None:
        operator = operator or refused.op_type
        name = name or refused.name or f"making {', '.join(refused.output)}"
    module = _module_path(refused) if refused is not None else ""
    where = f" (PyTorch module {module})" if module else ""
    return UnsupportedOperator(
        f"{shown}: {adapter.name} refuses {operator or 'the graph'} {name!r} of opset {opset(model)}{where}: "
        f"{' '.join(str(error.desc()).split())}",
        hint="simplify first; a graph quantized for ONNX Runtime must be quantized for tensorrt; "
        "an operator of its own needs `plugins`",
        operator=operator,
        node=name,
        module=module,
    )


def _module_path(node: onnx.NodeProto) -> str:
    """`layer4.1.conv2`, of the exporter's ": Net/layer4: Sequential/layer4.1.conv2: Conv2d/conv2d: aten"."""
    for entry in node.metadata_props:
        if entry.key == _NAMESPACE:
            scopes = [part.split(":")[0].strip() for part in entry.value.split("/")]
            return next((scope for scope in reversed(scopes[:-1]) if scope), "")
    return ""


def set_formats(adapter: Adapter, network: Any, log: Log, formats: Mapping[str, tuple[str, str]]) -> None:
    """Set the memory formats of inputs and outputs; their types are in the graph already."""
    outputs = map(network.get_output, range(network.num_outputs))
    tensors = {tensor.name: tensor for tensor in (*network_inputs(network), *outputs)}
    members = adapter.module.TensorFormat.__members__
    for name, (_, spelled) in formats.items():
        if name not in tensors:
            raise InvalidOption(f"`io_formats`: no input or output {name!r}; there are {', '.join(tensors)}")
        if not spelled:
            continue
        if spelled.upper() not in members:
            known = f"format {spelled!r}; it has {', '.join(sorted(members)).lower()}"
            raise InvalidOption(f"`io_formats` {name}: {adapter.name} has no {known}")
        with setting(log, f"`io_formats` {name}={spelled}", adapter.name):
            tensors[name].allowed_formats = 1 << int(members[spelled.upper()])


def network_inputs(network: Any) -> list[Any]:
    """Return the input tensors of a network."""
    return [*map(network.get_input, range(network.num_inputs))]


def layer_outputs(network: Any) -> list[tuple[Any, Any]]:
    """Return each tensor that a layer of a network computes, and the layer."""
    layers = map(network.get_layer, range(network.num_layers))
    return [(layer.get_output(index), layer) for layer in layers for index in range(layer.num_outputs)]


def keep_layers(adapter: Adapter, network: Any, config: Any, log: Log, request: BuildRequest) -> list[str]:
    """Force layers of a weakly typed network to the precisions of a request.

    Layers that compute integers or booleans, or on shapes, are left alone, as trtexec leaves them
    (samples/common/sampleEngines.cpp of release/8.5, setLayerPrecisions). Returned is what was not found, as
    sentences: the parser folds constants, and leaves no layer of such a node. It is refused where the user
    gave the layer by its name, and not by a pattern.
    """
    spec, layers = request.spec, request.layers
    if not layers:
        return []
    by_node = _layers_by_node(network, layers)
    missing = [name for name in layers if name not in by_node]
    exact = {*spec.layer_precisions, *spec.exclude, *spec.only} & set(missing)
    if not by_node or exact:
        named = [name for name in missing if name in exact] or missing
        raise InvalidOption(f"`layers`: the network has no layer {', '.join(named)}", option="layers")
    for name, layers_of_node in by_node.items():
        for layer in layers_of_node:
            _force(adapter, layer, layers[name], log)
    flag = "PREFER" if spec.tensorrt.precision_constraints == "prefer" else "OBEY"
    config.set_flag(adapter.flag(f"{flag}_PRECISION_CONSTRAINTS", "`layers`"))
    if not missing:
        return []
    return [f"{len(missing)} of {len(layers)} named layers are not in the network: {', '.join(missing)}"]


def _layers_by_node(network: Any, names: Collection[str]) -> dict[str, list[Any]]:
    """ONNX node to the layers that the parser made of it.

    The first has its name, further ones a number behind it (ImporterContext::registerLayer); from 8.6 on each
    says in its metadata which node it is of ("[ONNX Layer: NAME]").
    """
    made: dict[str, list[Any]] = {}
    for layer in map(network.get_layer, range(network.num_layers)):
        numbered = _NUMBERED.fullmatch(layer.name)
        candidates = [layer.name, in_metadata(layer), numbered[1] if numbered else ""]
        name = next((one for one in candidates if one in names), "")
        if name:
            made.setdefault(name, []).append(layer)
    return made


def _force(adapter: Adapter, layer: Any, precision: str, log: Log) -> None:
    """Force a layer whose outputs are floats, and no shape; others are left alone."""
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
        for index in floats if precision != "int8" else ():  # an int8 output would need a range of its own
            layer.set_output_type(index, dtype)


def marks_unfused(adapter: Adapter) -> bool:
    """Whether this TensorRT can show tensors without keeping them out of fusions."""
    return hasattr(adapter.module.INetworkDefinition, "mark_unfused_tensors_as_debug_tensors")


def mark_debug_tensors(adapter: Adapter, network: Any, names: Sequence[str] | None) -> None:
    """Mark tensors by their names, or with None those that will not be fused."""
    if names is None:
        if not marks_unfused(adapter) or not network.mark_unfused_tensors_as_debug_tensors():
            raise InvalidOption(f"debug tensors: {adapter.name} marks no unfused tensors")
        return
    if not names:
        return
    if not hasattr(network, "mark_debug"):
        raise InvalidOption(f"debug tensors: {adapter.name} has none; TensorRT 10 or newer has")
    for tensor, _ in layer_outputs(network):
        if tensor.name in names and not network.mark_debug(tensor):
            raise InvalidOption(f"debug tensors: {adapter.name} does not mark {tensor.name!r}")
