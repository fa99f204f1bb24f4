"""CIFAR-10's binary files, and what both data sets share: normalization and batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Batches = Iterator[tuple[Images, Labels]]

CALIBRATION_SAMPLES = 256
CALIBRATION_BATCH = 32
EVALUATION_SAMPLES = 512
EVALUATION_BATCH = 128

# Of CIFAR-10's training images, scaled to [0, 1]; the network sees both data sets through them.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

_RECORD = 1 + 3 * 32 * 32  # a label, then red, green and blue planes


def cifar10_folder() -> Path | None:
    """Return the folder of CIFAR-10's binary files: $CIFAR10, or data/cifar-10-batches-bin; None without."""
    here = Path(__file__).parent
    named = os.environ.get("CIFAR10", "")
    folders = (
        [Path(named)] if named else [Path("data/cifar-10-batches-bin"), here / "data/cifar-10-batches-bin"]
    )
    return next((folder for folder in folders if (folder / "test_batch.bin").is_file()), None)


def read_binary(path: Path) -> tuple[Pixels, Labels]:
    """Read one binary file of CIFAR-10: pixels [N,3,32,32] uint8, labels [N] int64.

    Raises:
        ValueError: If it does not hold whole records.
    """
    records = np.fromfile(path, np.uint8)
    if records.size == 0 or records.size % _RECORD:
        raise ValueError(f"{path}: {records.size} bytes; a multiple of {_RECORD} is required")
    rows = records.reshape(-1, _RECORD)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def normalized(pixels: Pixels) -> Images:
    """Turn pixels [N,3,32,32] into the network's input, float32 of the same shape."""
    mean, std = (np.asarray(values, np.float32).reshape(3, 1, 1) for values in (MEAN, STD))
    return (pixels.astype(np.float32) / 255.0 - mean) / std


def batches(pixels: Pixels, labels: Labels, *, size: int) -> Batches:
    """Yield normalized batches [size,3,32,32] with their labels [size]."""
    for start in range(0, len(labels), size):
        yield normalized(pixels[start : start + size]), labels[start : start + size].copy()
