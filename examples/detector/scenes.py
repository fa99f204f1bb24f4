"""Scenes of real handwritten digits at random places, sizes and shades, on a noisy ground.

examples/segmenter reads the same scenes. Plain numpy, so that what only calibrates needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

TRAINING_DIGITS = 1297
MOST_DIGITS = 4

_SPLIT_SEED = 0
_BRIGHTEST = 16.0
_INK = 0.3  # a pixel of a digit from this brightness on
_SCALES = (2, 3)
_NOISE = 0.08


@dataclass(frozen=True)
class Scenes:
    """Composed images and what is on them.

    Attributes:
        images: [n,1,height,width] float32, about 0..1.
        boxes: [n,4,5] float32: class, x1, y1, x2, y2 in pixels around the ink; rows of class -1 are padding.
        maps: [n,height,width] int64: 0 is the ground, 1 + digit a pixel of ink.
    """

    images: Images
    boxes: Images
    maps: Labels


@cache
def _digits() -> tuple[Images, Labels]:
    """All digits [1797,8,8] in 0..1 and their classes, in the order that the split is cut from."""
    digits = load_digits()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(digits.target))
    return (digits.images[order] / _BRIGHTEST).astype(np.float32), digits.target[order].astype(np.int64)


def compose(count: int, *, held_out: bool, seed: int, height: int = 64, width: int = 64) -> Scenes:
    """Compose scenes of one to four digits that do not overlap.

    Args:
        count: Number of scenes.
        held_out: Whether the digits are those that training does not see.
        seed: Equal seeds make equal scenes.
        height: Pixels, 32 or more.
        width: Pixels, 32 or more.
    """
    shapes, classes = _digits()
    first, end = (TRAINING_DIGITS, len(classes)) if held_out else (0, TRAINING_DIGITS)
    random = np.random.default_rng([seed, height, width, held_out])
    images = np.zeros((count, 1, height, width), np.float32)
    maps = np.zeros((count, height, width), np.int64)
    boxes = np.full((count, MOST_DIGITS, 5), -1.0, np.float32)
    for scene in range(count):
        images[scene, 0] = random.uniform(0.0, 0.3)
        taken = np.zeros((height, width), bool)
        placed = 0
        for _ in range(int(random.integers(1, MOST_DIGITS + 1))):
            index, scale = int(random.integers(first, end)), int(random.choice(_SCALES))
            digit = shapes[index].repeat(scale, 0).repeat(scale, 1)
            top = int(random.integers(0, height - len(digit) + 1))
            left = int(random.integers(0, width - len(digit) + 1))
            place = slice(top, top + len(digit)), slice(left, left + len(digit))
            if taken[place].any():
                continue  # this digit is left out; the first one always fits
            taken[place] = True
            images[scene, 0][place] += digit * random.uniform(0.5, 1.0)
            ink = digit >= _INK
            maps[scene][place][ink] = 1 + classes[index]
            rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
            corners = left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1
            boxes[scene, placed] = classes[index], *corners
            placed += 1
    images += random.normal(0.0, _NOISE, images.shape).astype(np.float32)
    return Scenes(images, boxes, maps)
