"""Data-driven corrections of static INT8: GPTQ rounding of weights, and bias correction.

1. `round_weights` rounds weights so that the output of the layer changes least, by GPTQ with the
Hessian `2 X Xᵀ` of the float model's activations (`weights.rounding.gptq`). The scales, one per output
channel, do not change.

2. `correct_biases` subtracts the mean quantization error of each output channel from its bias. Rounded
weights and clipped activations shift the mean of a layer's output, and the shift propagates (Nagel et al.
2019, arXiv 1906.04721, section 4.2; Finkelstein et al. 2019, arXiv 1906.03193). Each layer is measured in
isolation on the float model's activations: its float output against the output of its quantized weights and
input. One pass over the samples measures all layers by sums of their inputs, see `_Sums`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from ....calibration.qparams import per_channel
from ....core.progress import Progress, silent
from ....data.batches import Data
from ....model.graph.graph import attribute, opset, producers, tensor_values, weighted_nodes
from ....model.graph.graph_edits import set_values, store
from ....model.graph.graph_names import Names
from ....model.graph.onnx_file import Graph, copy_model
from ...opset.fit import upgrade_in_place
from ..activations import run_samples
from ..prepare import outputs_first, prepare_graph
from ..weights.hessians import collect_hessians, conv_pads, hessian_key, hessian_of
from ..weights.rounding import gptq
from .pair_limits import PairLimits
from .rewrites import join_biases

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
    """Round the weights of a quantized model by GPTQ, in place; return the number of weights.

    Weights of grouped and transposed convolutions, and weights with a single scale, are still rounded to
    nearest. `pairs` maps float weights to their limits for kernels that add two products in 16 bits.
    """
    reference = Graph(prepare_graph(model.model), model.path)
    float_nodes = {node.name: node for node in reference.model.graph.node if node.op_type in _LAYERS}
    weights = reference.stored
    plan = {
        node.name: node
        for node in weighted_nodes(quantized)["int8"]
        if (float_node := float_nodes.get(node.name)) is not None
        and hessian_key(float_node)
        and float_node.input[1] in weights
        and len(reference.consumers[float_node.input[1]]) == 1
    }
    keys = {hessian_key(float_nodes[name]) for name in plan}
    hessians = collect_hessians(model, keys, data, limit, progress)
    progress("round the weights")
    stored = {tensor.name: tensor for tensor in quantized.graph.initializer}
    made_by = producers(quantized.graph)
    rounded_names: set[str] = set()
    for name, node in plan.items():
        float_node = float_nodes[name]
        dequantize = made_by[node.input[1]]
        weight = dequantize.input[0]
        if weight in made_by and made_by[weight].op_type == "QuantizeLinear":
            weight = made_by[weight].input[0]  # a float weight in front of a Q/DQ pair
        tensor = stored.get(weight)
        scales = stored.get(dequantize.input[1])
        if tensor is None or scales is None or list(scales.dims) in ([], [1]) or tensor.name in rounded_names:
            continue
        values = tensor_values(weights[float_node.input[1]])
        rows_first = outputs_first(float_node)
        rows = values.reshape(len(values), -1) if rows_first else values.T  # one row per output channel
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
            room=limits.step_limits(tuple(tensor.dims), _MIDDLE) if limits else None,
        )
        steps: NDArray[Any] = np.clip(rounded.codes.astype(np.int16) - _MIDDLE, -127, 127)
        if tensor.data_type != TensorProto.INT8:
            steps = steps * tensor_values(scales).astype(np.float32)[:, None]
        set_values(tensor, steps.reshape(tensor.dims) if rows_first else steps.T)
        rounded_names.add(tensor.name)
    return len(rounded_names)


_INT32 = np.iinfo(np.int32)
_MAX_KERNEL = 16  # longest kernel axis for the matrix of `_Sums.coverage`, [extent, kernel]


def correct_biases(
    model: Graph, quantized: onnx.ModelProto, data: Data, progress: Progress = silent
) -> tuple[onnx.ModelProto, int]:
    """Return a copy of a quantized model with corrected biases, and the number of layers corrected.

    A bias of `quantize_static` is int32 behind DequantizeLinear, or float, or the vector that an Add behind
    a MatMul adds. Layers without a bias do not change.
    """
    corrected = Graph(copy_model(quantized), model.path)
    reference = Graph(prepare_graph(model.model), model.path)
    gemms = {node.name for node in quantized.graph.node if node.op_type == "Gemm"}
    other_nodes = {node.name for node in reference.model.graph.node if node.op_type != "Add"}
    join_biases(reference, exclude=other_nodes - gemms)
    upgrade_in_place(reference.model, opset(quantized))  # `_Sums` puts nodes of both models in one graph
    reference.edited()
    layers = list(_correctable_layers(corrected, reference))
    errors = _measure(reference, corrected, layers, data, progress)
    for layer, error in zip(layers, errors, strict=True):
        layer.correct(error)
    return corrected.model, len(layers)


@dataclass
class _QuantizedLayer:
    """A quantized layer, its float counterpart, and its bias: int32 with `scale`, or float without.

    The output of `node` may have the name of a Relu that was folded into the layer.
    """

    node: onnx.NodeProto
    counterpart: onnx.NodeProto
    weight: onnx.TensorProto  # float
    pads: list[int] | None  # of a Conv; None if they depend on dynamic extents
    bias: onnx.TensorProto
    scale: NDArray[Any] | None
    exact: onnx.TensorProto | None  # bias of the float model, if `bias` is rounded

    @property
    def kernel(self) -> list[int]:
        return list(self.weight.dims[2:]) if self.node.op_type == "Conv" else []

    @property
    def channels(self) -> int:
        return int(self.weight.dims[0 if outputs_first(self.node) else -1])

    def grouped(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Return the weight as [groups, outputs, inputs, kernel positions]."""
        groups = attribute(self.node, "group", 1)
        rows = weight if outputs_first(self.node) else weight.T
        shape = groups, len(rows) // groups, rows.shape[1], math.prod(self.kernel)
        return rows.reshape(shape)

    def correct(self, correction: NDArray[np.float64]) -> None:
        values = tensor_values(self.bias)
        if self.scale is None:
            # A single value for all channels becomes one value per channel.
            total = values + (correction if values.size == 1 else correction.reshape(values.shape))
        else:
            scale = self.scale.astype(np.float64)
            exact = values * scale if self.exact is None else tensor_values(self.exact)
            total = np.clip(np.round((exact + correction) / scale), _INT32.min, _INT32.max)
        set_values(self.bias, total)


def _correctable_layers(quantized: Graph, reference: Graph) -> Iterator[_QuantizedLayer]:
    """Yield the quantized layers that have a private bias and a counterpart with the same float input."""
    graph, made_by, stored, weights = (
        reference.model.graph,
        quantized.producers,
        quantized.stored,
        reference.stored,
    )
    known = reference.producers.keys() | {value.name for value in graph.input}
    counterparts = {node.name: node for node in graph.node if node.op_type in _LAYERS}
    nodes = weighted_nodes(quantized.model)
    for node in (*nodes["int8"], *nodes.get("fp8", ())):
        counterpart = counterparts.get(node.name)
        if counterpart is None or counterpart.op_type != node.op_type or attribute(node, "transA", 0):
            continue
        quantize = made_by.get(made_by[node.input[0]].input[0])
        if quantize is None or quantize.op_type != "QuantizeLinear" or quantize.input[0] not in known:
            continue
        weight = weights.get(counterpart.input[1])
        if weight is None or (node.op_type != "Conv" and len(weight.dims) != 2):
            continue  # a product of two activations, or of many matrices
        pads = conv_pads(node, weight.dims[2:], reference.shapes.get(quantize.input[0], ())[2:])
        name = _bias_name(node, quantized)
        if name not in stored or not quantized.is_private(name):
            continue
        (reader,) = quantized.consumers[name]
        dequantize = reader if reader.op_type == "DequantizeLinear" else None
        if dequantize is not None and not quantized.is_private(dequantize.output[0]):
            continue
        scale = tensor_values(stored[dequantize.input[1]]) if dequantize is not None else None
        exact = (
            weights.get(counterpart.input[2]) if scale is not None and len(counterpart.input) > 2 else None
        )
        layer = _QuantizedLayer(node, counterpart, weight, pads, stored[name], scale, exact)
        extents = [extent for extent in stored[name].dims if extent != 1]
        per_channel = not extents or (extents == [layer.channels] and stored[name].dims[-1] == layer.channels)
        if node.op_type != "MatMul" or per_channel:  # one value per position (anchor boxes) is not a bias
            yield layer


def _bias_name(node: onnx.NodeProto, graph: Graph) -> str:
    if len(node.input) > 2 and node.input[2]:
        producer = graph.producers.get(node.input[2])
        if producer is not None and producer.op_type == "DequantizeLinear":
            return str(producer.input[0])
        return str(node.input[2])
    readers, pinned = graph.consumers.get(node.output[0], ()), node.output[0] in graph.pinned
    if node.op_type != "MatMul" or len(readers) != 1 or readers[0].op_type != "Add" or pinned:
        return ""
    return next((str(name) for name in readers[0].input if name != node.output[0]), "")


def _measure(
    reference: Graph,
    quantized: Graph,
    layers: list[_QuantizedLayer],
    data: Data,
    progress: Progress,
) -> Iterator[NDArray[np.float64]]:
    """Yield the mean of float minus quantized output for each layer, [channels]."""
    sums = _Sums(reference.model.graph, quantized)
    names_by_layer = [sums.add_layer(layer) for layer in layers]
    total = {name: np.zeros(1) for sum_names in names_by_layer for name in sum_names}
    samples = run_samples(
        reference, list(total), data, progress=progress, doing="correct biases", integers=False
    )
    for arrays in samples:
        for name, array in arrays.items():
            total[name] = total[name] + array
    for layer, (positions, *inputs) in zip(layers, names_by_layer, strict=True):
        error = total[inputs[0]]
        if len(inputs) > 1:
            weight = layer.grouped(tensor_values(layer.weight))
            difference = weight - layer.grouped(sums.dequantized(str(layer.node.input[1])))
            error = _product(weight, total[inputs[0]]) + _product(difference, total[inputs[1]])
        yield error / max(total[positions].item(), 1.0)


def _product(weight: NDArray[Any], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    groups, _, inputs, _ = weight.shape
    columns = sums.reshape(groups, inputs, -1).astype(weight.dtype)
    products: NDArray[np.float64] = np.einsum("goik,gik->go", weight, columns).reshape(-1).astype(np.float64)
    return products


class _Sums:
    """Adds nodes to the float model that sum the inputs of layers, separately for each kernel position.

    A layer is linear: the sum of its outputs over positions is its weight times sums of its inputs. So no
    layer runs twice, and no activation leaves the runtime. With R the rounded input and V the rounded weight,
    the error is `sum W x - V R = W sum(x - R) + (W - V) sum R`. If a kernel is long, or its padding unknown,
    the runtime convolves both terms.
    """

    def __init__(self, graph: onnx.GraphProto, quantized: Graph) -> None:
        self.graph, self.made_by, self.stored = graph, quantized.producers, quantized.stored
        self.added: set[str] = set()
        self.prefix = Names(graph).stem("quantized")  # prefix of the added names

    def add_layer(self, layer: _QuantizedLayer) -> tuple[str, ...]:
        """Add the sums of a layer; return their names: the number of positions; the sums of the input's
        rounding error and of the rounded input, [channels, kernel positions], or the total error, [channels].
        """
        activation, output = layer.counterpart.input[0], layer.counterpart.output[0]
        rounded = self.copy_rounded(str(layer.node.input[0]))
        error = self.node("Sub", [activation, rounded], f"{self.prefix}/{rounded}/lost")
        size = self.node("Size", [output], f"{self.prefix}/{output}/size")
        count = self.node("Div", [size, self.constant(layer.channels)], f"{self.prefix}/{output}/positions")
        positions = self.node("Cast", [count], f"{self.prefix}/{output}/count", to=1)
        if layer.pads is None or max(layer.kernel, default=0) > _MAX_KERNEL:
            return positions, self.add_convolved_error(error, rounded, layer)
        return positions, self.add_sum(error, activation, layer), self.add_sum(rounded, activation, layer)

    def add_convolved_error(self, error: str, rounded: str, layer: _QuantizedLayer) -> str:
        """Sum the total error of a Conv over positions, by convolution."""
        name, weight = f"{self.prefix}/{layer.counterpart.output[0]}/lost", tensor_values(layer.weight)
        parts = {error: weight, rounded: weight - self.dequantized(str(layer.node.input[1]))}
        for number, (tensor, values) in enumerate(parts.items()):
            store(self.graph, f"{name}/weight{number}", values)
            self.node("Conv", [tensor, f"{name}/weight{number}"], f"{name}/{number}")
            self.graph.node[-1].attribute.extend(layer.node.attribute)
        convolved = self.node("Add", [f"{name}/0", f"{name}/1"], f"{name}/all")
        spatial_axes = self.constant(*(axis + 2 for axis in range(len(layer.kernel))))
        rows = self.node("ReduceSum", [convolved, spatial_axes], f"{name}/rows", keepdims=0)
        return self.node("ReduceSum", [rows, self.constant(0)], f"{name}/sum", keepdims=0)

    def copy_rounded(self, name: str) -> str:
        """Copy the Q/DQ nodes of an activation into the float model; return the name of their output."""
        producer, copy = self.made_by.get(name), f"{self.prefix}/{name}/rounded"
        if name in self.stored:
            if copy not in self.added:
                self.added.add(copy)
                self.graph.initializer.add().CopyFrom(self.stored[name])
                self.graph.initializer[-1].name = copy
            return copy
        if producer is None or producer.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            return name  # an activation of the float model
        if copy not in self.added:
            inputs = [self.copy_rounded(operand) for operand in producer.input]
            self.node(producer.op_type, inputs, copy)
            self.graph.node[-1].attribute.extend(producer.attribute)
        return copy

    def add_sum(self, tensor: str, source: str, layer: _QuantizedLayer) -> str:
        """Sum a tensor with the shape of `source` over the positions that each kernel element reads."""
        kernel, inputs = layer.kernel, layer.weight.dims[1 if outputs_first(layer.node) else 0]
        if layer.node.op_type != "Conv":
            rows = self.node("Reshape", [tensor, self.constant(-1, inputs)], f"{self.prefix}/{tensor}/rows")
            return self.node("ReduceSum", [rows, self.constant(0)], f"{rows}/sum", keepdims=0)
        assert layer.pads is not None, "`add_layer` checks the pads"
        axes = range(len(kernel))
        strides = attribute(layer.node, "strides", [1 for _ in axes])
        if {*kernel, *strides} == {1} and not any(layer.pads):
            spatial_axes = self.constant(*(axis + 2 for axis in axes))
            rows = self.node("ReduceSum", [tensor, spatial_axes], f"{self.prefix}/{tensor}/rows", keepdims=0)
            return self.node("ReduceSum", [rows, self.constant(0)], f"{self.prefix}/{tensor}/sum", keepdims=0)
        dilations = attribute(layer.node, "dilations", [1 for _ in axes])
        name, columns = f"{self.prefix}/{tensor}/{kernel}{strides}{dilations}{layer.pads}", tensor
        for axis in reversed(axes):
            pads = layer.pads[axis], layer.pads[axis + len(kernel)]
            coverage = self.coverage(source, axis + 2, kernel[axis], strides[axis], dilations[axis], pads)
            operands = [columns, coverage]
            if axis < axes[-1]:
                if axis < axes[-1] - 1:  # merge the axes behind this one, which are summed
                    shape = self.constant(*[0] * (axis + 3), -1)
                    columns = self.node("Reshape", [columns, shape], f"{name}/{axis}/flat")
                operands = [self.node("Transpose", [coverage], f"{coverage}/transposed"), columns]
            columns = self.node("MatMul", operands, f"{name}/{axis}")
        return self.node("ReduceSum", [columns, self.constant(0)], name, keepdims=0)

    def coverage(
        self, tensor: str, axis: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]
    ) -> str:
        """Return [extent, kernel]: 1 where a kernel element reads an axis position for some output."""
        name, constant = f"{self.prefix}/{tensor}/{axis}:{kernel}:{stride}:{dilation}:{pads}", self.constant
        shape = self.node("Shape", [tensor], f"{self.prefix}/{tensor}/shape")
        extent = self.node("Gather", [shape, constant(axis)], f"{self.prefix}/{tensor}/extent{axis}")
        scalar = self.node("Squeeze", [extent], f"{extent}/scalar")
        positions = self.node("Range", [self.scalar(0), scalar, self.scalar(1)], f"{extent}/places")
        column = self.node("Unsqueeze", [positions, constant(1)], f"{extent}/column")
        offsets = constant(*(k * dilation - pads[0] for k in range(kernel)))
        begins = self.node("Sub", [column, offsets], f"{name}/begins")  # where the kernel starts
        last = self.node("Sub", [extent, constant((kernel - 1) * dilation + 1 - sum(pads))], f"{name}/last")
        is_covered = self.node("And", [
            self.node("GreaterOrEqual", [begins, constant(0)], f"{name}/low"),
            self.node("LessOrEqual", [begins, last], f"{name}/high"),
        ], f"{name}/inside")  # fmt: skip
        if stride > 1:
            remainder = self.node("Mod", [begins, constant(stride)], f"{name}/rest")
            steps = self.node("Equal", [remainder, constant(0)], f"{name}/steps")
            is_covered = self.node("And", [is_covered, steps], f"{name}/seen")
        return self.node("Cast", [is_covered], name, to=1)

    def scalar(self, value: int) -> str:
        return self._stored(f"{self.prefix}/scalar/{value}", np.array(value, np.int64))

    def node(self, kind: str, inputs: list[str], output: str, **attributes: int) -> str:
        """Add a node unless its output exists."""
        if output not in self.added:
            self.added.add(output)
            self.graph.node.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, *values: int) -> str:
        return self._stored(f"{self.prefix}/constant/{values}", np.array(values, np.int64))

    def _stored(self, name: str, values: NDArray[Any]) -> str:
        if name not in self.added:
            self.added.add(name)
            store(self.graph, name, values)
        return name

    def dequantized(self, name: str) -> NDArray[Any]:
        """Return the dequantized values of a weight stored as int8, float8, or float in front of a pair."""
        dequantize = self.made_by[name]
        scales, axis = tensor_values(self.stored[dequantize.input[1]]), attribute(dequantize, "axis", 1)
        if (source := dequantize.input[0]) not in self.stored:
            source = self.made_by[source].input[0]
        values = tensor_values(self.stored[source])
        broadcast_scales = per_channel(scales, axis, values.ndim)
        if self.stored[source].data_type == TensorProto.FLOAT:
            values = np.rint(values / broadcast_scales).clip(-128, 127)
        rounded: NDArray[Any] = values.astype(np.float32) * broadcast_scales
        return rounded
