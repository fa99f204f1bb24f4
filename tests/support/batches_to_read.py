"""Samples and batches for the tests of reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qcompile.data.readers import Batch
from qcompile.model.sources.preprocessing import ImagePreprocessing, as_json
from qcompile.spec.tensors import TensorInfo

Script = Callable[..., str]


def npz(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def rows(count: int) -> np.ndarray:
    """Float32 [count, 3]; every value says which sample it is of."""
    return np.repeat(np.arange(count, dtype=np.float32)[:, None], 3, axis=1)


def samples_of(batches: list[Batch]) -> list[float]:
    return [float(value) for batch in batches for value in batch.feeds["x"][:, 0]]


def labels_of(batches: list[Batch]) -> list[int] | None:
    """All labels in order; None where not every batch has them."""
    labels = [batch.labels for batch in batches if batch.labels is not None]
    return [int(label) for part in labels for label in part] if len(labels) == len(batches) else None


def image_input(**options: Any) -> TensorInfo:
    """The input x of a model of images: of 4x4 pixels, unless options of its preprocessing say others."""
    preprocessing = ImagePreprocessing(**{"input": "x", "height": 4, "width": 4, **options})
    shape = ("n", preprocessing.channels, preprocessing.height, preprocessing.width)
    return TensorInfo("x", "float32", shape, preprocessing=as_json(preprocessing))
