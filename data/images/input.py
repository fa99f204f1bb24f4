"""Make a model's input of an image, whatever it was read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...model.preprocessing import ImagePreprocessing
from ...model.preprocessing_fit import is_channels_last
from ...tensors import TensorInfo
from ..preparing import preprocessing_for, require_image_input
from ..spelling import Spelling
from .transform import as_input, normalize, placement

if TYPE_CHECKING:
    from PIL import Image


def image_input(inputs: Sequence[TensorInfo], spelling: Spelling) -> ImageInput:
    """Return what makes the model's input of images: as the spelling says, else as the model itself does.

    Raises:
        InvalidOption: If neither says how.
        DataError: If the model has no such input.
    """
    names = "imagenet (or cifar10, timm:NAME, torchvision:NAME, hf:NAME_OR_FOLDER, FILE.json)"
    said = preprocessing_for(inputs, spelling, ImagePreprocessing, what="images", names=names)
    return ImageInput(said, require_image_input(inputs, said.input, spelling.spec))


class ImageInput:
    """Makes a model's input of an image, by its preprocessing."""

    def __init__(self, preprocessing: ImagePreprocessing, tensor: TensorInfo) -> None:
        self.preprocessing, self.tensor = preprocessing, tensor
        self.mode = "RGB" if preprocessing.channels == 3 else "L"
        self._last = is_channels_last(self.tensor, preprocessing.channels)

    def of_image(self, image: Image.Image) -> dict[str, Any]:
        """Return a decoded image as the feed of the input, without the axis of samples."""
        return self._feeds(as_input(image, self.preprocessing))

    def of_pixels(self, pixels: NDArray[np.uint8]) -> dict[str, Any]:
        """Return RGB pixels [3, height, width] as the feed; Pillow is needed only where they are resized."""
        where = placement(self.preprocessing, pixels.shape[2], pixels.shape[1])
        if self.mode == "RGB" and where.resized == where.size == pixels.shape[:0:-1]:
            return self._feeds(normalize(pixels.astype(np.float32), self.preprocessing))
        from .decode import from_pixels

        return self.of_image(from_pixels(pixels, self.mode))

    def _feeds(self, array: NDArray[Any]) -> dict[str, Any]:
        array = array.transpose(1, 2, 0) if self._last else array
        return {self.tensor.name: np.ascontiguousarray(array, self.tensor.dtype)}
