"""Find integer kernels of a runtime that add two products in 16 bits, and the products that they pair.

x86 processors without VNNI multiply uint8 by int8 with `vpmaddubsw`, which adds two neighbouring products in
int16, before summation in int32. The int16 sum saturates: 2 * 255 * 127 = 64,770 becomes 32,767. The order in
which a kernel reads weights determines the neighbours:

    flat    all channels of one kernel position, then of the next; pairs may cross positions
    taps    the channels of one kernel position: (0, 1), (2, 3), ...; an odd last channel has no pair

`probe` runs a layer of each kind on this processor, with activations of 255 and two weights of 127 in each
output channel. Saturated sums show the pairs. For other instruction sets, recorded results of the probe
apply.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.processor import isa_here
from ...spec.engines import rows
from ...spec.words import GraphTarget, Isa
from .. import onnx
from .graph import attribute, producers, tensor_values
from .graph_edits import store
from .graph_rules import NONE, Order, SaturatingKernels, graph_rules

_Feeds = Mapping[str, NDArray[Any]]


def saturating_kernels(target: GraphTarget, isa: Isa) -> SaturatingKernels:
    """Return the saturating kernels on an instruction set (not "auto"), probed if it is this processor's.

    If the probe finds none, recorded kernels apply: a file must be right on every processor with the set.
    """
    rules = graph_rules(target)
    is_here = isa == isa_here() and rules.run is not None and not rows()[target].load()().why_not_run()
    probed = probe(target) if is_here else NONE
    return probed or rules.saturates.get(isa, NONE)


@functools.cache
def probe(target: GraphTarget) -> SaturatingKernels:
    """Return the kernels of a runtime that saturate on this processor; its rules must define `run`."""
    rules = graph_rules(target)
    assert rules.run is not None, target
    results = rules.run(*_static_layers())
    if rules.by_onnxruntime:
        results |= rules.run(*_dynamic_layers())
    return SaturatingKernels(**{name: _order(values) for name, values in results.items()})


_PAIRS = ((0, 1), (2, 3), (3, 4), (1, 4))
"""Indices of the two weights in each of four output channels, among two kernel positions of three channels.
They are paired in both orders, only in "flat", only in "taps", and in neither."""


def _order(values: NDArray[Any]) -> Order:
    """Return the order that sums of the first four output channels show; equal sums show no saturation."""
    sums = values.reshape(-1)
    both, flat, taps = (bool(value < 0.75 * sums[3]) for value in sums[:3])
    if flat or taps:
        return "flat" if flat else "taps"
    return "flat" if both else ""


def _weights() -> NDArray[np.int8]:
    """Return int8 [4, 6] with two weights of 127 in each row."""
    weights = np.zeros((len(_PAIRS), 6), np.int8)
    for row, pair in enumerate(_PAIRS):
        weights[row, list(pair)] = 127
    return weights


_LAYER = """
    {name}_xq = QuantizeLinear ({name}_x, one, zero)
    {name}_xd = DequantizeLinear ({name}_xq, one, zero)
    {name}_wd = DequantizeLinear <axis = {axis}> ({name}_w8, {name}_scale, {name}_none)
    {name}_y = {operator} ({name}_xd, {name}_wd)
    {name}_yq = QuantizeLinear ({name}_y, step, zero)
    {name} = DequantizeLinear ({name}_yq, step, zero)"""
_TWO_ACTIVATIONS = """
    activations_w8 = QuantizeLinear (activations_w, activations_scale, activations_none)"""
_DYNAMIC = """
    sums = MatMulInteger (x, weights, zero)
    dynamic = Cast <to = 1> (sums)
    , recurrent = com.microsoft.DynamicQuantizeLSTM <hidden_size = 4>
        (sequence, W, R, , , , , , W_scale, none, R_scale, none)"""


def _static_layers() -> tuple[onnx.ModelProto, _Feeds]:
    """Return a model with a layer of each kind after Q/DQ of scale 1, and its inputs; activations are 255."""
    flat = _weights()
    dense = flat.reshape(4, 2, 3).transpose(0, 2, 1)  # [out, channel, position]
    layers: dict[str, tuple[str, NDArray[Any], tuple[int, ...]]] = {
        "dense": ("Conv", dense, (1, 3, 2)),
        "grouped": ("Conv <group = 2>", np.concatenate([dense, dense]), (1, 6, 2)),
        "depthwise": ("Conv <group = 4>", flat[:, None], (1, 4, 6)),
        "products": ("MatMul", flat.T, (1, 6)),
        "activations": ("MatMul", flat.T, (1, 6)),
    }
    body, feeds = _TWO_ACTIVATIONS, dict[str, NDArray[Any]]()
    stored: dict[str, Any] = {"one": np.float32(1), "step": np.float32(512), "zero": np.uint8(0)}
    for name, (operator, weights, shape) in layers.items():
        axis = 1 if operator == "MatMul" else 0
        body += _LAYER.format(name=name, axis=axis, operator=operator)
        feeds[f"{name}_x"] = np.full(shape, 255, np.float32)
        channels = () if name == "activations" else weights.shape[axis]
        stored[f"{name}_scale"] = np.ones(channels, np.float32)
        stored[f"{name}_none"] = np.zeros(channels, np.int8)
        stored[f"{name}_w8"] = weights
    feeds["activations_w"] = stored.pop("activations_w8").astype(np.float32)
    return _model(body, stored, feeds, layers), feeds


def _dynamic_layers() -> tuple[onnx.ModelProto, _Feeds]:
    """Return a model with MatMulInteger and an LSTM, and its inputs; small scales make tanh linear."""
    flat = _weights()
    gates = np.zeros((1, 6, 4, 4), np.int8)
    gates[0, :, 3] = flat.T  # the cell gates; ONNX's order is input, output, forget, cell
    stored = {
        "weights": flat.T, "zero": np.uint8(0), "none": np.zeros(1, np.int8),
        "W": gates.reshape(1, 6, 16), "R": np.zeros((1, 4, 16), np.int8),
        "W_scale": np.full(1, 1e-6, np.float32), "R_scale": np.ones(1, np.float32),
    }  # fmt: skip
    feeds: _Feeds = {"x": np.full((1, 6), 255, np.uint8), "sequence": np.ones((1, 1, 6), np.float32)}
    return _model(_DYNAMIC, stored, feeds, ("dynamic", "recurrent")), feeds


def _model(body: str, stored: Mapping[str, Any], feeds: _Feeds, outputs: Iterable[str]) -> onnx.ModelProto:
    """Return a model from ONNX's text form; its outputs have the names of the kinds of layers."""
    kinds = {"float32": "float", "uint8": "uint8"}
    inputs = ", ".join(f"{kinds[a.dtype.name]}{list(a.shape)} {name}" for name, a in feeds.items())
    results = ", ".join(f"float[] {name}" for name in outputs)
    head = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> probe'
    model = onnx.parser.parse_model(f"{head} ({inputs}) => ({results}) {{{body}\n}}")
    for name, values in stored.items():
        store(model.graph, name, values)
    return model


def overflows(graph: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Return whether two neighbouring products of a layer, with activations of 255, can overflow int16."""
    stored = {tensor.name: tensor for tensor in graph.graph.initializer}
    made_by = producers(graph.graph)
    for name in node.input[1:3] if "LSTM" in node.op_type else node.input[1:2]:
        maker = made_by.get(name)
        tensor = stored.get(maker.input[0] if maker is not None and maker.input else name)
        if tensor is None or (weight := tensor_values(tensor)).dtype != np.int8 or weight.ndim < 2:
            continue
        if node.op_type.startswith("Conv"):
            if attribute(node, "group", 1) == len(weight):  # depthwise kernels add in 32 bits
                continue
            columns = np.moveaxis(weight, 1, -1).reshape(len(weight), -1).T
        else:
            columns = weight.reshape(-1, *weight.shape[-2:])
            columns = (columns.swapaxes(1, 2) if attribute(node, "transB", 0) else columns).swapaxes(0, 1)
        for sign in (1, -1):
            parts = np.maximum(columns.astype(np.int16) * sign, 0)
            if (parts[:-1:2] + parts[1::2][: len(parts[:-1:2])] > 128).any():
                return True
    return False
