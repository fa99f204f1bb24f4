"""scikit-learn's handwritten digits as 32x32 three-channel images, with a fixed split.

Plain numpy, so that a tool which only calibrates or evaluates can read it without torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

TRAINING_SAMPLES = 1297
CALIBRATION_SAMPLES = 256
CALIBRATION_BATCH = 16
EVALUATION_BATCH = 50

# Of the training images' pixels after scaling to [0, 1].  Written out rather than computed, so
# that whoever deploys the model can copy its preprocessing from here.
MEAN = 0.3054
STD = 0.3759

_SPLIT_SEED = 0
_UPSAMPLING = 4
_CHANNELS = 3
_BRIGHTEST = 16.0


def preprocess(digits: npt.NDArray[np.float64]) -> Images:
    """Turn raw digits [N,8,8] with values 0..16 into the model's input [N,3,32,32] float32."""
    normalized = ((digits / _BRIGHTEST - MEAN) / STD).astype(np.float32)
    upsampled = normalized.repeat(_UPSAMPLING, axis=1).repeat(_UPSAMPLING, axis=2)
    return np.ascontiguousarray(np.repeat(upsampled[:, np.newaxis], _CHANNELS, axis=1))


@cache
def _shuffled() -> tuple[Images, Labels]:
    """All 1,797 samples in the one order that both halves of the split are cut from.

    The data set's own order groups samples by writer; shuffling keeps every writer and every
    class in both halves.
    """
    digits = load_digits()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(digits.target))
    return preprocess(digits.images[order]), digits.target[order].astype(np.int64)


def training() -> tuple[Images, Labels]:
    """Return the training images [1297,3,32,32] float32 and their labels [1297] int64."""
    images, labels = _shuffled()
    return images[:TRAINING_SAMPLES].copy(), labels[:TRAINING_SAMPLES].copy()


def calibration() -> Iterator[tuple[Images, Labels]]:
    """Yield 16 batches of images [16,3,32,32] float32 and labels [16] int64.

    They come from the training half: calibrating on held-out images would leak them into the
    quantized model's scales.
    """
    images, labels = _shuffled()
    return _batches(images[:CALIBRATION_SAMPLES], labels[:CALIBRATION_SAMPLES], size=CALIBRATION_BATCH)


def evaluation() -> Iterator[tuple[Images, Labels]]:
    """Yield the 500 held-out samples as 10 batches of [50,3,32,32] float32 and [50] int64."""
    images, labels = _shuffled()
    return _batches(images[TRAINING_SAMPLES:], labels[TRAINING_SAMPLES:], size=EVALUATION_BATCH)


def _batches(images: Images, labels: Labels, *, size: int) -> Iterator[tuple[Images, Labels]]:
    """Yield consecutive batches as copies, so that a caller may write to what it is given."""
    for start in range(0, len(labels), size):
        yield images[start : start + size].copy(), labels[start : start + size].copy()
