"""Hessians for GPTQ: `2 X Xᵀ` of the inputs of each product, summed over samples.

A Conv is a product too, of its weight [N, C * kernel] and the patches of its input, one per position.

The float model runs sample by sample with these tensors among its outputs. A tensor with K features
takes K*K*4 bytes, so where they are too many for the budget, the samples run again for the next few; what
is done lies in a temporary file then, mapped, and the system may put it out of memory.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ....calibration.one_by_one import one_by_one
from ....data.batches import Data
from ....data.readers import Batch
from ....errors import CalibrationError, DataError
from ....model.graph import attribute, constant_names, constant_tensor, infer_types, producers
from ....model.session import make_session, run_session, session_options
from ....model.weightless import WeightlessModel, read_weightless
from ....progress import Progress, silent

Hessian = NDArray[np.float32]

BUDGET_BYTES = 1 << 30
"""Hessians that grow at a time; with more of them there are several passes."""

_ROWS = 512  # values of a tensor that are multiplied at once, where samples have fewer
_PATCHES = "patches of "


def hessian_key(node: onnx.NodeProto) -> str:
    """Return what a node's Hessian is known by: its input's name, or "patches of " and the name of a Conv's
    output; "" where it has none, or one for each of its groups.
    """
    if node.op_type in ("MatMul", "Gemm"):
        return str(node.input[0])
    grouped = attribute(node, "group", 1) > 1
    return f"{_PATCHES}{node.output[0]}" if node.op_type == "Conv" and not grouped else ""


def hessian_of(
    readers: Sequence[onnx.NodeProto], hessians: Mapping[str, NDArray[Any]]
) -> NDArray[Any] | None:
    """Return the sum over all nodes that share a weight; None where none of them has a Hessian."""
    names = [name for node in readers if (name := hessian_key(node))]
    for name in names:
        if name not in hessians:
            raise CalibrationError(
                f"tensor {name!r}: its Hessian is missing", hint="collect those of gptq_inputs", tensor=name
            )
    return sum((hessians[name] for name in names[1:]), hessians[names[0]]) if names else None


def collect_hessians(
    model_path: Path,
    inputs_of: Iterable[str],
    data: Data,
    limit: int,
    progress: Progress = silent,
) -> dict[str, Hessian]:
    """Return `2 X Xᵀ` of each tensor over samples, X being [K, values of the other axes].

    Args:
        inputs_of: From `gptq_inputs`: `hessian_key` of nodes; the last axis of a tensor is K.

    Returns:
        Name to float32 [K, K].
    """
    weightless = read_weightless(model_path)
    tensors = sorted(set(inputs_of))
    if not tensors:
        return {}
    _check_tensors(weightless.model, tensors, model_path)
    progress("prepare the model")
    tapped = _Tapped(weightless, tensors)
    features = tapped.features(next(one_by_one(data, tapped.arrays)))
    groups = _groups(features)
    hessians: dict[str, Hessian] = {}
    for number, group in enumerate(groups):
        if len(groups) > 1:
            tapped = _Tapped(weightless, group)
        sums = {name: _Sum(name, features[name]) for name in group}
        text = f"collect Hessians ({number + 1} of {len(groups)})" if len(groups) > 1 else "collect Hessians"
        samples = 0
        for batch in one_by_one(data, tapped.arrays, limit):
            _check_feeds(batch)
            for name, rows in tapped.run(batch):
                sums[name].add(rows, batch.where)
            samples += batch.samples
            progress(text, samples, limit)
        for name in group:
            total = sums.pop(name).hessian()
            hessians[name] = total if len(groups) == 1 else _on_disk(total)
    return hessians


class _Tapped:
    """A session whose outputs are the named tensors; those that are inputs are taken from the feeds."""

    def __init__(self, weightless: WeightlessModel, names: list[str]) -> None:
        model = onnx.ModelProto()
        model.CopyFrom(weightless.model)
        inputs = {value.name for value in model.graph.input}
        self.path, self.names = weightless.path, names
        made_by = producers(weightless.model.graph)
        self.convs = {name: made_by[_tensor(name)] for name in names if name.startswith(_PATCHES)}
        self.kernels = _kernels(weightless.model, self.convs)
        self.sources = {name: self.convs[name].input[0] if name in self.convs else name for name in names}
        self.computed = [name for name in dict.fromkeys(self.sources.values()) if name not in inputs]
        del model.graph.output[:]
        for name in self.computed:
            value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            model.graph.output.append(value)
        self.session: Any = None
        if self.computed:
            options = session_options()
            folder = str(weightless.path.resolve().parent)  # its weights lie in the file itself
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
            self.session = make_session(weightless.path, options, content=model.SerializeToString())

    def run(self, batch: Batch) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield (name, [values, K]) of one inference."""
        arrays: dict[str, Any] = dict(batch.feeds)
        if self.session is not None:
            subject = f"{self.path} at {batch.where}"
            outputs = run_session(self.session, self.computed, batch.feeds, subject)
            arrays.update(zip(self.computed, outputs, strict=True))
        for name, source in self.sources.items():
            array = arrays[source]
            if name in self.convs:
                yield name, _patches(array, self.convs[name], self.kernels[name])
            else:
                yield name, array.reshape(-1, array.shape[-1] if array.ndim else 1)

    def arrays(self, batch: Batch) -> list[NDArray[np.float32]]:
        return [rows for _, rows in self.run(batch)]

    def features(self, batch: Batch) -> dict[str, int]:
        return {name: rows.shape[1] for name, rows in self.run(batch)}


def _tensor(name: str) -> str:
    return name.removeprefix(_PATCHES)


def _kernels(model: onnx.ModelProto, convs: dict[str, onnx.NodeProto]) -> dict[str, tuple[int, ...]]:
    """The spatial extents of each Conv's weight."""
    extents = {tensor.name: tuple(tensor.dims[2:]) for tensor in model.graph.initializer}
    for node in model.graph.node:
        tensor = constant_tensor(node)
        if tensor is not None:
            extents[node.output[0]] = tuple(tensor.dims[2:])
    return {name: extents[node.input[1]] for name, node in convs.items()}


def _patches(
    array: NDArray[np.float32], conv: onnx.NodeProto, kernel: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return what each position of a Conv's output sees: [B, C, ...] to [positions, C * kernel]."""
    axes = len(kernel)
    strides = attribute(conv, "strides", [1] * axes)
    dilations = attribute(conv, "dilations", [1] * axes)
    spans = [(extent - 1) * dilation + 1 for extent, dilation in zip(kernel, dilations, strict=True)]
    pads = attribute(conv, "pads", [0] * (2 * axes))
    automatic = attribute(conv, "auto_pad", "NOTSET")
    if automatic.startswith("SAME"):
        totals = [
            max(((extent - 1) // stride) * stride + span - extent, 0)
            for extent, stride, span in zip(array.shape[2:], strides, spans, strict=True)
        ]
        smaller, larger = [total // 2 for total in totals], [total - total // 2 for total in totals]
        pads = smaller + larger if automatic == "SAME_UPPER" else larger + smaller
    around = [(0, 0), (0, 0), *zip(pads[:axes], pads[axes:], strict=True)]
    windows = sliding_window_view(np.pad(array, around), spans, tuple(range(2, 2 + axes)))
    steps = [slice(None), slice(None), *(slice(None, None, step) for step in (*strides, *dilations))]
    seen = windows[tuple(steps)]  # [B, C, positions, kernel]
    order = (1, *range(2 + axes, 2 + 2 * axes), 0, *range(2, 2 + axes))
    columns = np.ascontiguousarray(seen.transpose(order), np.float32)
    rows: NDArray[np.float32] = columns.reshape(array.shape[1] * math.prod(kernel), -1).T
    return rows


def _groups(features: dict[str, int]) -> list[list[str]]:
    """The tensors in as few passes as fit the budget, each with at least one."""
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
    """`2 X Xᵀ` of one tensor. A sample of a few values would cost as much as one of hundreds: they wait."""

    def __init__(self, name: str, features: int) -> None:
        self.name, self.features = name, features
        self.total = np.zeros((features, features), np.float32)
        self.waiting: list[NDArray[np.float32]] = []

    def add(self, rows: NDArray[np.float32], where: str) -> None:
        if rows.shape[1] != self.features:
            raise CalibrationError(
                f"tensor {self.name!r}: last axis of {rows.shape[1]} at {where}; {self.features} before",
                tensor=self.name,
                sample=where,
            )
        if not np.isfinite(rows).all():
            raise CalibrationError(
                f"tensor {_tensor(self.name)!r}: NaN or infinity at {where}, although the input is finite",
                hint="the model overflows on this sample; check its preprocessing",
                tensor=self.name,
                sample=where,
            )
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


def _check_feeds(batch: Batch) -> None:
    for name, array in batch.feeds.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(
                f"{batch.where}: input {name!r} holds NaN or infinity",
                hint="clean the sample, or leave it out",
                tensor=name,
                sample=batch.where,
            )


def _check_tensors(model: onnx.ModelProto, names: list[str], path: Path) -> None:
    types, constants = infer_types(model), constant_names(model)
    made = {name for node in model.graph.node for name in node.output}
    made |= {value.name for value in model.graph.input}
    tensors = [_tensor(name) for name in names]
    for name in tensors:
        if name not in made or name in constants or types.get(name, "float32") != "float32":
            what = "not in the model" if name not in made else "no float32 activation"
            raise CalibrationError(
                f"{path}: tensor {name!r} is {what}", hint="take the names from this very model", tensor=name
            )


def _on_disk(array: Hessian) -> Hessian:
    """The same values in a temporary file that goes when the array does."""
    with tempfile.TemporaryFile(prefix="qcompile-hessian-") as file:
        mapped: Hessian = np.memmap(file, np.float32, "w+", shape=array.shape)
    mapped[:] = array
    return mapped
