"""Run a float or Q/DQ model sample by sample; collect channel extremes, a subset of rows, or complete
tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ...calibration.calibrate import split_samples
from ...core.progress import Progress, silent
from ...data.batches import Data
from ...data.readers import Batch
from ...errors import CalibrationError
from ...model.graph.graph import attribute
from ...model.graph.onnx_file import Graph
from ...model.sessions.session import WEIGHT_BIAS_QUANTIZATION, make_session, run_session, session_options

_KEPT_ROWS = 1024
_ROWS_OF_SAMPLE = 64
_FEW_FOR_LAYOUTS = 32
"""Up to this many samples, optimized memory layouts of the weights do not pay: creating them takes 0.4 s
(ResNet-50); without them a sample takes 0.01 s longer."""

_FEW_FOR_PACKING = 16
"""Up to this many samples, prepacked weights do not pay: packing takes 0.2 to 2 s and as much memory as the
weights (BERT-base); without it a sample takes 0.03 s longer."""


@dataclass
class ChannelRows:
    """Channel extremes and a subset of the rows of one tensor. A row has all channels of one position."""

    # smallest and largest value of each channel over all rows, float32 [channels]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    rows: NDArray[np.float32]  # subset of the rows, float32 [rows, channels]

    @property
    def amax(self) -> NDArray[np.float32]:
        """Largest magnitude of each channel."""
        largest: NDArray[np.float32] = np.maximum(np.abs(self.low), np.abs(self.high))
        return largest


def observe_rows(
    model: Graph, axes: Mapping[str, int], data: Data, limit: int | None = None
) -> dict[str, ChannelRows]:
    """Run the samples; return the channel extremes and a subset of the rows of each tensor.

    Each sample adds up to `_ROWS_OF_SAMPLE` evenly spaced rows of a tensor, until the tensor has
    `_KEPT_ROWS`. Memory holds these rows and the tensors of one sample. `axes` maps each tensor to its
    channel axis.
    """
    rows_of: dict[str, ChannelRows] = {}
    for arrays in run_samples(model, sorted(axes), data, limit):
        for name, array in arrays.items():
            rows = np.moveaxis(array, axes[name], -1).reshape(-1, array.shape[axes[name]])
            if not rows.size:
                continue
            step = max(1, -(-len(rows) // _ROWS_OF_SAMPLE))
            sample = ChannelRows(rows.min(axis=0), rows.max(axis=0), rows[::step].copy())
            if name not in rows_of:
                rows_of[name] = sample
                continue
            old = rows_of[name]
            subset = np.concatenate([old.rows, sample.rows[: max(0, _KEPT_ROWS - len(old.rows))]])
            rows_of[name] = ChannelRows(
                np.minimum(old.low, sample.low), np.maximum(old.high, sample.high), subset
            )
    return rows_of


def run_samples(
    model: Graph,
    tensors: Collection[str],
    data: Data,
    limit: int | None = None,
    progress: Progress = silent,
    *,
    doing: str = "look at channels",
    integers: bool = True,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Run the samples; yield the values of `tensors` for each sample, or batch that cannot be split.

    Args:
        tensors: Names of float32 tensors; they need not be model outputs.
        integers: Whether ONNX Runtime may turn Q/DQ pairs into integer kernels. If False, it computes the
            pairs as written, independent of the integer kernels of this processor.

    Raises:
        CalibrationError: If a tensor becomes NaN or infinite.
    """
    inputs = {value.name for value in model.model.graph.input}
    computed = [name for name in tensors if name not in inputs]
    done, total = 0, data.total
    total = limit if total is None or (limit is not None and limit < total) else total
    max_samples = limit or data.limit  # `data.total` is None for data of a function
    skips_layouts = max_samples and max_samples <= _FEW_FOR_LAYOUTS and runs_without_layouts(model)
    options = session_options(integers=integers, layouts=not skips_layouts)
    if max_samples and max_samples <= _FEW_FOR_PACKING:
        options.add_session_config_entry("session.disable_prepacking", "1")
    session = _session_returning(model, computed, options, integers=integers) if computed else None

    def run(batch: Batch) -> list[NDArray[Any]]:
        outputs = run_session(session, computed, batch.feeds, batch.where) if computed else []
        arrays = {**batch.feeds, **dict(zip(computed, outputs, strict=True))}
        return [arrays[name] for name in tensors]

    for batch in split_samples(data, run, limit) if tensors else ():
        arrays = dict(zip(tensors, run(batch), strict=True))
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise CalibrationError(
                    f"{batch.where}: tensor {name!r} becomes NaN or infinite; finite values are required",
                    hint="check the sample and the float model",
                    tensor=name,
                )
        yield arrays
        done += batch.samples
        progress(doing, done, total)


def runs_without_layouts(model: Graph) -> bool:
    """Return whether the model has no grouped Conv. Without memory layouts, depthwise Convs take five times
    as long (ONNX Runtime 1.31.1)."""
    convs = [node for node in model.model.graph.node if node.op_type == "Conv"]
    return all(attribute(conv, "group", 1) == 1 for conv in convs)


def _session_returning(model: Graph, names: list[str], options: Any, *, integers: bool) -> Any:
    """Return a session with the tensors `names` as its only outputs."""
    outputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names]
    without = [] if integers else [WEIGHT_BIAS_QUANTIZATION]
    return make_session(model, options, outputs=outputs, without=without)
