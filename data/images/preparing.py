"""Which preprocessing the images of a spelling get, made to fit the model's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import DataError, InvalidOption
from ...model.preprocessing import ImagePreprocessing, preprocessing_of
from ...model.preprocessing_presets import find_preprocessing
from ...tensors import TensorInfo, format_shape


def image_preprocessing(inputs: Sequence[TensorInfo], named: str, spec: str) -> ImagePreprocessing:
    """Return how images become the model's input: as the spelling says, else as the model itself does.

    A named preprocessing takes the height and width of the model's input where these are fixed; what it
    resizes to before a crop grows or shrinks with them.

    Raises:
        InvalidOption: If neither says how, or what they say is not for images.
        DataError: If no input takes images.
    """
    said = find_preprocessing(named) if named else preprocessing_of(inputs)
    if said is None:
        raise InvalidOption(
            f"data {spec!r}: how images become the model's inputs is not known",
            hint="add ?preprocessing=imagenet (or cifar10, timm:NAME, hf:NAME, FILE.json), or export with "
            "`preprocessing`",
            option="preprocessing",
        )
    if not isinstance(said, ImagePreprocessing):
        raise InvalidOption(f"data {spec!r}: the model takes {said.kind}, and these are images")
    tensor = _input(inputs, said.input, spec)
    said = replace(said, input=tensor.name)
    return _to_extents(said, tensor) if named else said


def is_channels_last(tensor: TensorInfo, channels: int) -> bool:
    """Whether an input is [batch, height, width, channels], as TensorFlow has it."""
    return tensor.shape[3] == channels and tensor.shape[1] != channels


def _input(inputs: Sequence[TensorInfo], name: str, spec: str) -> TensorInfo:
    images = [one for one in inputs if (one.name == name if name else len(one.shape) == 4)]
    if len(images) != 1 or len(images[0].shape) != 4:
        shapes = ", ".join(f"{one.name}:{format_shape(one.shape)}" for one in inputs) or "none"
        one = f"input {name!r}" if name else "one input"
        raise DataError(
            f"data {spec!r}: {one} of four axes is required for images; the model's inputs are {shapes}",
            hint="give the samples as arrays (.npz) or by a function",
        )
    if images[0].dtype not in ("float32", "float16"):
        raise DataError(
            f"data {spec!r}: input {images[0].name!r} is {images[0].dtype}; images become float32 or float16",
            hint="give the samples as arrays (.npz) or by a function",
            tensor=images[0].name,
        )
    return images[0]


def _to_extents(said: ImagePreprocessing, tensor: TensorInfo) -> ImagePreprocessing:
    axes = tensor.shape[1:3] if is_channels_last(tensor, said.channels) else tensor.shape[2:4]
    height, width = (
        axis if isinstance(axis, int) else own
        for axis, own in zip(axes, (said.height, said.width), strict=True)
    )
    if (height, width) == (said.height, said.width):
        return said
    ratio = min(height, width) / min(said.height, said.width)
    if len(said.resize) == 1:
        return replace(said, height=height, width=width, resize=(round(said.resize[0] * ratio),))
    ratios = (height / said.height, width / said.width)
    resize = tuple(round(one * by) for one, by in zip(said.resize, ratios, strict=False))
    return replace(said, height=height, width=width, resize=resize)
