"""Networks that look at photographs and faces: crops out of the photographs that packages carry."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageEnhance

from .base import Array, Counted, Sample, distributed, shares

PHOTOGRAPHS = {
    "scikit-learn": "sklearn/datasets/images/ china.jpg flower.jpg",
    "scikit-image": "skimage/data/ astronaut.png coffee.png chelsea.png rocket.jpg motorcycle_left.png "
    "camera.png",
    "ultralytics": "ultralytics/assets/ bus.jpg zidane.jpg",
}
PEOPLE = ("astronaut.png", "bus.jpg", "zidane.jpg", "camera.png")


@functools.cache
def _photographs(names: tuple[str, ...] = ()) -> list[Image.Image]:
    found = []
    for package, line in PHOTOGRAPHS.items():
        folder, *files = line.split()
        found += [
            Image.open(distributed(package, folder + file)).convert("RGB")
            for file in files
            if not names or file in names
        ]
    return found


def crops(
    side: int, count: int, *, seed: int, names: tuple[str, ...] = (), least: float = 0.3
) -> Iterator[Image.Image]:
    """Yield crops of changing size and place, some mirrored, some darker or brighter.

    Args:
        least: The least crop's side, of the photograph's shorter one.
    """
    photographs = _photographs(names)
    for number in range(count):
        generator = np.random.default_rng([seed, number])
        whole = photographs[number % len(photographs)]
        size = int(min(whole.size) * generator.uniform(least, 1))
        left, top = (int(generator.integers(0, edge - size + 1)) for edge in whole.size)
        image = whole.crop((left, top, left + size, top + size)).resize(
            (side, side), Image.Resampling.BICUBIC
        )
        if generator.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        yield ImageEnhance.Brightness(image).enhance(float(generator.uniform(0.6, 1.3)))


def planes(image: Image.Image) -> Array:
    """float32 [1, 3, height, width], scaled by ImageNet's mean and deviation."""
    scaled = np.asarray(image.convert("RGB"), np.float32) / 255
    scaled = (scaled - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    return scaled.astype(np.float32).transpose(2, 0, 1)[None].copy()


def _scaled(image: Image.Image, zero: float, one: float) -> Array:
    """float32 [1, 3, height, width], the bytes less `zero`, by `one`."""
    return ((np.asarray(image, np.float32) - zero) / one).astype(np.float32).transpose(2, 0, 1)[None].copy()


def bodies() -> Iterator[Sample]:
    """Yield float32 [1, 3, 320, 320], 0 to 1, of 48 + 128 crops with people."""
    for image in crops(320, 48 + 128, seed=5, names=PEOPLE, least=0.5):
        yield {"images": _scaled(image, 0, 255)}


def small_faces() -> Iterator[Sample]:
    """Yield float32 [1, 3, 96, 96], -1 to 1, of 64 + 192 crops with people: a face is 12 pixels and more."""
    for image in crops(96, 64 + 192, seed=6, names=PEOPLE, least=0.4):
        yield {"image": _scaled(image, 127.5, 128)}


def classified() -> Iterator[Sample]:
    """Yield float32 [1, 3, 224, 224], of 64 + 512 crops."""
    for image in crops(224, 64 + 512, seed=7):
        yield {"image": _scaled(image, 127, 128)}


def caffe_photographs() -> Iterator[Sample]:
    """Yield float32 [1, 224, 224, 3], blue first, less the means, of 64 + 192 crops."""
    for image in crops(224, 64 + 192, seed=8):
        pixels = np.asarray(image, np.float32)[..., ::-1] - np.float32([104, 117, 123])
        yield {"input_0": pixels[None].copy()}


@functools.cache
def _labelled() -> tuple[Array, Array]:
    """100 faces and 100 other patches, 25 pixels wide, in mixed order, and which are faces."""
    patches = np.load(distributed("scikit-image", "skimage/data/lfw_subset.npy"))
    order = np.random.default_rng(0).permutation(200)
    return patches[order], order < 100


def patches() -> Iterator[Sample]:
    """Yield float32 [1, 3, 48, 48] of 40 labelled patches, and of 160 others four times each."""
    found, _ = _labelled()
    for number in range(40 + 4 * 160):
        patch = found[number if number < 40 else 40 + (number - 40) // 4]
        variant = (number - 40) % 4 if number >= 40 else 0
        image = Image.fromarray((patch * (0.6 if variant & 1 else 1.0) * 255).astype(np.uint8))
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if variant & 2 else image
        yield {"image": _scaled(image.resize((48, 48), Image.Resampling.BICUBIC).convert("RGB"), 127.5, 128)}


@Counted
def faces_told(_: list[Array], found: list[Array], numbers: Array) -> Array:
    """Count the patches told right to be a face or not; the four variants of a patch are one unit."""
    right = (np.concatenate(found)[:, 1] > 0.5) == np.repeat(_labelled()[1][40:], 4)[numbers]
    return shares([right[numbers // 4 == patch] for patch in np.unique(numbers // 4)])
