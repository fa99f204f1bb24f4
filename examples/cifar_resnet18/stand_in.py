"""A synthetic stand-in for CIFAR-10: real handwritten digits, coloured, turned, and hidden in clutter.

It is not CIFAR-10, and its accuracies say nothing of CIFAR-10. It has the same shapes, types and number of
classes. scikit-learn's 1,797 digits are split first; an image of one half never holds a digit of the other.
Everything is drawn from seeds, and is the same on every machine but for the last bit of a float.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from images import (
    CALIBRATION_BATCH,
    CALIBRATION_SAMPLES,
    EVALUATION_BATCH,
    EVALUATION_SAMPLES,
    Batches,
    Labels,
    Pixels,
    batches,
)
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

TITLE = "digits in clutter (a synthetic stand-in for CIFAR-10)"
TRAINING_SAMPLES = 6000

_TRAINING_DIGITS = 1297
_SIZE = 32
_FRAGMENTS = 1  # parts of other digits at the margins of an image
_NOISE = 0.06  # standard deviation of a pixel, of a range of 1
_CONTRAST = (0.35, 0.75)  # of the digit's colour against the background's

Floats = npt.NDArray[np.float64]


def training(samples: int = TRAINING_SAMPLES) -> tuple[Pixels, Labels]:
    """Return training pixels [samples,3,32,32] uint8 and their labels [samples] int64."""
    return _composed(samples, seed=1, held_out=False)


def calibration() -> Batches:
    """Yield 256 images of the training half in batches of 32."""
    pixels, labels = _composed(CALIBRATION_SAMPLES, seed=2, held_out=False)
    return batches(pixels, labels, size=CALIBRATION_BATCH)


def evaluation() -> Batches:
    """Yield 512 images made of the 500 held-out digits, in four batches of 128."""
    pixels, labels = _composed(EVALUATION_SAMPLES, seed=3, held_out=True)
    return batches(pixels, labels, size=EVALUATION_BATCH)


@cache
def _composed(samples: int, *, seed: int, held_out: bool) -> tuple[Pixels, Labels]:
    rng = np.random.default_rng(seed)
    digits, labels = _digits(held_out=held_out)
    chosen = rng.permutation(np.resize(rng.permutation(len(labels)), samples))  # each as often as any other
    background = _textures(rng, samples)
    image = background.copy()
    for _ in range(_FRAGMENTS):
        others = digits[rng.integers(0, len(digits), samples)]
        angle = rng.uniform(0, 2 * np.pi, samples)
        away = rng.uniform(17, 21, samples)
        shift = np.stack([away * np.sin(angle), away * np.cos(angle)], axis=1)
        image = _painted(image, _placed(rng, others, shift), _colours(rng, background))
    shift = rng.uniform(-2.5, 2.5, (samples, 2))
    image = _painted(image, _placed(rng, digits[chosen], shift), _colours(rng, background))
    image += rng.normal(0, _NOISE, image.shape)
    return (np.clip(image, 0, 1) * 255).round().astype(np.uint8), labels[chosen]


@cache
def _digits(*, held_out: bool) -> tuple[Floats, Labels]:
    """One half of the digits [N,8,8], 0 to 1; shuffled first, as they are grouped by writer."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    half = order[_TRAINING_DIGITS:] if held_out else order[:_TRAINING_DIGITS]
    return digits.images[half] / 16.0, digits.target[half].astype(np.int64)


def _textures(rng: np.random.Generator, samples: int) -> Floats:
    """Smooth coloured backgrounds [samples,3,32,32]: 5x5 random colours, interpolated."""
    coarse = rng.uniform(0.25, 0.75, (samples * 3, 5, 5))
    row, column = np.meshgrid(np.linspace(0, 4, _SIZE), np.linspace(0, 4, _SIZE), indexing="ij")
    grid = (np.broadcast_to(axis, (samples * 3, _SIZE, _SIZE)) for axis in (row, column))
    return _bilinear(coarse, *grid).reshape(samples, 3, _SIZE, _SIZE)


def _colours(rng: np.random.Generator, background: Floats) -> Floats:
    """One colour an image [samples,3]: its background's mean, moved by a random contrast."""
    samples = len(background)
    moved = rng.uniform(*_CONTRAST, (samples, 3)) * rng.choice([-1.0, 1.0], (samples, 3))
    return background.mean(axis=(2, 3)) + moved


def _painted(image: Floats, mask: Floats, colour: Floats) -> Floats:
    """The images with a colour [samples,3] where the mask [samples,32,32] is 1."""
    return image + mask[:, None] * (colour[:, :, None, None] - image)


def _placed(rng: np.random.Generator, digits: Floats, shift: Floats) -> Floats:
    """Masks [samples,32,32] of digits [samples,8,8], turned, scaled and moved from the centre by `shift`."""
    samples = len(digits)
    angle = rng.normal(0, 0.2, samples)
    scale = rng.uniform(2.8, 3.6, samples)  # pixels of the image for one of the digit
    row, column = np.meshgrid(np.arange(_SIZE) - 15.5, np.arange(_SIZE) - 15.5, indexing="ij")
    down, right = (axis - shift[:, index, None, None] for index, axis in enumerate((row, column)))
    sine, cosine = np.sin(angle)[:, None, None], np.cos(angle)[:, None, None]
    scale = scale[:, None, None]
    padded = np.pad(digits, ((0, 0), (1, 1), (1, 1)))
    return _bilinear(
        padded, (cosine * down + sine * right) / scale + 4.5, (cosine * right - sine * down) / scale + 4.5
    )


def _bilinear(images: Floats, row: Floats, column: Floats) -> Floats:
    """Values of images [N,H,W] at rows and columns [N,32,32]; beyond the edge, those of the edge."""
    height, width = images.shape[1:]
    row, column = np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)
    top, left = row.astype(int).clip(0, height - 2), column.astype(int).clip(0, width - 2)
    down, right = row - top, column - left
    which = np.arange(len(images))[:, None, None]
    upper = images[which, top, left] * (1 - right) + images[which, top, left + 1] * right
    lower = images[which, top + 1, left] * (1 - right) + images[which, top + 1, left + 1] * right
    return upper * (1 - down) + lower * down
