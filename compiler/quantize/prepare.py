"""Prepare a graph for the quantizers without changing its results.

1. Opset `OLDEST` or newer: older per-channel Q/DQ lacks an axis.
2. Initializers are not listed as inputs (files older than IR version 4 do that), so they are constant.
3. Every node has a unique name: placement refers to nodes by name.
4. `Sum` of two becomes `Add`: the quantizers recognize residual adds by that operator.
5. Weights in Constant nodes become initializers. A Gemm's alpha and beta are folded into its weight and bias,
   and its bias gets one axis: the quantizers assume a plain Gemm.
6. A bias with other consumers is copied, because each layer's bias gets a scale and a correction.
7. Inferred types and shapes are written into the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
import onnx
from onnx import numpy_helper

from ...model.graph.graph import (
    WEIGHTED,
    attribute,
    consumers,
    pinned_names,
    position_tensors,
    with_inferred,
    without_weights,
)
from ...model.graph.graph_edits import (
    drop_attributes,
    drop_initializer_inputs,
    store,
    store_constants,
)
from ...model.graph.graph_names import Names, name_nodes
from ...model.graph.onnx_file import copy_model
from ...spec.opsets import OLDEST
from ..opset.fit import upgrade_opset

_OF_PLACES = "it reads only positions; longer inputs have more of them than the samples"


def prepare_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a prepared copy of the model."""
    copy = copy_model(model)
    drop_initializer_inputs(copy)
    copy = upgrade_opset(copy, OLDEST)
    copy.ir_version = max(copy.ir_version, 8)
    name_nodes(copy.graph)
    sum_to_add(copy.graph)
    store_constants(copy.graph)
    _plain_gemms(copy.graph)
    _copy_shared_biases(copy.graph)
    inferred = with_inferred(without_weights(copy))  # best effort: missing shapes are rejected at their use
    typed = {value.name for value in copy.graph.value_info}
    copy.graph.value_info.extend(value for value in inferred.graph.value_info if value.name not in typed)
    return copy


def products_of_places(graph: onnx.GraphProto) -> dict[str, str]:
    """Return node to the reason for float, for the layers with only `places` and stored numbers as inputs.

    Calibration finds their scale for the length of the samples; longer inputs would exceed it. Also, 8 bits
    are too few for a frequency that is multiplied by a position.
    """
    positions, stored = position_tensors(graph), {tensor.name for tensor in graph.initializer}
    layers = [node for node in graph.node if node.op_type in WEIGHTED and positions.intersection(node.input)]
    return {node.name: _OF_PLACES for node in layers if positions.issuperset({*node.input} - stored - {""})}


def outputs_first(node: onnx.NodeProto) -> bool:
    """Return whether output channels are the first axis of a layer's weight; otherwise they are the last."""
    return bool(node.op_type == "Conv" or attribute(node, "transB", 0))


def copy_shared_weights(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Copy each weight that a layer to be quantized shares with a float node, or with another channel axis.

    Quantizers store one tensor for all consumers: the others would get rounded values, or the wrong axis.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    readers, pinned, names_of = consumers(graph), pinned_names(graph), Names(graph)
    copies: dict[tuple[str, bool], str] = {}
    layers = [node for node in graph.node if node.name in names and node.op_type in (*WEIGHTED, "Attention")]
    kinds = {node.name: outputs_first(node) for node in layers}
    for node in layers:
        weight, kind = node.input[1], kinds[node.name]
        alone = weight not in pinned and {kinds.get(reader.name) for reader in readers[weight]} == {kind}
        if alone or weight not in stored:
            continue
        if (weight, kind) not in copies:
            copy_name = names_of.fresh(f"{weight}/{'rows' if kind else 'columns'}")
            copies[weight, kind] = store(graph, copy_name, numpy_helper.to_array(stored[weight]))
        node.input[1] = copies[weight, kind]


def sum_to_add(graph: onnx.GraphProto) -> None:
    """Rename each `Sum` of two to `Add`."""
    for node in graph.node:
        if node.op_type == "Sum" and node.domain in ("", "ai.onnx") and len(node.input) == 2:
            node.op_type = "Add"


def _plain_gemms(graph: onnx.GraphProto) -> None:
    """Fold alpha and beta into stored weight and bias, and give the bias one value per output channel."""
    stored, names = {tensor.name: tensor for tensor in graph.initializer}, Names(graph)
    for node in graph.node:
        if node.op_type != "Gemm" or any(name not in stored for name in node.input[1:] if name):
            continue
        alpha, beta = (attribute(node, name, 1.0) for name in ("alpha", "beta"))
        weight = numpy_helper.to_array(stored[node.input[1]])
        channels = weight.shape[0 if attribute(node, "transB", 0) else 1]
        replaced = {1: weight * weight.dtype.type(alpha)} if alpha != 1.0 else {}
        if len(node.input) > 2 and node.input[2]:
            bias = numpy_helper.to_array(stored[node.input[2]])
            if bias.size not in (1, channels) or (bias.size > 1 and bias.shape[-1] != channels):
                continue  # one value per row: placement leaves this Gemm in float
            vector = np.broadcast_to(bias.reshape(-1), (channels,)) * bias.dtype.type(beta)
            if beta != 1.0 or bias.shape != (channels,):
                replaced[2] = vector
        for index, array in replaced.items():
            node.input[index] = store(graph, names.fresh(f"{node.input[index]}/{node.name}"), array)
        drop_attributes(node, "alpha", "beta")


def _copy_shared_biases(graph: onnx.GraphProto) -> None:
    stored, names = {tensor.name: tensor for tensor in graph.initializer}, Names(graph)
    layers = [node for node in graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm")]
    elsewhere = Counter(name for node in graph.node for name in node.input)
    elsewhere.subtract(name for node in layers for name in node.input[2:])
    used = {name for name, reads in elsewhere.items() if reads} | pinned_names(graph)
    for node in layers:
        for bias in node.input[2:]:
            if bias in stored and bias in used:
                graph.initializer.add().CopyFrom(stored[bias])
                node.input[2] = graph.initializer[-1].name = names.fresh(f"{bias}/{node.name}")
            used.add(bias)
