"""SmoothQuant: outlier channels of activations move into the weights that multiply them.

    x ─ MatMul(w)      becomes      x/s ─ MatMul(s·w)

A Transformer's activations have a few channels that are far larger than the rest, always the same ones.
They take the one scale of the tensor for themselves; weights, with a scale per output channel, have room to
spare (Xiao et al. 2022, arXiv 2211.10438). Factors are powers of two, so that the float model computes the
very same numbers as before. `places` finds where factors can move, and what takes the 1/s; the strength is
searched for each place by itself, as the paper searches it for the model: the one with the least error of
the products on observed rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ....calibration.qparams import (
    INT8,
    UINT8,
    choose_qparams,
    choose_weight_qparams,
    dequantize,
    per_channel,
    quantize,
)
from ....errors import CalibrationError, ModelError
from ....model.graph_edits import name_nodes, set_values, store, store_constants
from ..activations import run_samples
from .places import Place, find_places

if TYPE_CHECKING:
    import onnx

    from ....data.batches import Data

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Strengths that are tried, beside none at all: how much of the difficulty moves into the weights."""

LEAST_GAIN_DB = {True: 0.1, False: 1.0}
"""What a place must gain where its factors fold, and where they cost a multiplication."""

_LARGEST_FACTOR = 2.0**12

Floats = NDArray[np.float64]


@dataclass
class Smoothed:
    """What was done to a model.

    Attributes:
        places: Tensor to what was done there: "alpha 0.5, into 'gain', 3.1 dB".
        left_alone: Node to the reason why the tensor that it reads keeps its channels.
        rescaled: Tensors that hold other values than before, or are new: their ranges are to be observed.
    """

    places: dict[str, str] = field(default_factory=dict)
    left_alone: dict[str, str] = field(default_factory=dict)
    rescaled: list[str] = field(default_factory=list)


def smooth(model: onnx.ModelProto, observed: Mapping[str, Rows], *, symmetric: bool = False) -> Smoothed:
    """Smooth every place that gains by it, in place.

    `s_j = max|X_j|^alpha / max|W_j|^(1-alpha)` (equation 4 of the paper), X the activations and W_j all
    weights that read channel j. A place is left as it is where no strength lowers the error of its products
    by `LEAST_GAIN_DB`.

    Args:
        model: The float model; its function is kept to the last bit, but for subnormal numbers.

    Raises:
        ModelError: If a tensor has another number of channels than was observed.
    """
    store_constants(model.graph)
    name_nodes(model.graph)
    places, left = find_places(model)
    result = Smoothed(left_alone=left)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    made = {name for node in model.graph.node for name in node.output}
    for place in places:
        rows = observed.get(place.tensor)
        if rows is None:
            reason = "it was not observed" if place.tensor in made else "it reads an input of the model"
            result.left_alone |= dict.fromkeys(place.products, reason)
            continue
        if len(rows.low) != place.channels:
            raise ModelError(
                f"tensor {place.tensor!r}: {len(rows.low)} channels observed; {place.channels} are read",
                hint="observe the model that is smoothed",
                tensor=place.tensor,
            )
        matrices = _matrices(place, stored)
        alpha, factors, gain_db = best_factors(rows, matrices, symmetric=symmetric)
        least = LEAST_GAIN_DB[place.folds]
        if gain_db < least:
            reason = f"smoothing gains {max(gain_db, 0):.1f} dB there; {least} dB is required"
            result.left_alone |= dict.fromkeys(place.products, reason)
            continue
        taker, rescaled = _move(model, place, factors, stored)
        result.places[place.tensor] = f"alpha {alpha}, {taker}, {gain_db:.1f} dB"
        result.rescaled += rescaled
    return result


def smoothable(model: onnx.ModelProto) -> set[str]:
    """Return the names of the tensors that `smooth` may rescale."""
    store_constants(model.graph)
    name_nodes(model.graph)
    made = {name for node in model.graph.node for name in node.output}
    return {place.tensor for place in find_places(model)[0]} & made


def best_factors(
    rows: Rows, matrices: Sequence[NDArray[Any]], *, symmetric: bool
) -> tuple[float, Floats, float]:
    """Return the strength with the least error, its factors [channels], and the gain over none, in dB.

    `rows` flow into the weights `matrices`, each [channels, outputs].
    """
    peaks = np.max([np.abs(matrix).max(axis=1, initial=0.0) for matrix in matrices], axis=0)
    exact = [rows.rows @ matrix for matrix in matrices]
    none = np.ones(len(rows.low))
    plain = product_error(rows, matrices, exact, none, symmetric=symmetric)
    best, chosen, least = 0.0, none, plain
    for alpha in ALPHAS:
        tried = smoothing_factors(rows.amax.astype(np.float64), peaks.astype(np.float64), alpha)
        error = product_error(rows, matrices, exact, tried, symmetric=symmetric)
        if error < least:
            best, chosen, least = alpha, tried, error
    if least >= plain:
        return 0.0, none, 0.0
    return best, chosen, float(10 * np.log10(plain / max(least, np.finfo(np.float64).tiny)))


def product_error(
    rows: Rows,
    matrices: Sequence[NDArray[Any]],
    exact: Sequence[NDArray[Any]],
    factors: Floats,
    *,
    symmetric: bool,
) -> float:
    """Return the squared error of products of eight bits, by the power of each, summed over the matrices."""
    low, high = (rows.low / factors).min(), (rows.high / factors).max()
    qparams = choose_qparams(low, high, INT8 if symmetric else UINT8)
    values = dequantize(quantize(rows.rows / factors.astype(np.float32), qparams), qparams)
    total = 0.0
    for matrix, expected in zip(matrices, exact, strict=True):
        scaled = np.ascontiguousarray(matrix * factors[:, None].astype(np.float32))
        of_weight = choose_weight_qparams(scaled, 1)
        error = values @ dequantize(quantize(scaled, of_weight), of_weight) - expected
        power = float(np.square(expected, dtype=np.float64).sum())
        total += float(np.square(error, dtype=np.float64).sum()) / (power or 1.0)
    return total


def smoothing_factors(amax: Floats, peaks: Floats, alpha: float) -> Floats:
    """Return the powers of two next to `s`; 1 where a channel, or what reads it, is all zeros."""
    live = (amax > 0) & (peaks > 0)
    logs = np.zeros_like(amax)
    logs[live] = alpha * np.log2(amax[live]) - (1 - alpha) * np.log2(peaks[live])
    return np.clip(np.exp2(np.round(logs)), 1 / _LARGEST_FACTOR, _LARGEST_FACTOR)


def _matrices(place: Place, stored: Mapping[str, onnx.TensorProto]) -> list[NDArray[Any]]:
    from onnx import numpy_helper

    arrays = [(numpy_helper.to_array(stored[name]), axis) for name, axis in place.weights]
    return [array.T if axis else array for array, axis in arrays]


def _move(
    model: onnx.ModelProto, place: Place, factors: Floats, stored: dict[str, onnx.TensorProto]
) -> tuple[str, list[str]]:
    """Multiply the weights by the factors, divide what they read; return what did that, and what changed."""
    for name, axis in place.weights:
        _scale(stored[name], factors, axis)
    for name in place.vectors:
        _scale(stored[name], 1 / factors, 0)
    if place.columns is not None:
        _scale(stored[place.columns[0]], 1 / factors, place.columns[1])
        return f"into the columns of {place.columns[0]!r}", list(place.rescaled)
    if place.vectors:
        return f"into {', '.join(map(repr, place.vectors))}", list(place.rescaled)
    return "by a multiplication", _insert_mul(model, place, factors)


def _scale(tensor: onnx.TensorProto, factors: Floats, axis: int) -> None:
    from onnx import numpy_helper

    values = numpy_helper.to_array(tensor)
    set_values(tensor, values * per_channel(factors, axis, values.ndim).astype(values.dtype))


def _insert_mul(model: onnx.ModelProto, place: Place, factors: Floats) -> list[str]:
    """Let the products read their activations times 1/s; return the new tensors.

    The Mul stands behind a Reshape, not in front of it, so that QuantizeLinear follows at once: OpenVINO
    fuses the two then (MulFakeQuantizeFusion), and the Mul costs nothing.
    """
    from onnx import helper

    graph, factors_name = model.graph, f"{place.tensor}/factors"
    store(graph, factors_name, (1 / factors).astype(np.float32))
    nodes = {node.name: node for node in graph.node}
    smoothed: dict[str, str] = {}
    for product in (nodes[name] for name in place.products):
        read = str(product.input[0])
        if read not in smoothed:
            smoothed[read] = f"{read}/smoothed"
            node = helper.make_node("Mul", [read, factors_name], [smoothed[read]], name=f"{read}/smooth")
            position = next(i for i, n in enumerate(graph.node) if read in n.output)
            graph.node.insert(position + 1, node)
        product.input[0] = smoothed[read]
    return list(smoothed.values())


_KEPT_ROWS = 1024
_ROWS_OF_SAMPLE = 64


@dataclass
class Rows:
    """Some of what a tensor held.

    Attributes:
        low, high: Smallest and largest value of each channel over all rows seen, float32 [channels].
        rows: Some of the rows, float32 [rows, channels].
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    rows: NDArray[np.float32]

    @property
    def amax(self) -> NDArray[np.float32]:
        """The largest magnitude of each channel."""
        largest: NDArray[np.float32] = np.maximum(np.abs(self.low), np.abs(self.high))
        return largest


def observe_rows(
    model: onnx.ModelProto,
    path: Path,
    tensors: Collection[str],
    data: Data,
    limit: int | None = None,
) -> dict[str, Rows]:
    """Run the samples; return the extremes of each tensor's channels, its last axis, and some of its rows.

    Memory holds `_KEPT_ROWS` rows of each tensor, evenly spaced within each sample.

    Raises:
        CalibrationError: If a tensor becomes NaN or infinite, naming tensor and sample.
        ModelError: If a tensor is not made by a node, or ONNX Runtime refuses the model.
    """
    rows_of: dict[str, Rows] = {}
    for where, arrays in run_samples(model, path, sorted(tensors), data, limit):
        for name, array in arrays.items():
            rows = array.reshape(-1, array.shape[-1])
            if not rows.size:
                continue
            if not np.isfinite(rows).all():
                raise CalibrationError(
                    f"{where}: tensor {name!r} becomes NaN or infinite; finite values are required",
                    hint="check the sample and the float model",
                    tensor=name,
                )
            step = max(1, -(-len(rows) // _ROWS_OF_SAMPLE))
            one = Rows(rows.min(axis=0), rows.max(axis=0), rows[::step].copy())
            rows_of[name] = _merged(rows_of[name], one) if name in rows_of else one
    return rows_of


def _merged(first: Rows, second: Rows) -> Rows:
    room = max(0, _KEPT_ROWS - len(first.rows))
    rows = np.concatenate([first.rows, second.rows[:room]]) if room else first.rows
    return Rows(np.minimum(first.low, second.low), np.maximum(first.high, second.high), rows)
