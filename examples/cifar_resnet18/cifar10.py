"""CIFAR-10 from its binary files; `images.cifar10_folder` says where they are looked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from images import (
    CALIBRATION_BATCH,
    CALIBRATION_SAMPLES,
    EVALUATION_BATCH,
    EVALUATION_SAMPLES,
    Batches,
    Labels,
    Pixels,
    batches,
    cifar10_folder,
    read_binary,
)

TITLE = "CIFAR-10"


def training(samples: int | None = None) -> tuple[Pixels, Labels]:
    """Return the training pixels [N,3,32,32] uint8 and labels [N] int64, in the order of the files."""
    parts = [read_binary(_folder() / f"data_batch_{number}.bin") for number in range(1, 6)]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return pixels[:samples], labels[:samples]


def calibration() -> Batches:
    """Yield the first 256 training images in batches of 32."""
    pixels, labels = read_binary(_folder() / "data_batch_1.bin")
    return batches(pixels[:CALIBRATION_SAMPLES], labels[:CALIBRATION_SAMPLES], size=CALIBRATION_BATCH)


def evaluation() -> Batches:
    """Yield the first 512 test images in four batches of 128."""
    pixels, labels = read_binary(_folder() / "test_batch.bin")
    return batches(pixels[:EVALUATION_SAMPLES], labels[:EVALUATION_SAMPLES], size=EVALUATION_BATCH)


def _folder() -> Path:
    folder = cifar10_folder()
    if folder is None:
        raise FileNotFoundError("CIFAR-10 is not here: put data_batch_1.bin to test_batch.bin into $CIFAR10")
    return folder
