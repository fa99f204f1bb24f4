"""Fit a preprocessing that has a name, or is another model's, to the inputs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import InvalidOption
from ..tensors import TensorInfo, format_shape
from .preprocessing import AudioPreprocessing, ImagePreprocessing, Preprocessing, TextPreprocessing


def fit_preprocessing(said: Preprocessing, inputs: Sequence[TensorInfo]) -> dict[str, Preprocessing]:
    """Return input to preprocessing, for each input that it makes.

    Images get the name of the model's input, and its height and width where these are fixed; what they are
    resized to before a crop grows or shrinks with them.
    """
    if isinstance(said, ImagePreprocessing):
        tensor = _image_input(said, inputs)
        return {tensor.name: _to_extents(replace(said, input=tensor.name), tensor)}
    if isinstance(said, TextPreprocessing):
        return _text(said, inputs)
    return _audio(said, inputs)


def is_channels_last(tensor: TensorInfo, channels: int) -> bool:
    """Whether an input is [batch, height, width, channels], as TensorFlow has it."""
    return tensor.shape[3] == channels and tensor.shape[1] != channels


def _image_input(said: ImagePreprocessing, inputs: Sequence[TensorInfo]) -> TensorInfo:
    images = [one for one in inputs if len(one.shape) == 4]
    named = [one for one in images if one.name == said.input]
    chosen = named or images
    if len(chosen) != 1:
        raise _refused(said, inputs, "one input of four axes")
    channels = chosen[0].shape[3 if is_channels_last(chosen[0], said.channels) else 1]
    if isinstance(channels, int) and channels != said.channels:
        raise _refused(said, inputs, f"an input of {said.channels} channels")
    return chosen[0]


def _to_extents(said: ImagePreprocessing, tensor: TensorInfo) -> ImagePreprocessing:
    axes = tensor.shape[1:3] if is_channels_last(tensor, said.channels) else tensor.shape[2:4]
    own = (said.height, said.width)
    height, width = (
        axis if isinstance(axis, int) else extent for axis, extent in zip(axes, own, strict=True)
    )
    resize = scaled_resize(said.resize, own, (height, width))
    return replace(said, height=height, width=width, resize=resize)


def scaled_resize(
    resize: tuple[int, ...], before: tuple[int, int], after: tuple[int, int]
) -> tuple[int, ...]:
    """Return the extents of the resize before the crop, for another crop of the same share of the image.

    Args:
        resize: For the crop `before`; empty for none.
        before: Height and width of the crop that it was made for.
        after: Of the one that is asked for.
    """
    if before == after or not resize:
        return resize
    if len(resize) == 1:
        return (max(round(resize[0] * min(after) / min(before)), *after),)
    return tuple(max(round(r * a / b), a) for r, a, b in zip(resize, after, before, strict=True))


def _text(said: TextPreprocessing, inputs: Sequence[TensorInfo]) -> dict[str, Preprocessing]:
    names = tuple(one.name for one in inputs if one.name in said.inputs)
    if not names:
        raise _refused(said, inputs, f"one of {', '.join(said.inputs)}")
    return dict.fromkeys(names, replace(said, inputs=names))


def _audio(said: AudioPreprocessing, inputs: Sequence[TensorInfo]) -> dict[str, Preprocessing]:
    names = tuple(one.name for one in inputs if one.name in said.inputs)
    if not names and len(inputs) == 1:
        names = (inputs[0].name,)
    if not names:
        raise _refused(said, inputs, f"one of {', '.join(said.inputs)}")
    return dict.fromkeys(names, replace(said, inputs=names))


def _refused(said: Preprocessing, inputs: Sequence[TensorInfo], required: str) -> InvalidOption:
    shapes = ", ".join(f"{one.name}:{format_shape(one.shape)}" for one in inputs) or "none"
    return InvalidOption(
        f"`preprocessing` {said.source or said.kind}: makes {said.kind} input; the model's inputs are "
        f"{shapes}; {required} is required",
        option="preprocessing",
    )
