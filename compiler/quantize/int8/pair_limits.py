"""Limits of int8 weights for kernels that add two products in 16 bits (x86 without VNNI).

`vpmaddubsw` adds the products of two neighbouring uint8 activations a, b and int8 weights p, q in int16. The
sum is largest if activations are 255 at positive weights and 0 at negative ones, and least in the reverse
case. So it is exact for all activations if, and only if,

    255 (max(p, 0) + max(q, 0)) ≤ 32767     and     255 (max(-p, 0) + max(-q, 0)) ≤ 32768

that is: the positive parts sum to at most 128, and so do the negative parts. A single product always fits.

Weights of 7 bits (`reduce_range`, NNCF's overflow fix) fit, too, but pairs of opposite signs and pairs of
small weights do not need this limit. Here the scale of each output channel is just large enough for its
largest pair: with the float weights p and q,

    s = max(amax / 127, max over its pairs of (max(p, 0) + max(q, 0)) / 128, and of the negative parts)

If rounding moves a pair over the limit, the weight that was rounded up more is rounded down. GPTQ limits each
weight to the steps that its partner leaves. `GraphRules.saturates` of the runtime defines the neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ....model.graph.graph import attribute
from ....model.graph.graph_rules import Order, SaturatingKernels
from ..weights.rounding import Room

LARGEST_SUM = 128
"""Limit of the sum of a pair's positive parts, and of its negative parts: 32767 // 255."""
_QMAX = 127
_ROWS = 256  # output channels that are fitted at a time; they fit the processor's cache


@dataclass(frozen=True, eq=False)
class PairLimits:
    """The pairs of a layer's weights whose products are added in 16 bits.

    `pairs` is int [pairs, 2]: positions in the depth, each in one pair at most. With its axes in the order
    `axes`, a weight is [output channels, depth], with neighbours side by side.
    """

    axes: tuple[int, ...]
    pairs: NDArray[np.intp]

    def rows(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Return a weight, or its integers, as [output channels, depth]."""
        transposed = weight.transpose(self.axes)
        rows: NDArray[Any] = transposed.reshape(len(transposed), -1)
        return rows

    def fits(self, integers: NDArray[Any]) -> bool:
        """Return whether no pair of integer weights overflows."""
        return not bool((_sums(self.rows(integers).astype(np.int16), self.pairs) > LARGEST_SUM).any())

    def min_scales(self, weight: NDArray[Any]) -> NDArray[np.float32]:
        """Return the smallest scales [output channels] with which the largest pair of each channel fits."""
        sums = _sums(self.rows(weight).astype(np.float64), self.pairs)
        return np.asarray(sums.max(axis=(1, 2), initial=0.0) / LARGEST_SUM, np.float32)

    def quantize(self, weight: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
        """Return scales [output channels], and a float weight as integers of the same shape."""
        rows = self.rows(weight)
        scales, integers = np.empty(len(rows), np.float32), np.empty(rows.shape, np.int8)
        for start in range(0, len(rows), _ROWS):
            chunk = slice(start, start + _ROWS)
            values = rows[chunk].astype(np.float64)
            least = np.abs(values).max(axis=1, initial=0.0) / _QMAX
            least = np.maximum(least, _sums(values, self.pairs).max(axis=(1, 2), initial=0.0) / LARGEST_SUM)
            scales[chunk] = np.where(least < np.finfo(np.float32).tiny, 1.0, least)
            steps = values / scales[chunk, None].astype(np.float64)
            integers[chunk] = _limit(np.clip(np.rint(steps), -_QMAX, _QMAX), steps, self.pairs)
        transposed = integers.reshape([weight.shape[axis] for axis in self.axes])
        return scales, np.ascontiguousarray(transposed.transpose(np.argsort(self.axes)))

    def step_limits(self, shape: tuple[int, ...], middle: int) -> Room:
        """Return the limits of steps for `gptq`, by the partner of a column; `middle` is the code of 0."""
        inner = [1 if axis == self.axes[0] else extent for axis, extent in enumerate(shape)]
        columns = self.rows(np.arange(np.prod(inner)).reshape(inner))[0]  # column of each position
        partner = np.full(len(columns), -1)
        partner[columns[self.pairs]] = columns[self.pairs[:, ::-1]]

        def room(column: int, codes: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
            if not 0 <= partner[column] < column:
                return np.array(-_QMAX), np.array(_QMAX)
            steps = codes[partner[column]].astype(np.int16) - middle
            lowest, highest = np.maximum(-steps, 0) - LARGEST_SUM, LARGEST_SUM - np.maximum(steps, 0)
            return np.maximum(lowest, -_QMAX), np.minimum(highest, _QMAX)

        return room


def product_limits(depth: int) -> PairLimits:
    """Return the limits of the weight [depth, output channels] of a product."""
    return PairLimits((1, 0), _neighbours(1, depth, 1, "flat"))


def pair_limits(
    node: onnx.NodeProto, shape: tuple[int, ...], kernels: SaturatingKernels
) -> PairLimits | None:
    """Return the limits of a layer's weight; None if its kernel adds in 32 bits."""
    if node.op_type not in ("Conv", "ConvTranspose"):
        if not kernels.products or len(shape) != 2:
            return None
        if node.op_type == "Gemm" and attribute(node, "transB", 0):
            return PairLimits((0, 1), _neighbours(1, shape[1], 1, "flat"))
        return product_limits(shape[0])
    group = attribute(node, "group", 1)
    spatial, positions = tuple(range(2, len(shape))), int(np.prod(shape[2:]))
    if node.op_type == "Conv":
        order = kernels.convolution(shape[1], shape[0] // group, group)
        axes, channels, blocks = (0, *spatial, 1), shape[1], 1
    else:  # [in, out / group, ...]: the groups share scales
        order = kernels.convolution(shape[0] // group, shape[1], group)
        axes, channels, blocks = (1, *spatial, 0), shape[0], group
    return PairLimits(axes, _neighbours(positions, channels, blocks, order)) if order else None


def find_pair_limits(
    nodes: Sequence[onnx.NodeProto], shapes: Mapping[str, tuple[int, ...]], kernels: SaturatingKernels
) -> dict[str, PairLimits]:
    """Return the limits of each stored weight by name; layers that share a weight have the same layout."""
    stored = {node.input[1]: node for node in nodes if node.input[1] in shapes}
    by_weight = {weight: pair_limits(node, shapes[weight], kernels) for weight, node in stored.items()}
    return {weight: limits for weight, limits in by_weight.items() if limits is not None}


def _neighbours(positions: int, channels: int, blocks: int, order: Order) -> NDArray[np.intp]:
    """Return neighbours [pairs, 2] in a depth of positions x channels, inside each block of a position;
    if `order` is "flat" and channels form one block, pairs may cross positions."""
    depth = np.arange(positions * channels)
    runs = [depth] if order == "flat" and blocks == 1 else np.split(depth, positions * blocks)
    return np.concatenate([run[: len(run) // 2 * 2].reshape(-1, 2) for run in runs]).astype(np.intp)


def _sums(rows: NDArray[Any], pairs: NDArray[np.intp]) -> NDArray[Any]:
    """Return the sums of the positive and of the negative parts of each pair, [rows, pairs, 2]."""
    a, b = rows[:, pairs[:, 0]], rows[:, pairs[:, 1]]
    positive_sums = np.maximum(a, 0) + np.maximum(b, 0)
    return np.stack([positive_sums, positive_sums - a - b], axis=-1)


def _limit(rounded: NDArray[np.float64], steps: NDArray[Any], pairs: NDArray[np.intp]) -> NDArray[np.float64]:
    """Move overflowing pairs toward zero, in place: both weights alike, and an odd step the weight that was
    rounded up more. If rounding alone caused the overflow, one weight changes by one step.
    """
    for sign in (1.0, -1.0):
        row, pair = np.nonzero(_sums(rounded, pairs)[..., 0 if sign > 0 else 1] > LARGEST_SUM)
        i, j = pairs[pair, 0], pairs[pair, 1]
        a, b = rounded[row, i] * sign, rounded[row, j] * sign  # both positive: each is at most 127
        excess = a + b - LARGEST_SUM
        half = np.floor(excess / 2)
        is_a_rounded_up = a - steps[row, i] * sign >= b - steps[row, j] * sign
        decrease_a = np.clip(half + (excess - 2 * half) * is_a_rounded_up, excess - b, a)
        rounded[row, i] -= sign * decrease_a
        rounded[row, j] -= sign * (excess - decrease_a)
    return rounded
