"""Cross-layer equalization: scale channels of a layer's output, and undo the scaling in the next layer.

    first ─ Relu ─ second      becomes      first/s ─ Relu ─ second·s

An activation tensor has one scale. Channels that are much smaller than the largest one lose most of its
steps; a network that was trained with BatchNorm often has them (Nagel et al. 2019, "Data-Free Quantization
Through Weight Equalization and Bias Correction", arXiv 1906.04721, section 4.1). The operators in between
must commute with positive factors: Relu does, Clip does not. Factors are powers of two, so that the float
model computes the very same numbers as before.

One ranges file serves the original and the balanced model: it covers every tensor that balancing leaves as
it was. `observe_balanced` observes the few rescaled or added tensors again on the samples, in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ....calibration import observe
from ....data.batches import Data
from ....model.graph.graph import attribute, tensor_values
from ....model.graph.graph_edits import set_values, store_constants
from ....model.graph.onnx_file import Graph
from ..activations import ChannelRows, runs_without_layouts
from ..request import QuantizeRequest

# f(c·x) = c·f(x) for c > 0: value by value, or over the positions of a channel.
_BY_VALUE = frozenset(["Relu", "LeakyRelu", "Identity"])
_BY_CHANNEL = _BY_VALUE | {"MaxPool", "AveragePool"}
# A Reshape leaves rows intact if the layers on both sides have equally many channels.
_BY_ROW = _BY_VALUE | {"Reshape"}
LARGEST_FACTOR = 2.0**12
_FEW = 64
CHANNEL_SAMPLES = 32
"""Number of samples on which channels are observed."""

Floats = NDArray[np.float64]


def equalize(graph: Graph, channel_amax: Mapping[str, NDArray[Any]]) -> int:
    """Equalize every chain of two layers in place; return the number of pairs with changed weights.

    A layer is a Conv, a Gemm, or a MatMul with its bias, with stored weights that no other node reads. With
    r1_i the largest magnitude of channel i in the tensor between them, r2_i its largest weight in the second,

        s_i = sqrt(r1_i / r2_i),    equation 11 of the paper

    A depthwise Conv behind the tensor has a scale for each of its channels, and takes the whole factor,
    s_i = r1_i. Channels of zeros are unchanged. `channel_amax` has r1 for each of `equalizable_tensors`. The
    model computes the same bits as before, except for subnormal numbers.
    """
    pairs = _Chains(graph).pairs()
    for pair in pairs:
        if pair.between not in channel_amax:
            continue
        amax = channel_amax[pair.between].astype(float)
        peaks = (pair.second.peaks * pair.second.factors()).max(axis=1).reshape(-1)
        depthwise = pair.second.peaks.shape[2] == 1 and pair.second.groups > 1
        alpha, live = (1.0 if depthwise else 0.5), (amax > 0) & (peaks > 0)
        factors = np.ones_like(amax)
        factors[live] = np.exp(alpha * np.log(amax[live]) - (1 - alpha) * np.log(peaks[live]))
        total = np.clip(pair.second.in_factors * factors, 1 / LARGEST_FACTOR, LARGEST_FACTOR)
        pair.second.in_factors, pair.first.out_factors = total, 1 / total
    changed = 0
    for pair in pairs:
        total = np.exp2(np.round(np.log2(pair.second.in_factors)))
        pair.second.in_factors, pair.first.out_factors = total, 1 / total
        changed += bool((total != 1).any())
    layers = {id(layer): layer for pair in pairs for layer in (pair.first, pair.second)}
    for layer in layers.values():
        layer.write()
    return changed


def equalizable_tensors(graph: Graph) -> dict[str, int]:
    """Return the tensors that `equalize` scales, with the axis of their channels."""
    return {pair.between: pair.axis for pair in _Chains(graph).pairs()}


def equalize_request(
    request: QuantizeRequest, data: Data, rows: Mapping[str, ChannelRows]
) -> tuple[QuantizeRequest, int, set[str]]:
    """Equalize a copy of the model by its `rows`; return request, number of pairs, and rescaled tensors."""
    graph = request.graph.copy()
    rescaled = {name for pair in _Chains(graph).pairs() for name in pair.path}
    pairs = equalize(graph, {name: rows[name].amax for name in equalizable_tensors(graph) if name in rows})
    return (observe_balanced(request, graph, rescaled, data) if pairs else request), pairs, rescaled


def observe_balanced(
    request: QuantizeRequest, graph: Graph, rescaled: Collection[str], data: Data
) -> QuantizeRequest:
    """Return the request of a balanced model, with ranges of the rescaled tensors observed on it."""
    ranges = request.ranges
    assert ranges is not None, "static quantization needs ranges"
    fresh = observe(graph, data, tensors=rescaled, few=ranges.samples <= _FEW and runs_without_layouts(graph))
    changed = set(rescaled)
    shared = {name: sources for name, sources in ranges.shared.items() if name not in changed}
    needed = {source for sources in shared.values() for source in sources} - fresh.histograms.keys()
    histograms = {n: counts for n, counts in ranges.histograms.items() if n not in changed or n in needed}
    ranges = replace(ranges, histograms={**histograms, **fresh.histograms}, shared={**shared, **fresh.shared})
    return replace(request, graph=graph, ranges=ranges)


def stored_constants(graph: Graph, *types: int) -> dict[str, onnx.TensorProto]:
    """Store the constants of a graph; return its initializers of these types that are not inputs."""
    store_constants(graph.model.graph)
    graph.edited()
    inputs = {value.name for value in graph.model.graph.input}
    return {n: tensor for n, tensor in graph.stored.items() if n not in inputs and tensor.data_type in types}


class _Layer:
    """A layer's stored weights, and the factors that its channels will get.

    `peaks` holds the largest magnitude of each kernel: [groups, outputs of a group, inputs of a group].
    """

    def __init__(
        self, weight: onnx.TensorProto, bias: onnx.TensorProto | None, axis: int, groups: int
    ) -> None:
        self.weight, self.bias, self.axis, self.groups = weight, bias, axis, groups
        self.groups, self.outputs, self.inputs = groups, weight.dims[axis], groups * weight.dims[1 - axis]
        self.out_factors, self.in_factors = np.ones(self.outputs), np.ones(self.inputs)

    @cached_property
    def peaks(self) -> Floats:
        magnitudes = np.abs(self._by_output(tensor_values(self.weight)))
        peaks = magnitudes.reshape(*magnitudes.shape[:2], -1).max(axis=2, initial=0.0)
        grouped: Floats = peaks.reshape(self.groups, -1, peaks.shape[1]).astype(np.float64)
        return grouped

    def write(self) -> None:
        if (self.out_factors == 1).all() and (self.in_factors == 1).all():
            return
        values = tensor_values(self.weight)
        grid = self.factors().reshape(self.outputs, -1)
        by_output = self._by_output(values)
        scaled = by_output * grid.reshape(*grid.shape, *[1] * (values.ndim - 2))
        set_values(self.weight, self._by_output(scaled.astype(values.dtype)))
        if self.bias is not None:
            bias = tensor_values(self.bias)
            set_values(self.bias, (bias * self.out_factors).astype(bias.dtype))

    def _by_output(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self.axis == 0 else values.T

    def factors(self) -> Floats:
        out_factors = self.out_factors.reshape(self.groups, -1, 1)
        return out_factors * self.in_factors.reshape(self.groups, 1, -1)


@dataclass
class _Pair:
    """Two layers, the tensor that the second reads, the axis of its channels, and the tensors in between."""

    first: _Layer
    second: _Layer
    between: str
    axis: int
    path: tuple[str, ...]


class _Chains:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes = graph, graph.model.graph.node
        self.stored = stored_constants(graph, 1, 11)  # float32 and float64
        self.layers = {node.output[0]: self._layer(node) for node in self.nodes if node.output}

    def pairs(self) -> list[_Pair]:
        pairs = []
        for node in self.nodes:
            first = self.layers.get(node.output[0]) if node.output else None
            if first is None:
                continue
            tensor = str((self._bias_add(node) or node).output[0])
            path = list(dict.fromkeys([str(node.output[0]), tensor]))
            passthrough = _BY_CHANNEL if node.op_type == "Conv" else _BY_ROW
            while (reader := self._only_reader(tensor)) is not None and reader.op_type in passthrough:
                tensor = reader.output[0]
                path.append(tensor)
            if reader is None or reader.input[0] != tensor:
                continue
            second = self.layers.get(reader.output[0])
            if second is None or first.outputs != second.inputs:
                continue
            if (node.op_type == "Conv") == (reader.op_type == "Conv"):  # else the axes of channels differ
                axis = 1 if node.op_type == "Conv" else -1
                pairs.append(_Pair(first, second, tensor, axis, tuple(path)))
        return pairs

    def _layer(self, node: onnx.NodeProto) -> _Layer | None:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.domain not in ("", "ai.onnx"):
            return None
        weight = self._private_tensor(node.input[1])
        if weight is None or attribute(node, "transA", 0):
            return None
        if node.op_type != "Conv" and len(weight.dims) != 2:
            return None
        axis = 0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1
        add = self._bias_add(node)
        bias = next((name for name in add.input if name != node.output[0]), "") if add is not None else ""
        bias = str(node.input[2]) if len(node.input) > 2 else bias
        vector = self._private_tensor(bias)
        channels = weight.dims[axis]
        if bias and (vector is None or vector.dims[-1:] != [channels] or np.prod(vector.dims) != channels):
            return None
        return _Layer(weight, vector, axis, attribute(node, "group", 1))

    def _private_tensor(self, name: str) -> onnx.TensorProto | None:
        return self.stored.get(name) if self.graph.is_private(name) else None

    def _bias_add(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return the Add of a stored vector that follows a MatMul, or None."""
        reader = self._only_reader(node.output[0]) if node.op_type == "MatMul" else None
        if reader is None or reader.op_type != "Add" or not any(name in self.stored for name in reader.input):
            return None
        return reader

    def _only_reader(self, tensor: str) -> onnx.NodeProto | None:
        if not self.graph.is_private(tensor):
            return None
        reader = self.graph.consumers[tensor][0]
        return reader if reader.domain in ("", "ai.onnx") and len(reader.output) == 1 else None
