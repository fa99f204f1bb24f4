"""Weights whose products fit where a kernel adds two of them in 16 bits: x86 without VNNI.

`vpmaddubsw` adds the products of two neighbouring uint8 activations a, b and int8 weights p, q in int16. The
sum is right for every input up to the largest activations A and B if, and only if,

    A max(p, 0) + B max(q, 0) ≤ 32767     and     A max(-p, 0) + B max(-q, 0) ≤ 32767

as the largest sum reads A and B where a weight is positive and 0 where it is negative, and the least one the
other way round. With A = B = 255 the positive parts sum to at most 128, and the negative ones too. One weight
is always right: 255 * 127 = 32385.

Half of all weights (`reduce_range`, NNCF's overflow fix) meets this and wastes it: pairs of opposite signs,
of small weights and of rarely large activations need no seven bits. Here each output channel gets a scale
just large enough for its largest pair: of the float weights p and q,

    s = max(amax / 127, max over its pairs of (A max(p, 0) + B max(q, 0)) / 32767, and of the negative parts)

Where rounding takes a pair beyond the limit, the weight that was rounded up most is rounded down. GPTQ asks
for the room that the partner of a weight leaves.

Where samples show how large the activations of each input channel become, A and B are that, with a margin.
Sums of larger activations saturate: they lose what is beyond the limit, and no more.

Which weights are neighbours is what `model.saturating_kernels` found of the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ....calibration.qparams import UINT8, choose_qparams
from ....model.graph import attribute
from ....model.saturating_kernels import Order, SaturatingKernels
from ..weights.rounding import Room

if TYPE_CHECKING:
    import onnx

LARGEST = 255
"""Largest activation, where nothing is known of it."""
MARGIN = 1.1
"""What activations of other samples may be larger by."""
_INT16 = 32767
_QMAX = 127
_ROWS = 256  # output channels that are fitted at a time, to stay in the processor's cache


@dataclass(frozen=True, eq=False)
class PairLimits:
    """Which weights of a layer meet, and how large what they read becomes.

    Attributes:
        axes: The order of the weight's axes in which it is [output channels, depth], neighbours side by side.
        pairs: int [pairs, 2]: positions in the depth.
        largest: The largest uint8 activation at each position: float [depth], or [output channels, depth].
    """

    axes: tuple[int, ...]
    pairs: NDArray[np.intp]
    largest: NDArray[np.float64]

    def rows(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Return a weight, or its integers, as [output channels, depth]."""
        turned = weight.transpose(self.axes)
        rows: NDArray[Any] = turned.reshape(len(turned), -1)
        return rows

    def restored(self, rows: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return what `rows` made, in the weight's own shape again."""
        turned = rows.reshape([shape[axis] for axis in self.axes])
        return np.ascontiguousarray(turned.transpose(np.argsort(self.axes)))

    def fits(self, integers: NDArray[Any]) -> bool:
        """Return whether no pair of a weight's integers overflows."""
        rows = self.rows(integers).astype(np.float64)
        return not bool((_sums(rows, self.pairs, self._of(slice(None))) > _INT16).any())

    def fitted(self, weight: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
        """Return scales [output channels], and the integers of a float weight in its own shape."""
        rows = self.rows(weight).astype(np.float64)
        scales = np.empty(len(rows), np.float32)
        integers = np.empty(rows.shape, np.int8)
        for start in range(0, len(rows), _ROWS):
            part = slice(start, start + _ROWS)
            scales[part], integers[part] = _fit(rows[part], self.pairs, self._of(part))
        return scales, self.restored(integers, weight.shape)

    def least_scales(self, weight: NDArray[Any]) -> NDArray[np.float32]:
        """Return the scale [output channels] with which the largest pair of each channel just fits."""
        sums = _sums(self.rows(weight).astype(np.float64), self.pairs, self._of(slice(None)))
        scales: NDArray[np.float32] = (sums.max(axis=(1, 2), initial=0.0) / _INT16).astype(np.float32)
        return scales

    def limited(self, integers: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int8]:
        """Return integers of which no pair overflows, next to given ones.

        Args:
            integers: Whole numbers, -127 to 127, in the weight's shape.
            wanted: What they were rounded from, in steps: of a pair that is too large, the one that was
                rounded up most gives way.
        """
        rows, steps = self.rows(integers).astype(np.float64), self.rows(wanted).astype(np.float64)
        return self.restored(_limit(rows, steps, self.pairs, self._of(slice(None))), integers.shape)

    def room(self, shape: tuple[int, ...], middle: int) -> Room:
        """Return what GPTQ asks for: the lowest and the highest step that the partner of a column leaves.

        Args:
            shape: Of the weight.
            middle: The code that stands for 0.
        """
        width = int(np.prod(shape)) // shape[self.axes[0]]
        columns = self.rows(np.broadcast_to(self._columns(shape, width), shape))[0]
        largest = np.empty(self.largest.shape)
        largest[..., columns] = self.largest
        partner = np.full(width, -1)
        partner[columns[self.pairs[:, 1]]] = columns[self.pairs[:, 0]]
        partner[columns[self.pairs[:, 0]]] = columns[self.pairs[:, 1]]

        def room(column: int, codes: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
            other = int(partner[column])
            if not 0 <= other < column:
                return np.float64(-_QMAX), np.float64(_QMAX)
            steps = codes[other].astype(np.float64) - middle
            own, its = np.maximum(largest[..., column], 1.0), largest[..., other]
            lowest = -np.floor((_INT16 - its * np.maximum(-steps, 0.0)) / own)
            highest = np.floor((_INT16 - its * np.maximum(steps, 0.0)) / own)
            return np.maximum(lowest, -_QMAX), np.minimum(highest, _QMAX)

        return room

    def _columns(self, shape: tuple[int, ...], width: int) -> NDArray[np.intp]:
        """The column that GPTQ gives each weight of an output channel, in a shape that broadcasts."""
        axis = self.axes[0]
        inner = [1 if index == axis else extent for index, extent in enumerate(shape)]
        return np.arange(width).reshape(inner)

    def _of(self, part: slice) -> NDArray[np.float64]:
        return self.largest[part] if self.largest.ndim == 2 else self.largest[None]


def largest_uint8(amax: NDArray[np.float32], limits: tuple[float, float]) -> NDArray[np.float64]:
    """Return the largest uint8 that each channel of an activation becomes, with a margin.

    Args:
        amax: Largest magnitude of each channel that samples showed.
        limits: The activation's lowest and highest value, which decide its scale and zero_point.
    """
    qparams = choose_qparams(*limits, UINT8)
    steps = np.ceil(amax / float(qparams.scale) * MARGIN)
    largest: NDArray[np.float64] = np.minimum(steps + float(qparams.zero_point), LARGEST).astype(np.float64)
    return largest


def product_limits(depth: int) -> PairLimits:
    """Return the limits of a weight [depth, output channels] that is multiplied by activations up to 255."""
    return PairLimits((1, 0), _neighbours(1, depth, 1, "flat"), _largest(None, depth, 1))


def pair_limits(
    node: onnx.NodeProto,
    shape: tuple[int, ...],
    kernels: SaturatingKernels,
    largest: NDArray[Any] | None = None,
) -> PairLimits | None:
    """Return the limits of a layer's weight; None where its kernel adds in 32 bits.

    Args:
        node: Conv, ConvTranspose, Gemm or MatMul.
        shape: Of its weight.
        kernels: What saturates.
        largest: The largest uint8 activation of each input channel; 255 for all where it is not known.
    """
    if node.op_type not in ("Conv", "ConvTranspose"):
        by_output = node.op_type == "Gemm" and bool(attribute(node, "transB", 0))
        axes: tuple[int, ...] = (0, 1) if by_output else (1, 0)
        if not kernels.products or len(shape) != 2:
            return None
        return PairLimits(
            axes, _neighbours(1, shape[axes[1]], 1, "flat"), _largest(largest, shape[axes[1]], 1)
        )
    group = attribute(node, "group", 1)
    spatial = tuple(range(2, len(shape)))
    positions = int(np.prod(shape[2:]))
    if node.op_type == "ConvTranspose":  # [in, out / group, ...]: the groups share their scales
        order = kernels.convolution(shape[0] // group, shape[1], group)
        axes, channels, blocks = (1, *spatial, 0), shape[0], group
    else:
        order = kernels.convolution(shape[1], shape[0] // group, group)
        axes, channels, blocks = (0, *spatial, 1), shape[1], 1
    if not order:
        return None
    pairs = _neighbours(positions, channels, blocks, order)
    if largest is None or node.op_type == "ConvTranspose" or group == 1:
        return PairLimits(axes, pairs, _largest(largest, channels, positions))
    of_groups = np.repeat(np.asarray(largest).reshape(group, channels), shape[0] // group, axis=0)
    return PairLimits(axes, pairs, np.tile(of_groups, positions).astype(np.float64))


def _largest(largest: NDArray[Any] | None, channels: int, positions: int) -> NDArray[np.float64]:
    """[positions * channels]."""
    every = np.full(channels, LARGEST) if largest is None else np.asarray(largest)
    return np.tile(every, positions).astype(np.float64)


def _neighbours(positions: int, channels: int, blocks: int, order: Order) -> NDArray[np.intp]:
    """Pairs in a depth of positions, each with its channels in so many blocks of their own."""
    depth = np.arange(positions * channels)
    runs = [depth] if order == "flat" and blocks == 1 else np.split(depth, positions * blocks)
    pairs = [run[: len(run) // 2 * 2].reshape(-1, 2) for run in runs]
    return np.concatenate(pairs).astype(np.intp)


def _fit(
    rows: NDArray[np.float64], pairs: NDArray[np.intp], largest: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Scale and integers of each row: the scale of eight bits, or that with which its largest pair fits."""
    scales = np.abs(rows).max(axis=1, initial=0.0) / _QMAX
    scales = np.maximum(scales, _sums(rows, pairs, largest).max(axis=(1, 2), initial=0.0) / _INT16)
    scales = np.where(scales < np.finfo(np.float32).tiny, 1.0, scales).astype(np.float32)
    steps = rows / scales[:, None].astype(np.float64)
    return scales, _limit(np.clip(np.rint(steps), -_QMAX, _QMAX), steps, pairs, largest)


def _sums(
    rows: NDArray[np.float64], pairs: NDArray[np.intp], largest: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The largest and the least sum of each pair, both without sign: [rows, pairs, 2]."""
    a, b = rows[:, pairs[:, 0]] * largest[:, pairs[:, 0]], rows[:, pairs[:, 1]] * largest[:, pairs[:, 1]]
    above = np.maximum(a, 0.0) + np.maximum(b, 0.0)
    return np.stack([above, above - a - b], axis=-1)


def _limit(
    rounded: NDArray[np.float64],
    steps: NDArray[np.float64],
    pairs: NDArray[np.intp],
    largest: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Bring the weights of pairs that overflow nearer to zero: first both alike, then by the residual."""
    sums = _sums(rounded, pairs, largest)
    found = np.argwhere(sums.max(axis=-1) > _INT16)
    if not len(found):
        return rounded
    limits = np.broadcast_to(largest, rounded.shape)
    row, pair = found.T
    for side in (1.0, -1.0):  # the positive parts, then the negative ones; a pair may need both
        for _ in range(2 * _QMAX):
            i, j = pairs[pair, 0], pairs[pair, 1]
            p, q = np.maximum(rounded[row, i] * side, 0.0), np.maximum(rounded[row, j] * side, 0.0)
            beyond = p * limits[row, i] + q * limits[row, j] - _INT16
            over = beyond > 0
            if not over.any():
                break
            both = np.floor(beyond / (limits[row, i] + limits[row, j]))
            both = np.where(over & (p > both) & (q > both), both, 0.0)
            up_i, up_j = p - both - steps[row, i] * side, q - both - steps[row, j] * side
            first = np.where(q - both <= 0, True, np.where(p - both <= 0, False, up_i >= up_j))
            rounded[row, i] -= side * np.where(over, both + np.where(both > 0, 0.0, first), 0.0)
            rounded[row, j] -= side * np.where(over, both + np.where(both > 0, 0.0, ~first), 0.0)
    return rounded


def limits_of(
    nodes: Mapping[str, list[onnx.NodeProto]],
    shapes: Mapping[str, tuple[int, ...]],
    kernels: SaturatingKernels,
    largest: Mapping[str, NDArray[Any]],
) -> dict[str, PairLimits]:
    """Return the limits of each weight by its name.

    Args:
        nodes: Weight to the nodes that read it, all of one kind.
        shapes: Weight to its shape.
        kernels: What saturates.
        largest: Activation to the largest uint8 of each of its channels, where that is known.
    """
    limits = {}
    for weight, readers in nodes.items():
        several = [pair_limits(node, shapes[weight], kernels, largest.get(node.input[0])) for node in readers]
        known = [one for one in several if one is not None]
        if known:
            whole = known[0]
            for one in known[1:]:
                whole = PairLimits(whole.axes, whole.pairs, np.maximum(whole.largest, one.largest))
            limits[weight] = whole
    return limits
