"""How an image becomes the input of a model by name: crops, sizes and names of interpolations."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidOption
from ..preprocessing import ImagePreprocessing, Interpolation, Task

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)
CIFAR10_CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
_PILLOW: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's filters by their number, as configurations write them."""
KNOWN = ("imagenet", "cifar10")


def interpolation(value: Any) -> Interpolation:
    """Return Pillow's name of an interpolation: a name, a number of Pillow's, or an enumeration's value."""
    if isinstance(value, int) and 0 <= value < len(_PILLOW):
        return _PILLOW[value]
    name = str(getattr(value, "value", value)).lower().removeprefix("interpolationmode.")
    return next((known for known in _PILLOW if known == name), "bilinear")


def scaled_resize(
    resize: tuple[int, ...], before: tuple[int, int], after: tuple[int, int]
) -> tuple[int, ...]:
    """Return the extents of the resize before the crop, for another crop of the same share of the image.

    Args:
        resize: For the crop `before`; empty for none.
        before: Height and width of the model's own crop.
        after: Of the one that is asked for.
    """
    if before == after or not resize:
        return resize
    if len(resize) == 1:
        return (max(round(resize[0] * min(after) / min(before)), *after),)
    return tuple(max(round(r * a / b), a) for r, a, b in zip(resize, after, before, strict=True))


def imagenet(height: int = 224, width: int = 224, task: Task = "image-classification") -> ImagePreprocessing:
    """Return the usual preprocessing of ImageNet: shorter side to 256 of 224, center crop, bilinear."""
    return ImagePreprocessing(
        source="imagenet", task=task, height=height, width=width,
        resize=scaled_resize((256,), (224, 224), (height, width)), mean=IMAGENET_MEAN, std=IMAGENET_STD,
    )  # fmt: skip


def cifar10(height: int = 32, width: int = 32) -> ImagePreprocessing:
    """Return the usual preprocessing of CIFAR-10: its mean and standard deviation, no crop."""
    return ImagePreprocessing(
        source="cifar10", task="image-classification", classes=CIFAR10_CLASSES, height=height, width=width,
        mean=CIFAR10_MEAN, std=CIFAR10_STD,
    )  # fmt: skip


def known_preprocessing(name: str, height: int | None, width: int | None) -> ImagePreprocessing:
    """Return a preprocessing by its name, for the extents of a model's input; None for the usual ones."""
    if name == "imagenet":
        return imagenet(height or 224, width or 224)
    if name == "cifar10":
        return cifar10(height or 32, width or 32)
    raise InvalidOption(f"preprocessing {name!r}: {', '.join(KNOWN)} are known", option="preprocessing")
