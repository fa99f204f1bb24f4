"""Collect the extremes of each channel over all samples, and some rows, at the places of a model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ....errors import CalibrationError
from ..activations import run_samples

if TYPE_CHECKING:
    import onnx

    from ....data.batches import Data

Floats = NDArray[np.float32]
_KEPT_ROWS = 1024
_ROWS_OF_SAMPLE = 64


@dataclass
class Rows:
    """Some of what a tensor held.

    Attributes:
        low, high: Smallest and largest value of each channel over all rows seen, float32 [channels].
        rows: Some of the rows, float32 [rows, channels].
    """

    low: Floats
    high: Floats
    rows: Floats

    @property
    def amax(self) -> Floats:
        """The largest magnitude of each channel."""
        largest: Floats = np.maximum(np.abs(self.low), np.abs(self.high))
        return largest


def observe_rows(
    model: onnx.ModelProto,
    path: Path,
    tensors: Collection[str],
    data: Data,
    limit: int | None = None,
) -> dict[str, Rows]:
    """Run the samples, and return what the tensors held; channels are their last axis.

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
