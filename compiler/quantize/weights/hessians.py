"""Collect Hessians for GPTQ: `2 X Xᵀ` of the inputs of each product, summed over samples.

A Conv is a product of its weight [N, C * kernel] and the patches of its input, one patch per output position.

The float model runs sample by sample with these inputs as additional outputs. A tensor with K features needs
K*K*4 bytes. If they exceed the budget, the samples run again for each further group of tensors, and finished
Hessians are mapped from a temporary file, which the system can evict from memory.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ....core.progress import Progress, silent
from ....data.batches import Data
from ....errors import CalibrationError
from ....model.graph.graph import attribute, producers
from ....model.graph.graph_edits import drop_initializer_inputs, store_constants
from ....model.graph.onnx_file import Graph
from ..activations import run_samples
from ..prepare import outputs_first

Hessian = NDArray[np.float32]

BUDGET_BYTES = 1 << 30
"""Limit of the Hessians that one pass over the samples collects; more Hessians need several passes."""

_ROWS = 512  # rows of a tensor that are multiplied at once, if samples have fewer
_PATCHES = "patches of "


def hessian_key(node: onnx.NodeProto) -> str:
    """Return the key of a node's Hessian: its input, "patches of OUTPUT" for a Conv, or "" without one."""
    if node.op_type in ("MatMul", "Gemm"):
        return "" if attribute(node, "transA", 0) else str(node.input[0])
    grouped = attribute(node, "group", 1) > 1
    return f"{_PATCHES}{node.output[0]}" if node.op_type == "Conv" and not grouped else ""


def hessian_of(
    readers: Sequence[onnx.NodeProto], hessians: Mapping[str, NDArray[Any]]
) -> NDArray[Any] | None:
    """Return the sum over all nodes that share a weight, or None if none of the nodes has a Hessian."""
    names = [name for node in readers if (name := hessian_key(node))]
    for name in names:
        if name not in hessians:
            raise CalibrationError(
                f"tensor {name!r}: its Hessian is missing", hint="collect those of every reader", tensor=name
            )
    return sum((hessians[name] for name in names[1:]), hessians[names[0]]) if names else None


def collect_hessians(
    model: Graph,
    inputs_of: Iterable[str],
    data: Data,
    limit: int,
    progress: Progress = silent,
) -> dict[str, Hessian]:
    """Return `2 X Xᵀ` of each tensor over samples, float32 [K, K], with X [K, values of the other axes].

    `inputs_of` has the `hessian_key` of nodes; K is the last axis of a tensor.
    """
    model = model.copy()
    graph = model.model.graph
    drop_initializer_inputs(model.model)
    store_constants(graph)
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    keys, made_by = set(inputs_of), producers(graph)
    readers = [n for n in graph.node if hessian_key(n) in keys and len(weights.get(n.input[1], ())) > 1]
    features = {hessian_key(node): _features(node, weights[node.input[1]]) for node in readers}
    convs = {key: made_by[key.removeprefix(_PATCHES)] for key in features if key.startswith(_PATCHES)}
    groups = _groups(features)
    hessians: dict[str, Hessian] = {}
    for number, group in enumerate(groups):
        sums = {key: _Sum(features[key]) for key in group}
        text = f"collect Hessians ({number + 1} of {len(groups)})" if len(groups) > 1 else "collect Hessians"
        sources = {key: convs[key].input[0] if key in convs else key for key in group}
        tensors = list(dict.fromkeys(sources.values()))
        for arrays in run_samples(model, tensors, data, limit, progress, doing=text):
            for key, source in sources.items():
                array = arrays[source]
                conv = convs.get(key)
                sums[key].add(
                    _patches(array, conv, weights[conv.input[1]][2:])
                    if conv is not None
                    else array.reshape(-1, features[key])
                )
        for key in group:
            hessians[key] = total = sums.pop(key).hessian()
            if len(groups) > 1:  # the temporary file is deleted with the array
                with tempfile.TemporaryFile(prefix="qcompile-hessian-") as file:
                    hessians[key] = np.memmap(file, np.float32, "w+", shape=total.shape)
                hessians[key][:] = total
    return hessians


def _features(node: onnx.NodeProto, weight: tuple[int, ...]) -> int:
    """Return K of a product's weight: [K, N], or [N, K, ...] if transposed or of a Conv."""
    return math.prod(weight[1:]) if outputs_first(node) else weight[-2]


def _patches(
    array: NDArray[np.float32], conv: onnx.NodeProto, kernel: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return the inputs of each position of a Conv's output: [B, C, ...] to [positions, C * kernel]."""
    axes = len(kernel)
    strides = attribute(conv, "strides", [1] * axes)
    dilations = attribute(conv, "dilations", [1] * axes)
    spans = [(extent - 1) * dilation + 1 for extent, dilation in zip(kernel, dilations, strict=True)]
    pads = conv_pads(conv, kernel, array.shape[2:])
    assert pads is not None, "the extents are known"
    around = [(0, 0), (0, 0), *zip(pads[:axes], pads[axes:], strict=True)]
    windows = sliding_window_view(np.pad(array, around), spans, tuple(range(2, 2 + axes)))
    steps = [slice(None), slice(None), *(slice(None, None, step) for step in (*strides, *dilations))]
    patches = windows[tuple(steps)]  # [B, C, positions, kernel]
    order = (1, *range(2 + axes, 2 + 2 * axes), 0, *range(2, 2 + axes))
    columns = np.ascontiguousarray(patches.transpose(order), np.float32)
    rows: NDArray[np.float32] = columns.reshape(array.shape[1] * math.prod(kernel), -1).T
    return rows


def conv_pads(conv: onnx.NodeProto, kernel: Sequence[int], extents: Sequence[int | str]) -> list[int] | None:
    """Return a Conv's padding before each axis, then behind; None if it depends on an unknown extent."""
    axes = len(kernel)
    automatic = attribute(conv, "auto_pad", "NOTSET")
    if not automatic.startswith("SAME"):
        return list(attribute(conv, "pads", [0] * (2 * axes)))
    strides, dilations = (attribute(conv, name, [1] * axes) for name in ("strides", "dilations"))
    totals = []
    for axis, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        extent = extents[axis] if axis < len(extents) else ""
        if stride > 1 and not isinstance(extent, int):
            return None
        remainder = (extent - 1) % stride if isinstance(extent, int) else 0
        totals.append(max((size - 1) * dilation - remainder, 0))
    smaller, larger = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return smaller + larger if automatic == "SAME_UPPER" else larger + smaller


def _groups(features: dict[str, int]) -> list[list[str]]:
    """Distribute the tensors over few passes that fit the budget, with at least one tensor each."""
    groups: list[list[str]] = []
    taken = 0
    for name, extent in sorted(features.items(), key=lambda item: item[1]):
        size = extent * extent * np.dtype(np.float32).itemsize
        if not groups or taken + size > BUDGET_BYTES:
            groups.append([])
            taken = 0
        groups[-1].append(name)
        taken += size
    return groups


class _Sum:
    """Sums `2 X Xᵀ` of one tensor. Small samples are collected: a few rows cost as much as hundreds."""

    def __init__(self, features: int) -> None:
        self.total = np.zeros((features, features), np.float32)
        self.waiting: list[NDArray[np.float32]] = []

    def add(self, rows: NDArray[np.float32]) -> None:
        self.waiting.append(rows)
        if sum(map(len, self.waiting)) >= _ROWS:
            self._flush()

    def hessian(self) -> Hessian:
        self._flush()
        self.total *= 2
        return self.total

    def _flush(self) -> None:
        if self.waiting:
            rows = self.waiting[0] if len(self.waiting) == 1 else np.concatenate(self.waiting)
            self.total += rows.T @ rows
            self.waiting.clear()
