"""SmoothQuant: move outlier channels of activations into the weights that multiply them.

    x ─ MatMul(w)      becomes      x/s ─ MatMul(s·w)

A few channels of a Transformer's activations are far larger than the others and determine the only scale of
the tensor; weights, with a scale per output channel, have room to spare (Xiao et al. 2022, arXiv 2211.10438).
Factors are powers of two, so that the float model computes the very same numbers as before. The strength at
each place minimizes the error of the products on observed rows.

A place is a tensor `x` and all products `x @ w` with stored weights that read it, directly or through a
Reshape that preserves the last axis:

    x ─┬─ MatMul(w1)                 x/s ─┬─ MatMul(s·w1)
       ├─ Reshape ─ Gemm(w2)  becomes     ├─ Reshape ─ Gemm(s·w2)
       └─ Add (a residual)        x ──────┴─ Add

If nothing else reads `x`, its producer can apply the 1/s:

1. LayerNormalization: in its gain and bias.
2. Mul or Add of a stored vector, the end of a LayerNorm that is written in plain operators: in the vectors.
3. A product with its bias, through Reshape, Transpose and the attention's product (the projection of the
   values): in its columns.

Otherwise a Mul in front of the products applies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from ....calibration.qparams import (
    INT8,
    UINT8,
    choose_qparams,
    choose_weight_qparams,
    dequantize,
    per_channel,
    quantize,
)
from ....data.batches import Data
from ....model.graph.graph import attribute, tensor_values
from ....model.graph.graph_edits import set_values, store
from ....model.graph.graph_names import Names, name_nodes
from ....model.graph.graph_rules import graph_rules
from ....model.graph.onnx_file import Graph
from ..activations import ChannelRows, observe_rows
from ..request import QuantizeRequest
from .equalize import (
    CHANNEL_SAMPLES,
    LARGEST_FACTOR,
    Floats,
    equalizable_tensors,
    observe_balanced,
    stored_constants,
)

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Strengths to try, besides no smoothing: the share of the outliers that moves into the weights."""

_COMPARED_OUTPUTS = 384
"""Outputs of a matrix on which strengths are compared: a third of the time of all outputs of BERT-base."""

LEAST_GAIN_DB = {True: 0.1, False: 1.0}
"""Least gain of a place if the producer takes the factors (True), and if they cost a multiplication."""


@dataclass
class Smoothed:
    """Changes that smoothing made to a model."""

    # tensor to its change: "alpha 0.5, into 'gain', 3.1 dB"
    places: dict[str, str] = field(default_factory=dict)
    # node to the reason why its input is not smoothed
    left_alone: dict[str, str] = field(default_factory=dict)
    # new and changed tensors, which need new ranges
    rescaled: list[str] = field(default_factory=list)


def smooth(graph: Graph, observed: Mapping[str, ChannelRows], *, symmetric: bool = False) -> Smoothed:
    """Smooth in place every place that gains enough.

    `s_j = max|X_j|^alpha / max|W_j|^(1-alpha)` (equation 4 of the paper), X the activations and W_j all
    weights that multiply channel j. A place is unchanged if no strength lowers the error of its products by
    `LEAST_GAIN_DB`. The model computes the same bits as before, except for subnormal numbers.
    """
    places, reasons = _Finder(graph).find()
    result = Smoothed(left_alone=reasons)
    for place in places:
        rows = observed.get(place.tensor)
        if rows is None:
            is_computed = place.tensor in graph.producers
            reason = "it was not observed" if is_computed else "it reads an input of the model"
            result.left_alone |= dict.fromkeys(place.products, reason)
            continue
        arrays = [(tensor_values(graph.stored[name]), axis) for name, axis in place.weights]
        matrices = [array.T if axis else array for array, axis in arrays]
        alpha, factors, gain_db = best_factors(rows, matrices, symmetric=symmetric)
        least_db = LEAST_GAIN_DB[bool(place.vectors or place.columns)]
        if gain_db < least_db:
            reason = f"smoothing gains {max(gain_db, 0):.1f} dB there; {least_db} dB is required"
            result.left_alone |= dict.fromkeys(place.products, reason)
            continue
        location, rescaled = _move(graph, place, factors)
        result.places[place.tensor] = f"alpha {alpha}, {location}, {gain_db:.1f} dB"
        result.rescaled += rescaled
    graph.edited()
    return result


def smoothable(graph: Graph) -> set[str]:
    """Return the names of the tensors that `smooth` may rescale."""
    return {place.tensor for place in _Finder(graph).find()[0]} & graph.producers.keys()


def observe_channels(request: QuantizeRequest, data: Data) -> dict[str, ChannelRows]:
    """Run the samples once; return the rows of the tensors for `equalize_request` and `smooth_request`."""
    graph = request.graph.copy()
    axes = dict.fromkeys(smoothable(graph), -1) | equalizable_tensors(graph)
    return observe_rows(graph, axes, data, CHANNEL_SAMPLES)


def smooth_request(
    request: QuantizeRequest, data: Data, rows: Mapping[str, ChannelRows]
) -> tuple[QuantizeRequest, Smoothed]:
    """Smooth a copy of the model; return its request and the changes. Rows missing in `rows` are observed."""
    graph = request.graph.copy()
    missing = dict.fromkeys(smoothable(graph) - rows.keys(), -1)
    observed = {**rows, **observe_rows(graph, missing, data, CHANNEL_SAMPLES)}
    changes = smooth(graph, observed, symmetric=graph_rules(request.spec.target).symmetric)
    return (
        observe_balanced(request, graph, changes.rescaled, data) if changes.rescaled else request
    ), changes


def best_factors(
    rows: ChannelRows, matrices: Sequence[NDArray[Any]], *, symmetric: bool
) -> tuple[float, Floats, float]:
    """Return the best strength, its factors [channels], and gain in dB; a matrix is [channels, outputs]."""
    peaks = np.max([np.abs(matrix).max(axis=1, initial=0.0) for matrix in matrices], axis=0)
    # Each output has a scale, so some outputs represent all.
    matrices = [matrix[:, :: -(-matrix.shape[1] // _COMPARED_OUTPUTS) or 1] for matrix in matrices]
    exact = [rows.rows @ matrix for matrix in matrices]
    ones = np.ones(len(rows.low))
    baseline = product_error(rows, matrices, exact, ones, symmetric=symmetric)
    best_alpha, factors, least_error = 0.0, ones, baseline
    for alpha in ALPHAS:
        candidate = smoothing_factors(rows.amax.astype(np.float64), peaks.astype(np.float64), alpha)
        error = product_error(rows, matrices, exact, candidate, symmetric=symmetric)
        if error < least_error:
            best_alpha, factors, least_error = alpha, candidate, error
    if least_error >= baseline:
        return 0.0, ones, 0.0
    return best_alpha, factors, float(10 * np.log10(baseline / max(least_error, np.finfo(np.float64).tiny)))


def product_error(
    rows: ChannelRows,
    matrices: Sequence[NDArray[Any]],
    exact: Sequence[NDArray[Any]],
    factors: Floats,
    *,
    symmetric: bool,
) -> float:
    """Return the squared error of 8-bit products relative to the power of each, summed over the matrices."""
    low, high = (rows.low / factors).min(), (rows.high / factors).max()
    qparams = choose_qparams(low, high, INT8 if symmetric else UINT8)
    values = dequantize(quantize(rows.rows / factors.astype(np.float32), qparams), qparams)
    total = 0.0
    for matrix, expected in zip(matrices, exact, strict=True):
        scaled = np.ascontiguousarray(matrix * factors[:, None].astype(np.float32))
        weight_qparams = choose_weight_qparams(scaled, 1)
        error = values @ dequantize(quantize(scaled, weight_qparams), weight_qparams) - expected
        power = float(np.square(expected, dtype=np.float64).sum())
        total += float(np.square(error, dtype=np.float64).sum()) / (power or 1.0)
    return total


def smoothing_factors(amax: Floats, peaks: Floats, alpha: float) -> Floats:
    """Return the powers of two next to `s`; 1 where a channel or its weights are all zeros."""
    live = (amax > 0) & (peaks > 0)
    logs = np.zeros_like(amax)
    logs[live] = alpha * np.log2(amax[live]) - (1 - alpha) * np.log2(peaks[live])
    return np.clip(np.exp2(np.round(logs)), 1 / LARGEST_FACTOR, LARGEST_FACTOR)


def _move(graph: Graph, place: SmoothedTensor, factors: Floats) -> tuple[str, list[str]]:
    """Multiply weights by the factors, divide their input; return where it is divided, and changed tensors.

    A Mul goes behind a Reshape, not in front of it, so that QuantizeLinear follows at once: OpenVINO then
    fuses the two (MulFakeQuantizeFusion), and the Mul costs nothing.
    """
    for name, axis in place.weights:
        _scale(graph.stored[name], factors, axis)
    for name in place.vectors:
        _scale(graph.stored[name], 1 / factors, 0)
    if place.columns is not None:
        _scale(graph.stored[place.columns[0]], 1 / factors, place.columns[1])
        return f"into the columns of {place.columns[0]!r}", list(place.rescaled)
    if place.vectors:
        return f"into {', '.join(map(repr, place.vectors))}", list(place.rescaled)
    proto, names = graph.model.graph, Names(graph.model.graph)
    factors_name = store(proto, names.fresh(f"{place.tensor}/factors"), (1 / factors).astype(np.float32))
    nodes = {node.name: node for node in proto.node}
    smoothed: dict[str, str] = {}
    for product in (nodes[name] for name in place.products):
        source = str(product.input[0])
        if source not in smoothed:
            smoothed[source], name = names.fresh(f"{source}/smoothed"), names.fresh(f"{source}/smooth")
            node = helper.make_node("Mul", [source, factors_name], [smoothed[source]], name)
            position = next(i for i, n in enumerate(proto.node) if source in n.output)
            proto.node.insert(position + 1, node)
        product.input[0] = smoothed[source]
    return "by a multiplication", list(smoothed.values())


def _scale(tensor: onnx.TensorProto, factors: Floats, axis: int) -> None:
    values = tensor_values(tensor)
    set_values(tensor, values * per_channel(factors, axis, values.ndim).astype(values.dtype))


_HEADS = [0, 2, 1, 3]  # [batch, positions, heads, width] to [batch, heads, positions, width], and back


@dataclass(frozen=True)
class SmoothedTensor:
    """A tensor with channels on its last axis, and the products of it by stored matrices."""

    tensor: str
    products: tuple[str, ...]  # names of the nodes
    # names of the matrices, each with the axis of the channels that are read: 0 or 1
    weights: tuple[tuple[str, int], ...]
    channels: int
    vectors: tuple[str, ...] = ()  # stored vectors that take 1/s: gain, bias
    # a stored matrix and the axis of its outputs, which take 1/s
    columns: tuple[str, int] | None = None
    # tensors with other values once 1/s is folded; empty if a Mul is needed
    rescaled: tuple[str, ...] = ()


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.stored = graph, stored_constants(graph, 1)
        name_nodes(graph.model.graph)

    def find(self) -> tuple[list[SmoothedTensor], dict[str, str]]:
        """Return the places in the order of execution, and node to the reason why it is not smoothed."""
        groups: dict[str, list[onnx.NodeProto]] = {}
        reasons: dict[str, str] = {}
        for node in self.graph.model.graph.node:
            if node.op_type not in ("MatMul", "Gemm") or node.domain not in ("", "ai.onnx"):
                continue
            reason = self._unfit_reason(node)
            if reason:
                reasons[node.name] = reason
            else:
                groups.setdefault(self._root(node), []).append(node)
        places = []
        for tensor, nodes in groups.items():
            fit = [node for node in nodes if self._channels(node) == self._channels(nodes[0])]
            reasons |= {n.name: "it reads other channels than its neighbour" for n in nodes if n not in fit}
            places.append(self._place(tensor, fit))
        return places, reasons

    def _unfit_reason(self, node: onnx.NodeProto) -> str:
        if node.input[1] not in self.stored:
            return "its second operand is not a stored float32 matrix"
        weight = self.stored[node.input[1]]
        if len(weight.dims) != 2:
            return f"its weight has {len(weight.dims)} axes; 2 are required"
        if not self.graph.is_private(weight.name):
            return "its weight is read elsewhere too"
        if attribute(node, "transA", 0):
            return "it reads its activations transposed"
        if node.input[0] in self.stored:
            return "its first operand is stored"
        return ""

    def _channels(self, node: onnx.NodeProto) -> int:
        axis = attribute(node, "transB", 0)
        return int(self.stored[node.input[1]].dims[axis])

    def _root(self, node: onnx.NodeProto) -> str:
        """Return the tensor in front of Reshapes that preserve the last axis and feed only products."""
        name = str(node.input[0])
        while (producer := self.graph.producers.get(name)) is not None and producer.op_type == "Reshape":
            shape = self.graph.shapes.get(producer.input[0], ())
            readers = {reader.op_type for reader in self.graph.consumers.get(name, ())}
            if not shape or shape[-1] != self._channels(node) or name in self.graph.pinned:
                break
            if readers - {"MatMul", "Gemm", "Reshape", "Shape"}:
                break
            name = str(producer.input[0])
        return name

    def _place(self, tensor: str, nodes: list[onnx.NodeProto]) -> SmoothedTensor:
        weights = tuple((str(n.input[1]), attribute(n, "transB", 0)) for n in nodes)
        names = tuple(node.name for node in nodes)
        plain = SmoothedTensor(tensor, names, weights, self._channels(nodes[0]))
        rescaled = self._reshaped_forms(tensor, set(names))
        producer = self.graph.producers.get(tensor)
        if rescaled is None or producer is None:
            return plain
        if (folded := self._vectors(producer, plain.channels)) is not None:
            return replace(plain, vectors=folded[0], rescaled=(*folded[1], *rescaled))
        if (columns := self._columns(tensor, plain.channels)) is not None:
            matrix, bias, inner = columns
            return replace(plain, vectors=bias, columns=matrix, rescaled=(*inner, *rescaled))
        return plain

    def _reshaped_forms(self, tensor: str, products: set[str]) -> tuple[str, ...] | None:
        """Return the tensor and its reshaped forms; None if other nodes than the products read the values."""
        if tensor in self.graph.pinned:
            return None
        names = [tensor]
        for node in self.graph.consumers.get(tensor, ()):
            if node.name in products or node.op_type == "Shape":
                continue
            inner = self._reshaped_forms(node.output[0], products) if node.op_type == "Reshape" else None
            if inner is None:
                return None
            names += inner
        return tuple(names)

    def _is_private_vector(self, name: str, channels: int) -> bool:
        tensor = self.stored.get(name) if self.graph.is_private(name) else None
        return tensor is not None and list(tensor.dims) == [channels]

    def _vectors(
        self, producer: onnx.NodeProto, channels: int
    ) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Return the stored vectors that scale a tensor, and the tensors in between, or None."""
        if producer.op_type == "LayerNormalization":
            parameters = tuple(str(name) for name in producer.input[1:] if name)
            last = attribute(producer, "axis", -1) == -1 and len(producer.output) == 1
            fit = last and all(self._is_private_vector(name, channels) for name in parameters)
            return (parameters, ()) if fit and parameters else None
        if producer.op_type not in ("Mul", "Add") or len(producer.input) != 2:
            return None
        vector = next((str(n) for n in producer.input if self._is_private_vector(n, channels)), "")
        if not vector:
            return None
        if producer.op_type == "Mul":
            return (vector,), ()
        inside = next(str(name) for name in producer.input if name != vector)
        gain = self.graph.producers.get(inside)
        if gain is None or gain.op_type != "Mul" or not self.graph.is_private(inside):
            return None
        gain_vectors = self._vectors(gain, channels)
        return ((vector, *gain_vectors[0]), (inside, *gain_vectors[1])) if gain_vectors is not None else None

    def _columns(
        self, tensor: str, channels: int
    ) -> tuple[tuple[str, int], tuple[str, ...], tuple[str, ...]] | None:
        """Return the matrix that projects an attention's values, its bias, and the tensors in between."""
        path: list[str] = []
        name = tensor
        for step in ("Reshape", "Transpose", "MatMul", "Transpose", "Reshape"):
            node = self.graph.producers.get(name)
            if node is None or node.op_type != step or (path and not self._read_once(name)):
                return None
            if step == "Transpose" and attribute(node, "perm") != _HEADS:
                return None
            name = str(node.input[1] if step == "MatMul" else node.input[0])
            path.append(name)
        bias: tuple[str, ...] = ()
        for _ in range(4):  # Reshape and Add in any order, then the product
            node = self.graph.producers.get(name)
            if node is None or not self._read_once(name):
                return None
            if node.op_type in ("MatMul", "Gemm"):
                axis = 1 - attribute(node, "transB", 0)
                bias += tuple(str(vector) for vector in node.input[2:] if vector)
                fits = not self._unfit_reason(node) and self.stored[node.input[1]].dims[axis] == channels
                fits = fits and all(self._is_private_vector(vector, channels) for vector in bias)
                return ((str(node.input[1]), axis), bias, tuple(path)) if fits else None
            name = str(node.input[0])
            if node.op_type == "Add":
                vector = next((str(n) for n in node.input if self._is_private_vector(n, channels)), "")
                if not vector:
                    return None
                bias, name = (vector,), next(str(n) for n in node.input if n != vector)
            elif node.op_type != "Reshape":
                return None
            path.append(name)
        return None

    def _read_once(self, name: str) -> bool:
        """Return whether exactly one node reads a tensor's values; nodes may also read its shape."""
        values = [node for node in self.graph.consumers.get(name, ()) if node.op_type != "Shape"]
        return name not in self.graph.pinned and len(values) == 1
