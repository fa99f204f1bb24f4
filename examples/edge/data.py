"""scikit-learn's handwritten digits, made harder: 32x32, shifted, of varying contrast, with noise.

Plain numpy, so that a tool that only calibrates or evaluates can read it without torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

TRAINING_SAMPLES = 997
CALIBRATION_SAMPLES = 256
CALIBRATION_BATCH = 32
EVALUATION_BATCH = 50

_SPLIT_SEED = 0
_BRIGHTEST = 16.0
_SIZE = 32
_MARGIN = 4  # of 24x24 digits in 32x32 images
_NOISE = 0.35
_CONTRAST = (0.4, 1.0)


@cache
def _digits() -> tuple[npt.NDArray[np.float64], Labels]:
    """All 1,797 digits [N,24,24] in 0..1 and their labels, in the one order that both halves are cut from."""
    digits = load_digits()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(digits.target))
    enlarged = (digits.images[order] / _BRIGHTEST).repeat(3, axis=1).repeat(3, axis=2)
    return enlarged, digits.target[order].astype(np.int64)


def disturbed(digits: npt.NDArray[np.float64], seed: int) -> Images:
    """Turn digits [N,24,24] into images [N,1,32,32]: shifted, of varying contrast, with noise."""
    random = np.random.default_rng(seed)
    images = np.zeros((len(digits), _SIZE, _SIZE))
    for image, digit, (y, x) in zip(
        images, digits, random.integers(0, 2 * _MARGIN + 1, (len(digits), 2)), strict=True
    ):
        image[y : y + len(digit), x : x + len(digit)] = digit
    images *= random.uniform(*_CONTRAST, (len(digits), 1, 1))
    images += random.normal(0, _NOISE, images.shape)
    return images[:, None].astype(np.float32)


def training(epoch: int) -> tuple[Images, Labels]:
    """Return the 997 training images [997,1,32,32] and labels; every epoch disturbs them anew."""
    digits, labels = _digits()
    return disturbed(digits[:TRAINING_SAMPLES], 1000 + epoch), labels[:TRAINING_SAMPLES].copy()


def calibration() -> Iterator[tuple[Images, Labels]]:
    """Yield 8 batches of images [32,1,32,32] and labels [32] of the training half."""
    digits, labels = _digits()
    images = disturbed(digits[:CALIBRATION_SAMPLES], 1)
    return _batches(images, labels[:CALIBRATION_SAMPLES], CALIBRATION_BATCH)


def evaluation() -> Iterator[tuple[Images, Labels]]:
    """Yield the 800 held-out samples as 16 batches of [50,1,32,32] and [50]."""
    digits, labels = _digits()
    return _batches(disturbed(digits[TRAINING_SAMPLES:], 2), labels[TRAINING_SAMPLES:], EVALUATION_BATCH)


def _batches(images: Images, labels: Labels, size: int) -> Iterator[tuple[Images, Labels]]:
    for start in range(0, len(labels), size):
        yield images[start : start + size].copy(), labels[start : start + size].copy()
