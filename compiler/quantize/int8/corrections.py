"""Static INT8 fitted to samples: weights rounded by GPTQ, and biases corrected.

1. `round_weights` rounds against the samples instead of to the nearest step. Scales stay those of the plan,
one per output channel; which of the two steps next to a weight is taken is chosen so that the layer's output
changes least on what it reads: `weights.rounding.gptq`, by the Hessian `2 X Xᵀ` of the float model's
activations.

2. `correct_biases` subtracts the mean quantization error of each output channel from its bias. Rounded
weights and clipped activations shift the mean of a layer's output, and the shift is carried on (Nagel et al.
2019, arXiv 1906.04721, section 4.2; Finkelstein et al. 2019, arXiv 1906.03193). Each layer
is measured by itself, on the activations of the float model: its float output against that of its
quantized weights on its quantized input. All layers are measured in one pass over the samples:

    x ─┬─ layer ─────────────────────┬─ mean over samples and positions of each channel
       └─ Q ─ DQ ─ quantized layer ──┘
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from ....data.batches import Data
from ....model.graph import (
    attribute,
    captured_names,
    consumers,
    opset,
    producers,
    tensor_values,
    weighted_nodes,
)
from ....model.graph_edits import set_values, store
from ....model.onnx_file import Graph, copy_model
from ....progress import Progress, silent
from ...opset.fit import upgrade_in_place
from ..activations import run_samples
from ..prepare import prepare_graph
from ..weights.hessians import collect_hessians, hessian_key, hessian_of
from ..weights.rounding import gptq
from .pair_limits import PairLimits
from .rewrites import join_biases, stored_weight

_MIDDLE = 128
_LAYERS = frozenset(["Conv", "Gemm", "MatMul"])


def round_weights(
    model: Graph,
    quantized: onnx.ModelProto,
    data: Data,
    limit: int,
    progress: Progress = silent,
    *,
    pairs: Mapping[str, PairLimits] = MappingProxyType({}),
) -> int:
    """Round the weights of a quantized model anew, in place; return how many.

    Weights of grouped convolutions, transposed ones and those behind no scale per output channel stay
    rounded to nearest.

    `pairs` has the limits of float weights of which two products are added in 16 bits.
    """
    reference = prepare_graph(model.model)
    float_nodes = {node.name: node for node in reference.graph.node if node.op_type in _LAYERS}
    weights = {t.name: t for t in reference.graph.initializer}
    readers = consumers(reference.graph)
    plan = {
        node.name: node
        for node in weighted_nodes(quantized)["int8"]
        if (float_node := float_nodes.get(node.name)) is not None
        and hessian_key(float_node)
        and float_node.input[1] in weights
        and len(readers[float_node.input[1]]) == 1
    }
    keys = {hessian_key(float_nodes[name]) for name in plan}
    hessians = collect_hessians(model, keys, data, limit, progress)
    progress("round the weights")
    stored = {tensor.name: tensor for tensor in quantized.graph.initializer}
    made_by = producers(quantized.graph)
    done: set[str] = set()
    for name, node in plan.items():
        float_node = float_nodes[name]
        dequantize = made_by[node.input[1]]
        weight = dequantize.input[0]
        if weight in made_by and made_by[weight].op_type == "QuantizeLinear":
            weight = made_by[weight].input[0]  # floats in front of a pair
        tensor = stored.get(weight)
        scales = stored.get(dequantize.input[1])
        if tensor is None or scales is None or list(scales.dims) in ([], [1]) or tensor.name in done:
            continue
        values = tensor_values(weights[float_node.input[1]])
        by_output = float_node.op_type == "Conv" or attribute(float_node, "transB", 0)
        rows = values.reshape(len(values), -1) if by_output else values.T  # one per output channel
        hessian = hessian_of([float_node], hessians)
        if hessian is None or tensor_values(scales).shape != (len(rows),):
            continue
        limits = pairs.get(float_node.input[1])
        rounded = gptq(
            np.ascontiguousarray(rows, np.float32),
            hessian,
            bits=8,
            block_size=0,
            symmetric=True,
            scales=tensor_values(scales),
            name=tensor.name,
            room=limits.room(tuple(tensor.dims), _MIDDLE) if limits else None,
        )
        steps: NDArray[Any] = np.clip(rounded.codes.astype(np.int16) - _MIDDLE, -127, 127)
        if tensor.data_type != TensorProto.INT8:
            steps = steps * tensor_values(scales).astype(np.float32)[:, None]
        set_values(tensor, steps.reshape(tensor.dims) if by_output else steps.T)
        done.add(tensor.name)
    return len(done)


_INT32 = np.iinfo(np.int32)


def correct_biases(
    model: Graph, quantized: onnx.ModelProto, data: Data, progress: Progress = silent
) -> tuple[onnx.ModelProto, int]:
    """Return a copy of a quantized model with corrected biases, and the number of layers corrected.

    Biases of `quantize_static` are int32 behind DequantizeLinear, or float, or the vector that an Add behind
    a MatMul adds. Layers without one are left as they are.
    """
    corrected = copy_model(quantized)
    reference = prepare_graph(model.model)
    gemms = {node.name for node in quantized.graph.node if node.op_type == "Gemm"}
    others = {node.name for node in reference.graph.node if node.op_type != "Add"}
    join_biases(reference, exclude=others - gemms)
    upgrade_in_place(reference, opset(quantized))  # the layers of both stand in one graph
    layers = list(_layers(corrected, reference))
    errors = _measure(Graph(reference, model.path), corrected, layers, data, progress)
    for layer in layers:
        layer.correct(errors[layer.node.name])
    return corrected, len(layers)


@dataclass
class _Quantized:
    """A quantized layer, the output of its float counterpart, its bias, and the number of its channels.

    The quantized one may write under the name of a Relu that was folded into it. Its bias is int32 in units
    of `scale`, or float in units of 1.
    """

    node: onnx.NodeProto
    float_output: str
    bias: onnx.TensorProto
    scale: NDArray[Any] | None
    channels: int

    @property
    def error_name(self) -> str:
        return f"{self.float_output}/error"

    @property
    def positions_name(self) -> str:
        return f"{self.error_name}/positions"

    def correct(self, correction: NDArray[np.float64]) -> None:
        values = tensor_values(self.bias)
        if self.scale is None:
            # One number for all channels becomes one for each.
            total = values + (correction if values.size == 1 else correction.reshape(values.shape))
        else:
            steps = np.round(correction / self.scale.astype(np.float64))
            total = np.clip(values + steps, _INT32.min, _INT32.max)
        set_values(self.bias, total)


def _layers(quantized: onnx.ModelProto, reference: onnx.ModelProto) -> Iterator[_Quantized]:
    """The layers that have a bias of their own, and whose input and output exist in the float model."""
    graph = quantized.graph
    known = {name for node in reference.graph.node for name in node.output}
    counterparts = {node.name: node for node in reference.graph.node if node.op_type in _LAYERS}
    known |= {value.name for value in reference.graph.input}
    made_by, readers = producers(graph), consumers(graph)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    kept = {value.name for value in graph.output}
    kept |= {name for node in graph.node for name in captured_names(node)}
    nodes = weighted_nodes(quantized)
    for node in (*nodes["int8"], *nodes.get("fp8", ())):
        counterpart = counterparts.get(node.name)
        if counterpart is None or counterpart.op_type != node.op_type:
            continue
        quantize = made_by.get(made_by[node.input[0]].input[0])
        if quantize is None or quantize.op_type != "QuantizeLinear" or quantize.input[0] not in known:
            continue
        weight = made_by[node.input[1]].input[0]
        if weight not in stored and weight in made_by:
            weight = made_by[weight].input[0]  # floats behind a pair, for TensorRT
        if weight not in stored:
            continue  # a product of two activations
        name = _bias_name(node, made_by, readers, kept)
        if name not in stored or len(readers[name]) > 1 or name in kept:
            continue
        by_output = node.op_type == "Conv" or attribute(node, "transB", 0)
        extents, channels = (
            [extent for extent in stored[name].dims if extent != 1],
            stored[weight].dims[0 if by_output else -1],
        )
        per_channel = not extents or (extents == [channels] and stored[name].dims[-1] == channels)
        if node.op_type == "MatMul" and not per_channel:
            continue  # a value per position, as anchors of boxes are
        dequantize = readers[name][0] if readers[name][0].op_type == "DequantizeLinear" else None
        scale = tensor_values(stored[dequantize.input[1]]) if dequantize is not None else None
        yield _Quantized(node, str(counterpart.output[0]), stored[name], scale, channels)


def _bias_name(node: onnx.NodeProto, made_by: Any, readers: Any, kept: set[str]) -> str:
    if len(node.input) > 2 and node.input[2]:
        maker = made_by.get(node.input[2])
        return str(node.input[2] if maker is None else maker.input[0])
    behind = readers.get(node.output[0], ())
    if node.op_type != "MatMul" or len(behind) != 1 or behind[0].op_type != "Add" or node.output[0] in kept:
        return ""
    return next((str(name) for name in behind[0].input if name != node.output[0]), "")


def _measure(
    reference: Graph,
    quantized: onnx.ModelProto,
    layers: list[_Quantized],
    data: Data,
    progress: Progress,
) -> dict[str, NDArray[np.float64]]:
    """Name of a layer's output to float minus quantized, per channel, on average."""
    _add_quantized_layers(reference.model, quantized, layers)
    names = [name for layer in layers for name in (layer.error_name, layer.positions_name)]
    sums = {name: np.zeros(1) for name in names}
    for arrays in run_samples(
        reference, names, data, progress=progress, doing="correct biases", integers=False
    ):
        for name, array in arrays.items():
            sums[name] = sums[name] + array
    return {
        layer.node.name: sums[layer.error_name] / max(sums[layer.positions_name].item(), 1.0)
        for layer in layers
    }


def _add_quantized_layers(
    reference: onnx.ModelProto, quantized: onnx.ModelProto, layers: list[_Quantized]
) -> None:
    """Add the quantized layers to the float model beside its own, and each channel's sum of differences.

    Sums leave the runtime, not tensors: those of all layers would be several times the model's own memory.
    """
    graph = reference.graph
    made_by = producers(quantized.graph)
    stored = {tensor.name: tensor for tensor in quantized.graph.initializer}
    brought: set[str] = set()

    def bring(name: str) -> str:
        """Copy what makes an operand, up to a stored tensor or an activation; return its new name."""
        maker, copied = made_by.get(name), f"quantized/{name}"
        is_pair = maker is not None and maker.op_type in ("QuantizeLinear", "DequantizeLinear")
        if name not in stored and not is_pair:
            return name  # an activation, as the float model has it
        if copied in brought:
            return copied
        brought.add(copied)
        if maker is None:
            graph.initializer.add().CopyFrom(stored[name])
            graph.initializer[-1].name = copied
        elif (values := stored_weight(maker, stored)) is not None:
            set_values(graph.initializer.add(name=copied, data_type=1), values)
        else:
            _copy_node(graph, maker, [bring(operand) for operand in maker.input], copied)
        return copied

    for layer in layers:
        quantized_output = f"quantized/{layer.float_output}"
        _copy_node(graph, layer.node, [bring(name) for name in layer.node.input], quantized_output)
        graph.node.extend(_summed(graph, layer, quantized_output))


def _summed(graph: onnx.GraphProto, layer: _Quantized, quantized_output: str) -> Iterator[onnx.NodeProto]:
    """The nodes that sum a layer's error over samples and positions, and count these."""
    name, channels = layer.error_name, layer.channels
    shape, axes = ([0, channels, -1], [0, 2]) if layer.node.op_type == "Conv" else ([-1, channels], [0])
    constants = {f"{name}/shape": shape, f"{name}/axes": axes, f"{name}/channels": [channels]}
    for constant, values in constants.items():
        store(graph, constant, np.array(values, np.int64))

    def node(kind: str, inputs: list[str], output: str, **attributes: int) -> onnx.NodeProto:
        return onnx.helper.make_node(kind, inputs, [output], name=output, **attributes)

    yield node("Sub", [layer.float_output, quantized_output], f"{name}/all")
    yield node("Reshape", [f"{name}/all", f"{name}/shape"], f"{name}/rows")
    yield node("ReduceSum", [f"{name}/rows", f"{name}/axes"], name, keepdims=0)
    yield node("Size", [f"{name}/all"], f"{name}/size")
    yield node("Div", [f"{name}/size", f"{name}/channels"], f"{name}/count")
    yield node("Cast", [f"{name}/count"], layer.positions_name, to=1)


def _copy_node(graph: onnx.GraphProto, node: onnx.NodeProto, inputs: list[str], output: str) -> None:
    copy = graph.node.add()
    copy.CopyFrom(node)
    copy.name = f"quantized/{output}"
    copy.input[:], copy.output[:] = inputs, [output]
