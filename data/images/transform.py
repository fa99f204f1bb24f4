"""Resize, crop and normalize as `ImagePreprocessing` says, equal to torchvision's and timm's own transforms.

| step       | as                                                                                        |
|------------|-------------------------------------------------------------------------------------------|
| resize     | `torchvision.transforms.Resize` of a Pillow image: the longer side is rounded down        |
| crop       | `CenterCrop`: a smaller image is padded with 0 first                                      |
| letterbox  | resized to fit, then padded with `fill` on both sides evenly, the odd pixel after         |
| normalize  | `ToTensor` and `Normalize`: float32, divided by 255, less the mean, divided by the std    |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...model.preprocessing import ImagePreprocessing

if TYPE_CHECKING:
    from PIL import Image

_SCALE = 1 / 255


@dataclass(frozen=True)
class Placement:
    """Where an image's pixels land in the model's input.

    Attributes:
        resized: Width and height after the resize.
        offset: Left and top of the resized image in the input; negative where it is cropped.
        size: Width and height of the input.
    """

    resized: tuple[int, int]
    offset: tuple[int, int]
    size: tuple[int, int]


def placement(preprocessing: ImagePreprocessing, width: int, height: int) -> Placement:
    """Return where an image of these extents lands."""
    size = (preprocessing.width, preprocessing.height)
    if preprocessing.letterbox:
        ratio = min(size[0] / width, size[1] / height)
        resized = (
            max(1, min(size[0], round(width * ratio))),
            max(1, min(size[1], round(height * ratio))),
        )
        return Placement(resized, ((size[0] - resized[0]) // 2, (size[1] - resized[1]) // 2), size)
    resized = _resized(preprocessing.resize or (size[1], size[0]), width, height)
    return Placement(resized, (_offset(resized[0], size[0]), _offset(resized[1], size[1])), size)


def _resized(resize: Sequence[int], width: int, height: int) -> tuple[int, int]:
    if len(resize) == 2:
        return resize[1], resize[0]
    short = resize[0]
    if width <= height:
        return short, max(1, int(short * height / width))
    return max(1, int(short * width / height)), short


def _offset(extent: int, size: int) -> int:
    if extent < size:
        return (size - extent) // 2
    return -round((extent - size) / 2)


def place(image: Image.Image, where: Placement, interpolation: str, fill: Any) -> Image.Image:
    """Resize and crop or pad an image."""
    from PIL import Image

    if where.resized != image.size:
        image = image.resize(where.resized, Image.Resampling[interpolation.upper()])
    if where.offset == (0, 0) and where.resized == where.size:
        return image
    canvas = Image.new(image.mode, where.size, fill)
    canvas.paste(image, where.offset)
    return canvas


def as_input(image: Image.Image, preprocessing: ImagePreprocessing) -> NDArray[np.float32]:
    """Return an RGB or grey image as float32 [channels, height, width]."""
    where = placement(preprocessing, *image.size)
    fill: Any = preprocessing.fill if preprocessing.letterbox else 0
    fill = (fill,) * 3 if image.mode == "RGB" else fill
    placed = place(image, where, preprocessing.interpolation, fill)
    pixels = np.asarray(placed, np.float32)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return normalize(pixels, preprocessing)


def normalize(pixels: NDArray[np.float32], preprocessing: ImagePreprocessing) -> NDArray[np.float32]:
    """Return (pixels * scale - mean) / std of float32 [channels, ...] with values from 0 to 255."""
    ones = (-1, *(1,) * (pixels.ndim - 1))
    # What torch divides by 255 is not the same as what is multiplied by 1/255, in the last bit.
    scaled = (
        pixels / np.float32(255)
        if preprocessing.scale == _SCALE
        else pixels * np.float32(preprocessing.scale)
    )
    mean = np.asarray(preprocessing.mean, np.float32)[: preprocessing.channels].reshape(ones)
    std = np.asarray(preprocessing.std, np.float32)[: preprocessing.channels].reshape(ones)
    return np.ascontiguousarray((scaled - mean) / std, np.float32)
