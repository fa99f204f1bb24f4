"""Static INT8 fitted to samples: weights rounded by GPTQ, and biases corrected.

1. `round_weights` rounds against the samples instead of to the nearest step. Scales stay those of the plan,
one per output channel; which of the two steps next to a weight is taken is chosen so that the layer's output
changes least on what it reads: `weights.rounding.gptq`, by the Hessian `2 X Xᵀ` of the float model's
activations.

2. `correct_biases` subtracts the mean quantization error of each output channel from its bias. Rounded
weights and clipped activations shift the mean of a layer's output, and the shift is carried on (Nagel et al.
2019, arXiv 1906.04721, section 4.2; Finkelstein et al. 2019, arXiv 1906.03193). Each layer
is measured by itself, on the activations of the float model: its float output against that of its
quantized weights on its quantized input. All layers are measured in one pass over the samples, by sums of
what they read, see `_Sums`.
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
from ..prepare import by_output, prepare_graph
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
    """Round the weights of a quantized model anew, in place; return how many.

    Weights of grouped convolutions, transposed ones and those behind no scale per output channel stay
    rounded to nearest.

    `pairs` has the limits of float weights of which two products are added in 16 bits.
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
        rows_first = by_output(float_node)
        rows = values.reshape(len(values), -1) if rows_first else values.T  # one per output channel
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
        set_values(tensor, steps.reshape(tensor.dims) if rows_first else steps.T)
        done.add(tensor.name)
    return len(done)


_INT32 = np.iinfo(np.int32)
_LONG = 16  # of a kernel: what says where it stands has as many values for each place of the axis


def correct_biases(
    model: Graph, quantized: onnx.ModelProto, data: Data, progress: Progress = silent
) -> tuple[onnx.ModelProto, int]:
    """Return a copy of a quantized model with corrected biases, and the number of layers corrected.

    Biases of `quantize_static` are int32 behind DequantizeLinear, or float, or the vector that an Add behind
    a MatMul adds. Layers without one are left as they are.
    """
    corrected = Graph(copy_model(quantized), model.path)
    reference = Graph(prepare_graph(model.model), model.path)
    gemms = {node.name for node in quantized.graph.node if node.op_type == "Gemm"}
    others = {node.name for node in reference.model.graph.node if node.op_type != "Add"}
    join_biases(reference, exclude=others - gemms)
    upgrade_in_place(reference.model, opset(quantized))  # the layers of both stand in one graph
    reference.edited()
    layers = list(_layers(corrected, reference))
    errors = _measure(reference, corrected, layers, data, progress)
    for layer, error in zip(layers, errors, strict=True):
        layer.correct(error)
    return corrected.model, len(layers)


@dataclass
class _Quantized:
    """A quantized layer beside its float counterpart, and its bias.

    The quantized one may write under the name of a Relu that was folded into it. Its bias is int32 in units
    of `scale`, or float in units of 1.
    """

    node: onnx.NodeProto
    counterpart: onnx.NodeProto
    weight: onnx.TensorProto  # of the float model
    pads: list[int] | None  # of a Conv; None where they depend on extents that are free
    bias: onnx.TensorProto
    scale: NDArray[Any] | None
    exact: onnx.TensorProto | None  # the bias of the float model, where `bias` was rounded

    @property
    def kernel(self) -> list[int]:
        return list(self.weight.dims[2:]) if self.node.op_type == "Conv" else []

    @property
    def channels(self) -> int:
        return int(self.weight.dims[0 if by_output(self.node) else -1])

    def grouped(self, weight: NDArray[Any]) -> NDArray[Any]:
        """The weight as [groups, outputs, inputs, positions of the kernel]."""
        groups = attribute(self.node, "group", 1)
        rows = weight if by_output(self.node) else weight.T
        shape = groups, len(rows) // groups, rows.shape[1], math.prod(self.kernel)
        return rows.reshape(shape)

    def correct(self, correction: NDArray[np.float64]) -> None:
        values = tensor_values(self.bias)
        if self.scale is None:
            # One number for all channels becomes one for each.
            total = values + (correction if values.size == 1 else correction.reshape(values.shape))
        else:
            scale = self.scale.astype(np.float64)
            exact = values * scale if self.exact is None else tensor_values(self.exact)
            total = np.clip(np.round((exact + correction) / scale), _INT32.min, _INT32.max)
        set_values(self.bias, total)


def _layers(quantized: Graph, reference: Graph) -> Iterator[_Quantized]:
    """The layers that have a bias of their own, and whose input and output exist in the float model."""
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
        layer = _Quantized(node, counterpart, weight, pads, stored[name], scale, exact)
        extents = [extent for extent in stored[name].dims if extent != 1]
        per_channel = not extents or (extents == [layer.channels] and stored[name].dims[-1] == layer.channels)
        if node.op_type != "MatMul" or per_channel:  # a value per position, as anchors of boxes are, is none
            yield layer


def _bias_name(node: onnx.NodeProto, graph: Graph) -> str:
    if len(node.input) > 2 and node.input[2]:
        maker = graph.producers.get(node.input[2])
        if maker is not None and maker.op_type == "DequantizeLinear":
            return str(maker.input[0])
        return str(node.input[2])
    behind, pinned = graph.consumers.get(node.output[0], ()), node.output[0] in graph.pinned
    if node.op_type != "MatMul" or len(behind) != 1 or behind[0].op_type != "Add" or pinned:
        return ""
    return next((str(name) for name in behind[0].input if name != node.output[0]), "")


def _measure(
    reference: Graph,
    quantized: Graph,
    layers: list[_Quantized],
    data: Data,
    progress: Progress,
) -> Iterator[NDArray[np.float64]]:
    """Yield float minus quantized of each layer's output, per channel, on average."""
    sums = _Sums(reference.model.graph, quantized)
    names = [sums.of(layer) for layer in layers]
    total = {name: np.zeros(1) for three in names for name in three}
    samples = run_samples(
        reference, list(total), data, progress=progress, doing="correct biases", integers=False
    )
    for arrays in samples:
        for name, array in arrays.items():
            total[name] = total[name] + array
    for layer, (positions, *inputs) in zip(layers, names, strict=True):
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
    """Adds to the float model what sums the inputs of layers, each as every weight sees it.

    A layer is linear, so that the sum of its outputs over positions is its weight times sums of its inputs:
    no layer is computed twice, and no tensor leaves the runtime. With R the rounded input, and V the rounded
    weight, what is lost is `sum W x - V R = W sum(x - R) + (W - V) sum R`. Where a kernel is long, or its
    padding unknown, the runtime convolves both.
    """

    def __init__(self, graph: onnx.GraphProto, quantized: Graph) -> None:
        self.graph, self.made_by, self.stored = graph, quantized.producers, quantized.stored
        self.made: set[str] = set()
        self.new = Names(graph).stem("quantized")  # how the names of what is added begin

    def of(self, layer: _Quantized) -> tuple[str, ...]:
        """Return the outputs of a layer: positions; what its input loses by rounding, and the rounded input,
        each [channels, positions of the kernel]; or in place of these what is lost, [channels].
        """
        read, output = layer.counterpart.input[0], layer.counterpart.output[0]
        rounded = self.rounded(str(layer.node.input[0]))
        lost = self.node("Sub", [read, rounded], f"{self.new}/{rounded}/lost")
        size = self.node("Size", [output], f"{self.new}/{output}/size")
        count = self.node("Div", [size, self.constant(layer.channels)], f"{self.new}/{output}/positions")
        positions = self.node("Cast", [count], f"{self.new}/{output}/count", to=1)
        if layer.pads is None or max(layer.kernel, default=0) > _LONG:
            return positions, self.convolved(lost, rounded, layer)
        return positions, self.summed(lost, read, layer), self.summed(rounded, read, layer)

    def convolved(self, lost: str, rounded: str, layer: _Quantized) -> str:
        """Sum what a Conv loses, convolved."""
        name, weight = f"{self.new}/{layer.counterpart.output[0]}/lost", tensor_values(layer.weight)
        parts = {lost: weight, rounded: weight - self.dequantized(str(layer.node.input[1]))}
        for number, (tensor, values) in enumerate(parts.items()):
            store(self.graph, f"{name}/weight{number}", values)
            self.node("Conv", [tensor, f"{name}/weight{number}"], f"{name}/{number}")
            self.graph.node[-1].attribute.extend(layer.node.attribute)
        both = self.node("Add", [f"{name}/0", f"{name}/1"], f"{name}/all")
        places = self.constant(*(axis + 2 for axis in range(len(layer.kernel))))
        rows = self.node("ReduceSum", [both, places], f"{name}/rows", keepdims=0)
        return self.node("ReduceSum", [rows, self.constant(0)], f"{name}/sum", keepdims=0)

    def rounded(self, name: str) -> str:
        """Copy what rounds an activation; return its new name."""
        maker, copied = self.made_by.get(name), f"{self.new}/{name}/rounded"
        if name in self.stored:
            if copied not in self.made:
                self.made.add(copied)
                self.graph.initializer.add().CopyFrom(self.stored[name])
                self.graph.initializer[-1].name = copied
            return copied
        if maker is None or maker.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            return name  # an activation, as the float model has it
        if copied not in self.made:
            inputs = [self.rounded(operand) for operand in maker.input]
            self.node(maker.op_type, inputs, copied)
            self.graph.node[-1].attribute.extend(maker.attribute)
        return copied

    def summed(self, tensor: str, read: str, layer: _Quantized) -> str:
        """Sum a tensor, of the shape of `read`, over the positions that each value of a kernel sees."""
        kernel, inputs = layer.kernel, layer.weight.dims[1 if by_output(layer.node) else 0]
        if layer.node.op_type != "Conv":
            rows = self.node("Reshape", [tensor, self.constant(-1, inputs)], f"{self.new}/{tensor}/rows")
            return self.node("ReduceSum", [rows, self.constant(0)], f"{rows}/sum", keepdims=0)
        assert layer.pads is not None, "`of` asks"
        axes = range(len(kernel))
        strides = attribute(layer.node, "strides", [1 for _ in axes])
        if {*kernel, *strides} == {1} and not any(layer.pads):
            places = self.constant(*(axis + 2 for axis in axes))
            rows = self.node("ReduceSum", [tensor, places], f"{self.new}/{tensor}/rows", keepdims=0)
            return self.node("ReduceSum", [rows, self.constant(0)], f"{self.new}/{tensor}/sum", keepdims=0)
        dilations = attribute(layer.node, "dilations", [1 for _ in axes])
        name, columns = f"{self.new}/{tensor}/{kernel}{strides}{dilations}{layer.pads}", tensor
        for axis in reversed(axes):
            around = layer.pads[axis], layer.pads[axis + len(kernel)]
            seen = self.seen(read, axis + 2, kernel[axis], strides[axis], dilations[axis], around)
            operands = [columns, seen]
            if axis < axes[-1]:
                if axis < axes[-1] - 1:  # the sums over axes behind the next are one axis
                    shape = self.constant(*[0] * (axis + 3), -1)
                    columns = self.node("Reshape", [columns, shape], f"{name}/{axis}/flat")
                operands = [self.node("Transpose", [seen], f"{seen}/transposed"), columns]
            columns = self.node("MatMul", operands, f"{name}/{axis}")
        return self.node("ReduceSum", [columns, self.constant(0)], name, keepdims=0)

    def seen(
        self, tensor: str, axis: int, kernel: int, stride: int, dilation: int, around: tuple[int, int]
    ) -> str:
        """Return [extent, kernel]: 1 where a value of the kernel stands on a place of the axis, somewhere."""
        name, constant = f"{self.new}/{tensor}/{axis}:{kernel}:{stride}:{dilation}:{around}", self.constant
        shape = self.node("Shape", [tensor], f"{self.new}/{tensor}/shape")
        extent = self.node("Gather", [shape, constant(axis)], f"{self.new}/{tensor}/extent{axis}")
        scalar = self.node("Squeeze", [extent], f"{extent}/scalar")
        places = self.node("Range", [self.scalar(0), scalar, self.scalar(1)], f"{extent}/places")
        column = self.node("Unsqueeze", [places, constant(1)], f"{extent}/column")
        offsets = constant(*(k * dilation - around[0] for k in range(kernel)))
        begins = self.node("Sub", [column, offsets], f"{name}/begins")  # where the kernel does
        last = self.node("Sub", [extent, constant((kernel - 1) * dilation + 1 - sum(around))], f"{name}/last")
        is_seen = self.node("And", [
            self.node("GreaterOrEqual", [begins, constant(0)], f"{name}/low"),
            self.node("LessOrEqual", [begins, last], f"{name}/high"),
        ], f"{name}/inside")  # fmt: skip
        if stride > 1:
            rest = self.node("Mod", [begins, constant(stride)], f"{name}/rest")
            steps = self.node("Equal", [rest, constant(0)], f"{name}/steps")
            is_seen = self.node("And", [is_seen, steps], f"{name}/seen")
        return self.node("Cast", [is_seen], name, to=1)

    def scalar(self, value: int) -> str:
        return self._stored(f"{self.new}/scalar/{value}", np.array(value, np.int64))

    def node(self, kind: str, inputs: list[str], output: str, **attributes: int) -> str:
        """Add a node, if it is not there."""
        if output not in self.made:
            self.made.add(output)
            self.graph.node.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, *values: int) -> str:
        return self._stored(f"{self.new}/constant/{values}", np.array(values, np.int64))

    def _stored(self, name: str, values: NDArray[Any]) -> str:
        if name not in self.made:
            self.made.add(name)
            store(self.graph, name, values)
        return name

    def dequantized(self, name: str) -> NDArray[Any]:
        """Return the values of a weight: stored integers or float8 that are dequantized, or floats that are
        made int8 before."""
        dequantize = self.made_by[name]
        scales, axis = tensor_values(self.stored[dequantize.input[1]]), attribute(dequantize, "axis", 1)
        if (source := dequantize.input[0]) not in self.stored:
            source = self.made_by[source].input[0]
        values = tensor_values(self.stored[source])
        by = per_channel(scales, axis, values.ndim)
        if self.stored[source].data_type == TensorProto.FLOAT:
            values = np.rint(values / by).clip(-128, 127)
        rounded: NDArray[Any] = values.astype(np.float32) * by
        return rounded
