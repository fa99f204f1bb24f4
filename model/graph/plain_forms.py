"""Rewrite legal ONNX that readers misinterpret into plain forms, without a change of the results.

1. Extents of -1 become free. In ONNX a free extent has a name or no value (onnx.proto3, TensorShapeProto);
   paddle2onnx and others write -1, which ONNX Runtime reads as free.
2. Calls of the model's functions become the nodes of their bodies. ONNX's inliner (1.23) loses default
   attributes, which are copied to the calls first, and opset imports of functions, which are added again.
3. ONNX ignores windows of a pool that start after the end of the input; its shape inference (1.23), OpenVINO
   and TensorRT count these windows. Pads that end with the last window mean the same to all readers:

    MaxPool <ceil_mode=1, kernel_shape=[2], strides=[3], pads=[1,1]> (x [n,c,5])
    becomes
    MaxPool <kernel_shape=[2], strides=[3], pads=[1,0]> (x [n,c,5])

4. `output_shape` and `auto_pad` of a ConvTranspose become pads, because shape inference applies
   `output_shape` to all axes, and counts `output_padding` in addition to `auto_pad`.
5. Outputs without a type or shape get the inferred ones. An input without a shape gets the first of the ranks
   2 to 6, 1 and 0 that does not contradict inference.
6. Sparse initializers become dense, as in ONNX Runtime's memory.
7. The graph gets a name. Each domain, also ONNX's, gets exactly one opset import. Empty names at the end of
   inputs and outputs, and `value_info` without an element type, are removed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import ModelError, translate_errors
from ...spec.opsets import OLDEST
from .. import onnx
from .graph import (
    ONNX_DOMAINS,
    attribute,
    declared_shape,
    tensor_values,
    with_inferred,
    without_weights,
)
from .graph_edits import drop_attributes, refill, set_nodes
from .onnx_checks import MOST_INPUT_VALUES, every_graph, every_node, graphs_of

Extents = tuple[int | str, ...]

_POOLS = ("MaxPool", "AveragePool", "LpPool")
_SAME = ("SAME_UPPER", "SAME_LOWER")


def to_plain_forms(model: onnx.ModelProto) -> bool:
    """Rewrite a model in place; return whether anything changed. Large weights need not be loaded."""
    if not model.HasField("graph"):
        return False
    changed = [_tidy(model), _densify(model), inline_functions(model), _import_domains(model)]
    return any([*changed, _declare_inputs(model), _write_pads(model), _declare_outputs(model)])


def _tidy(model: onnx.ModelProto) -> bool:
    changed = not model.graph.name
    model.graph.name = model.graph.name or "graph"
    for node in every_node(model):
        for names in (node.input, node.output):
            while len(names) > 1 and not names[-1]:
                names.pop()
                changed = True
    for graph in graphs_of(model):
        noted = [value for value in graph.value_info if _is_typed(value)]
        if len(noted) < len(graph.value_info):
            refill(graph.value_info, noted)
            changed = True
    return changed


def _is_typed(value: onnx.ValueInfoProto) -> bool:
    is_tensor = value.type.WhichOneof("value") in (None, "tensor_type")
    return bool(value.type.tensor_type.elem_type) or not is_tensor


def _import_domains(model: onnx.ModelProto) -> bool:
    versions: dict[str, onnx.OperatorSetIdProto] = {}
    for item in model.opset_import:
        versions.setdefault(_domain(item.domain), item)
    versions.setdefault("", onnx.helper.make_opsetid("", OLDEST))
    changed = len(versions) != len(model.opset_import)
    if changed:
        refill(model.opset_import, versions.values())
    return changed


def _densify(model: onnx.ModelProto) -> bool:
    """Turn sparse initializers into dense ones, except those that are damaged, large or external."""
    graph, sparse = model.graph, list(model.graph.sparse_initializer)
    for tensor in sparse:
        external = onnx.TensorProto.EXTERNAL in (tensor.values.data_location, tensor.indices.data_location)
        if external or math.prod(tensor.dims) > MOST_INPUT_VALUES:
            continue
        with contextlib.suppress(ValueError, IndexError, TypeError):
            values, indices = tensor_values(tensor.values), tensor_values(tensor.indices)
            dense = np.zeros(tuple(tensor.dims), values.dtype)
            dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, dense.shape)] = values
            graph.initializer.append(onnx.numpy_helper.from_array(dense, tensor.values.name))
            graph.sparse_initializer.remove(tensor)
    return len(graph.sparse_initializer) < len(sparse)


_RANKS = (2, 3, 4, 5, 6, 1, 0)


def _declare_inputs(model: onnx.ModelProto) -> bool:
    """Give inputs without a shape a shape of free extents."""
    changed = False
    for index, value in enumerate(model.graph.input):
        if not _lacks_shape(value):
            continue
        light = without_weights(model)
        for rank in _RANKS:
            light.graph.input[index].type.tensor_type.shape.CopyFrom(_shape(("",) * rank))
            with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError):
                with_inferred(light, data_prop=True, strict=True)
                value.type.tensor_type.shape.CopyFrom(_shape(_with_channels(model.graph, value.name, rank)))
                changed = True
                break
    return changed


def _with_channels(graph: onnx.GraphProto, name: str, rank: int) -> Extents:
    """Return a shape of free extents, except for the channels of a Conv's input."""
    stored = {tensor.name: tensor.dims for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Conv" and node.input[0] == name and node.input[1] in stored:
            channels = stored[node.input[1]][1] * attribute(node, "group", 1)
            return ("", channels, *[""] * (rank - 2))
    return ("",) * rank


def free_extents(model: onnx.ModelProto) -> bool:
    """Remove extents of -1 in place; return whether any existed."""
    changed = False
    for part in graphs_of(model):
        for value in (*part.input, *part.output, *part.value_info):
            for dim in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
                if dim.dim_value == -1:
                    dim.ClearField("dim_value")
                    changed = True
    return changed


def inline_functions(model: onnx.ModelProto) -> bool:
    """Replace calls of a model's functions by their bodies; return whether the model has functions.

    Raises:
        ModelError: If ONNX's inliner refuses a function.
    """
    from onnx.inliner import inline_local_functions

    if not model.functions:
        return False
    functions = {(item.domain, item.name, item.overload): item for item in model.functions}
    for node in every_node(model):
        if function := functions.get((node.domain, node.op_type, node.overload)):
            present = {item.name for item in node.attribute}
            node.attribute.extend(item for item in function.attribute_proto if item.name not in present)
    imported = {_domain(item.domain): item.version for item in model.opset_import}
    for function in model.functions:
        for item in function.opset_import:  # the checker accepts another version only for equal operators
            item.version = imported.setdefault(_domain(item.domain), item.version)
    names = ", ".join(sorted({name for _, name, _ in functions}))
    hint = "export the model without functions of its own"
    with translate_errors(f"functions {names}: ONNX's inliner refuses them:", ModelError, hint=hint):
        inlined = inline_local_functions(without_weights(model))
    del model.functions[:]
    set_nodes(model.graph, inlined.graph.node)
    refill(model.graph.value_info, inlined.graph.value_info)
    used = {node.domain for node in every_node(model)}
    present = {_domain(item.domain) for item in model.opset_import}
    for domain, version in imported.items():
        if domain not in present and (domain in used or not domain):
            model.opset_import.add(domain=domain, version=version)
    return True


def _domain(name: str) -> str:
    return "" if name in ONNX_DOMAINS else name


def _write_pads(model: onnx.ModelProto) -> bool:
    """Write pads that all readers understand alike; correct declared shapes that were misread."""
    nodes = [node for graph in every_graph(model.graph) for node in graph.node if _is_mistaken(node)]
    if not nodes:
        return False
    mistaken = shapes = _inferred_shapes(model)
    changed = False
    while [node for node in nodes if _rewrite_pads(node, shapes)]:
        changed, shapes = True, _inferred_shapes(model)
    for graph in every_graph(model.graph) if changed else ():
        for value in (*graph.value_info, *graph.output):
            before, after = mistaken.get(value.name), shapes.get(value.name)
            declared = declared_shape(value)
            if before and after and _fit(declared, before) and not _fit(declared, after):
                value.type.tensor_type.shape.CopyFrom(_shape(after))
    return changed


def _is_mistaken(node: onnx.NodeProto) -> bool:
    """Return whether readers may infer other extents for a node than ONNX defines."""
    if node.domain not in ONNX_DOMAINS:
        return False
    if node.op_type == "ConvTranspose":
        padded = attribute(node, "auto_pad") in _SAME and any(attribute(node, "output_padding", []))
        return padded or attribute(node, "output_shape") is not None
    return node.op_type in _POOLS and attribute(node, "ceil_mode", 0) == 1


def _inferred_shapes(model: onnx.ModelProto) -> dict[str, Extents]:
    """Return the inferred shapes of a model and its subgraphs, without regard to declared ones."""
    light = without_weights(model)
    for graph in every_graph(light.graph):
        del graph.value_info[:]
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")
    shapes: dict[str, Extents] = {}
    for graph in every_graph(with_inferred(light, data_prop=True).graph):
        shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        values = (*graph.input, *graph.value_info, *graph.output)
        shapes |= {v.name: declared_shape(v) for v in values if v.type.tensor_type.HasField("shape")}
    return shapes


def _fit(declared: Sequence[int | str], inferred: Sequence[int | str]) -> bool:
    fixed = zip(declared, inferred, strict=False)
    return len(declared) == len(inferred) and all(a == b for a, b in fixed if {type(a), type(b)} == {int})


def _shape(extents: Extents) -> onnx.TensorShapeProto:
    dims = [None if extent == "" else extent for extent in extents]
    proto: onnx.TensorShapeProto = onnx.helper.make_tensor_type_proto(1, dims).tensor_type.shape
    return proto


def _rewrite_pads(node: onnx.NodeProto, shapes: Mapping[str, Extents]) -> bool:
    extents = shapes.get(node.input[0], ())[2:]
    kernel = attribute(node, "kernel_shape") or list(shapes.get("".join(node.input[1:2]), ())[2:])
    if not extents or len(extents) != len(kernel) or any(isinstance(extent, str) for extent in kernel):
        return False
    dilations, strides = (attribute(node, name) or [1] * len(kernel) for name in ("dilations", "strides"))
    reach = [dilation * (extent - 1) + 1 for extent, dilation in zip(kernel, dilations, strict=True)]
    if node.op_type == "ConvTranspose":
        if not _is_mistaken(node) or any(isinstance(extent, str) for extent in extents):
            return False
        return _pad_conv_transpose(node, extents, reach, strides)
    return _pad_pool(node, extents, reach, strides, dilations)


def _pad_pool(
    node: onnx.NodeProto, extents: Extents, reach: list[int], strides: list[int], dilations: list[int]
) -> bool:
    if not _is_mistaken(node) or attribute(node, "auto_pad") in _SAME:
        return False
    pads = attribute(node, "pads") or [0] * (2 * len(extents))
    begins, ends = pads[: len(extents)], list(pads[len(extents) :])
    needed: list[int | None] = []  # values after the input that the last window reads
    for axis, extent in enumerate(extents):
        if isinstance(extent, str):
            needed.append(None)
            continue
        room = extent + begins[axis]
        count = -(-(room + ends[axis] - reach[axis]) // strides[axis])
        dropped = count > 0 and count * strides[axis] >= room
        needed.append((count - dropped) * strides[axis] + reach[axis] - room)
        if dropped:
            ends[axis] = needed[-1]
    if ends == pads[len(extents) :]:
        return False
    if min(ends) < 0:  # ceil_mode must be removed, because no pads are right with it
        if None in needed:
            return False
        longer = any(need > end for need, end in zip(needed, pads[len(extents) :], strict=True))
        ends = [max(need, 0) for need in needed if need is not None]
        if longer and (attribute(node, "count_include_pad", 0) or max(dilations) > 1):
            return False  # an average would include the new pads, or pads would exceed limits of runtimes
        drop_attributes(node, "ceil_mode")
    drop_attributes(node, "pads", "auto_pad")
    node.attribute.append(onnx.helper.make_attribute("pads", [*begins, *ends]))
    return True


def _pad_conv_transpose(node: onnx.NodeProto, extents: Extents, reach: list[int], strides: list[int]) -> bool:
    dilations = attribute(node, "dilations") or [1] * len(extents)
    padding = list(attribute(node, "output_padding") or [0] * len(extents))
    auto = attribute(node, "auto_pad")
    required = attribute(node, "output_shape")
    required = [int(e) * s for e, s in zip(extents, strides, strict=True)] if required is None else required
    begins, ends = [], []
    for axis, extent in enumerate(required[-len(extents) :]):
        total = strides[axis] * (int(extents[axis]) - 1) + padding[axis] + reach[axis] - extent
        padding[axis] -= min(total, 0)
        if padding[axis] >= max(strides[axis], dilations[axis]):
            return False  # no valid padding makes the output this large
        total = max(total, 0)
        begins.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
        ends.append(total - begins[-1])
    drop_attributes(node, "output_shape", "auto_pad", "pads", "output_padding")
    node.attribute.append(onnx.helper.make_attribute("pads", [*begins, *ends]))
    if any(padding):
        node.attribute.append(onnx.helper.make_attribute("output_padding", padding))
    return True


def _declare_outputs(model: onnx.ModelProto) -> bool:
    """Complete the types of outputs; an output without an inferable rank gets no shape."""
    outputs = model.graph.output
    incomplete = [value for value in outputs if not _is_typed(value) or _lacks_shape(value)]
    if not incomplete:
        return False
    light = with_inferred(without_weights(model), data_prop=True)
    values = (*light.graph.output, *light.graph.value_info, *light.graph.input)
    types = {value.name: value.type for value in values if value.type.WhichOneof("value")}
    types |= {
        tensor.name: onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
    }
    for value in incomplete:
        if value.name in types:
            value.type.CopyFrom(types[value.name])
    return True


def _lacks_shape(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") == "tensor_type" and not value.type.tensor_type.HasField("shape")
