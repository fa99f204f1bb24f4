"""Declare how an image, text or recording becomes a model's input arrays.

Named models provide a preprocessing, `export` writes it to the ONNX file (`input_notes`), manifests store it
with the inputs (`TensorInfo.preprocessing`), and `data/` applies it. So `calibrate`, `bench` and `diff` read
folders of images as in the model's training, after any number of stages. This module decodes no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from ...core.files import read_json
from ...errors import InvalidOption, translate_errors
from ...spec.tensors import TensorInfo, format_shape
from .source import did_you_mean

Task = Literal[
    "", "image-classification", "semantic-segmentation", "object-detection", "text-classification",
    "token-classification", "language-model", "embedding", "speech-recognition", "audio-classification",
]  # fmt: skip
"""Kind of a model's outputs, empty if unknown. It determines the default metric of an evaluation."""

Extent = Annotated[int, Meta(ge=1, le=1 << 16)]
Length = Annotated[int, Meta(ge=1, le=1 << 24)]
Factor = Annotated[float, Meta(gt=0, le=1e6)]
Shift = Annotated[float, Meta(ge=-1e6, le=1e6)]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]


@dataclass(frozen=True, kw_only=True)
class _Preprocessing:
    """Fields of all kinds: `source` is a displayed origin ("timm:resnet18"), `task` the kind of outputs."""

    source: str = ""
    task: Task = ""
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImagePreprocessing(_Preprocessing):
    """An image becomes `input`, float32 [batch, channels, height, width]: (pixel * scale - mean) / std.

    Attributes:
        input: Name of the model's input.
        height, width: Extents of the input.
        resize: Before the crop: length of the shorter side ((256,)), or height and width ((256, 256)); empty
            to resize directly to `height` and `width`.
        letterbox: Preserve the aspect ratio and pad to `height` and `width` with `fill`, without a crop.
        fill: Value of padded pixels, 0 to 255.
        interpolation: Filter of the resize, by Pillow's names.
        scale: Factor for pixel values of 0 to 255.
        mean, std: One value per channel, for scaled pixels.
        channels: 3 (RGB), or 1 (gray).
    """

    kind: Literal["image"] = "image"
    input: str = ""
    height: Extent
    width: Extent
    resize: tuple[Extent, ...] = ()
    letterbox: bool = False
    fill: Annotated[int, Meta(ge=0, le=255)] = 0
    interpolation: Interpolation = "bilinear"
    scale: Factor = 1 / 255
    mean: tuple[Shift, ...] = (0.0, 0.0, 0.0)
    std: tuple[Factor, ...] = (1.0, 1.0, 1.0)
    channels: Literal[1, 3] = 3

    def __post_init__(self) -> None:
        if not {len(self.mean), len(self.std)} <= {1, 3}:
            raise ValueError(f"mean {self.mean}, std {self.std}: one value per channel is required")


@dataclass(frozen=True, kw_only=True)
class TextPreprocessing(_Preprocessing):
    """A text becomes token ids and masks, int64 [batch, length], by a tokenizer of transformers.

    Attributes:
        tokenizer: Folder with the tokenizer's files, or its name in the local cache of Hugging Face.
        inputs: The model's inputs, by the tokenizer's names: "input_ids", "attention_mask", ...
        max_length: Longest sequence, in tokens; longer texts are cut.
        padding: To the longest text of a batch, or always to `max_length`.
        multiple: Padded lengths are multiples of this number, to limit the number of shapes.
    """

    kind: Literal["text"] = "text"
    tokenizer: str
    inputs: tuple[str, ...]
    max_length: Length = 128
    padding: Literal["longest", "max_length"] = "longest"
    multiple: Length = 8


@dataclass(frozen=True, kw_only=True)
class AudioPreprocessing(_Preprocessing):
    """A recording becomes a waveform, or the features of a feature extractor of transformers.

    Attributes:
        inputs: The model's inputs, by the extractor's names: "input_values", "input_features", ...
        extractor: Folder of the extractor, or its name in Hugging Face's local cache; empty for a waveform.
        rate_hz: Samples per second; recordings of another rate are resampled.
        normalize: Without an extractor: scale each waveform to zero mean and unit variance.
        max_seconds: Longest recording; longer ones are cut.
        vocabulary: For a CTC model: the character of each class, by index.
        blank: Index of CTC's blank.
    """

    kind: Literal["audio"] = "audio"
    inputs: tuple[str, ...]
    extractor: str = ""
    rate_hz: Annotated[int, Meta(ge=100, le=768_000)] = 16000
    normalize: bool = True
    max_seconds: Annotated[float, Meta(gt=0, le=1e5)] = 10.0
    vocabulary: tuple[str, ...] = ()
    blank: Annotated[int, Meta(ge=0)] = 0


Preprocessing = ImagePreprocessing | TextPreprocessing | AudioPreprocessing
_KINDS: Mapping[str, type[Preprocessing]] = {kind.kind: kind for kind in get_args(Preprocessing)}


def as_json(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the form stored in files."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(preprocessing).items()
    }


def read_preprocessing(value: object, where: str = "preprocessing") -> Preprocessing:
    """Return the preprocessing from the form of `as_json`; errors name its location `where`."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidOption(f"{where} of kind {kind!r}; {', '.join(_KINDS)} are known")
    errors = (msgspec.ValidationError, UnicodeError)  # UnicodeError: text that no file can store
    with translate_errors(f"{where} of kind {kind!r}:", InvalidOption, errors=errors):
        return msgspec.convert(value, _KINDS[kind])


def read_preprocessing_file(path: Path) -> Preprocessing:
    """Read a user's file. Unknown keys are errors: ignoring them would prepare samples incorrectly."""
    value = read_json(path, what="preprocessing")
    preprocessing = read_preprocessing(value, f"{path}: preprocessing")
    for key in value:
        if key not in (names := as_json(preprocessing)):
            raise InvalidOption(
                f"{path}: preprocessing of kind {preprocessing.kind!r} has no {key!r}",
                hint=did_you_mean(key, names) or f"its keys are {', '.join(names)}",
                file=path,
            )
    return preprocessing


def preprocessing_of(inputs: Sequence[TensorInfo]) -> Preprocessing | None:
    """Return the preprocessing attached to the inputs, or None."""
    values = (tensor.preprocessing for tensor in inputs if tensor.preprocessing is not None)
    value = next(values, None)
    return None if value is None else read_preprocessing(value)


PRESETS: dict[str, Preprocessing] = {
    "imagenet": ImagePreprocessing(
        source="imagenet", height=224, width=224, resize=(256,),
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
    ),
    "cifar10": ImagePreprocessing(
        source="cifar10", height=32, width=32,
        mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616),
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
}  # fmt: skip
"""Name to preprocessing, without `input`: the caller adds the model's input."""


def match_preprocessing(
    preprocessing: Preprocessing, inputs: Sequence[TensorInfo]
) -> dict[str, Preprocessing]:
    """Return input name to preprocessing, for each input that `preprocessing` prepares.

    Image preprocessing takes the name of the model's input, and its height and width if these are fixed;
    `resize` scales with them.
    """
    if isinstance(preprocessing, ImagePreprocessing):
        images = [tensor for tensor in inputs if len(tensor.shape) == 4]
        images = [tensor for tensor in images if tensor.name == preprocessing.input] or images
        if len(images) != 1:
            raise _mismatch(preprocessing, inputs, "one input of four axes")
        [tensor] = images
        last = is_channels_last(tensor, preprocessing.channels)
        channels = tensor.shape[3 if last else 1]
        if isinstance(channels, int) and channels != preprocessing.channels:
            hint = f'write "channels": {channels} in a FILE.json' if channels in (1, 3) else ""
            raise _mismatch(preprocessing, inputs, f"an input of {preprocessing.channels} channels", hint)
        extents = (preprocessing.height, preprocessing.width)
        axes = zip(tensor.shape[1:3] if last else tensor.shape[2:4], extents, strict=True)
        height, width = (axis if isinstance(axis, int) else extent for axis, extent in axes)
        resize = scaled_resize(preprocessing.resize, extents, (height, width))
        fitted = replace(preprocessing, input=tensor.name, height=height, width=width, resize=resize)
        return {tensor.name: fitted}
    names = tuple(tensor.name for tensor in inputs if tensor.name in preprocessing.inputs)
    if not names and len(inputs) == 1 and isinstance(preprocessing, AudioPreprocessing):
        names = (inputs[0].name,)
    if not names:
        raise _mismatch(preprocessing, inputs, f"one of {', '.join(preprocessing.inputs)}")
    return dict.fromkeys(names, replace(preprocessing, inputs=names))


def is_channels_last(tensor: TensorInfo, channels: int) -> bool:
    """Return whether an input is [batch, height, width, channels], as in TensorFlow."""
    return tensor.shape[3] == channels and tensor.shape[1] != channels


def scaled_resize(
    resize: tuple[int, ...], before: tuple[int, int], after: tuple[int, int]
) -> tuple[int, ...]:
    """Return `resize` for a crop of `after` (height, width) with the image share of a crop of `before`."""
    if before == after or not resize:
        return resize
    if len(resize) == 1:
        return (max(round(resize[0] * min(after) / min(before)), *after),)
    return tuple(max(round(r * a / b), a) for r, a, b in zip(resize, after, before, strict=True))


def _mismatch(
    preprocessing: Preprocessing, inputs: Sequence[TensorInfo], required: str, hint: str = ""
) -> InvalidOption:
    shapes = ", ".join(f"{tensor.name}:{format_shape(tensor.shape)}" for tensor in inputs) or "none"
    return InvalidOption(
        f"`preprocessing` {preprocessing.source or preprocessing.kind}: makes {preprocessing.kind} input; "
        f"the model's inputs are {shapes}; {required} is required",
        hint=hint,
        option="preprocessing",
    )
