"""How a sample becomes a model's inputs: an image, a text or a recording, to arrays.

A named model knows it, `export` notes it in the ONNX file (`input_notes`), manifests hold it with the inputs
(`TensorInfo.preprocessing`), and `data/` applies it. So `calibrate`, `bench` and `diff` read a folder of
images as the model was trained to see them, however many stages lie between. Nothing here decodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..errors import InvalidOption
from ..tensors import TensorInfo

Task = Literal[
    "", "image-classification", "semantic-segmentation", "object-detection", "text-classification",
    "token-classification", "language-model", "embedding", "speech-recognition", "audio-classification",
]  # fmt: skip
"""What a model's outputs are; empty where nobody said. The metric of an evaluation follows from it."""

Extent = Annotated[int, Meta(ge=1, le=1 << 16)]
Length = Annotated[int, Meta(ge=1, le=1 << 24)]
Factor = Annotated[float, Meta(gt=0, le=1e6)]
Shift = Annotated[float, Meta(ge=-1e6, le=1e6)]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]


@dataclass(frozen=True, kw_only=True)
class _Preprocessing:
    """What all kinds say.

    Attributes:
        source: Where it comes from, for people: "timm:resnet18", "imagenet".
        task: What the model's outputs are.
        classes: Names of the classes, by index; empty where unknown.
    """

    source: str = ""
    task: Task = ""
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImagePreprocessing(_Preprocessing):
    """An image becomes `input`, float32 [batch, channels, height, width]: (pixel * scale - mean) / std.

    Attributes:
        input: Name of the model's input.
        height, width: Extents of the input.
        resize: Before the crop: the length of the shorter side ((256,)), or height and width ((256, 256));
            empty: to `height` and `width` at once.
        letterbox: Keep the ratio and pad to `height` and `width` with `fill`, in place of a resize and crop.
        fill: Value of padded pixels, 0 to 255.
        interpolation: Of the resize, by Pillow's names.
        scale: Factor of the pixels' 0 to 255.
        mean, std: One value per channel, of scaled pixels.
        channels: 3 (RGB), or 1 (grey).
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


@dataclass(frozen=True, kw_only=True)
class TextPreprocessing(_Preprocessing):
    """A text becomes token ids and their masks, int64 [batch, length], by a tokenizer of transformers.

    Attributes:
        tokenizer: Folder with the tokenizer's files, or its name in the local cache of Hugging Face.
        inputs: The model's inputs, by the tokenizer's names: "input_ids", "attention_mask", ...
        max_length: Longest sequence, in tokens; longer texts are cut.
        padding: To the longest text of a batch, or always to `max_length`.
        multiple: Padded lengths are multiples of it, so that few shapes occur.
    """

    kind: Literal["text"] = "text"
    tokenizer: str
    inputs: tuple[str, ...]
    max_length: Length = 128
    padding: Literal["longest", "max_length"] = "longest"
    multiple: Length = 8


@dataclass(frozen=True, kw_only=True)
class AudioPreprocessing(_Preprocessing):
    """A recording becomes a waveform or its features, by a feature extractor of transformers, or as it is.

    Attributes:
        inputs: The model's inputs, by the extractor's names: "input_values", "input_features", ...
        extractor: Folder with the extractor's files, or its name in the local cache of Hugging Face; empty
            for the waveform itself, with zero mean and unit variance where `normalize`.
        rate_hz: Samples per second; recordings of another rate are resampled.
        normalize: Scale each waveform to zero mean and unit variance, where there is no extractor.
        max_seconds: Longest recording; longer ones are cut.
        vocabulary: Of a CTC model: the character of each class, by index; `blank` is the index of none.
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
_KINDS: Mapping[str, type[Preprocessing]] = {
    "image": ImagePreprocessing,
    "text": TextPreprocessing,
    "audio": AudioPreprocessing,
}


def as_json(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the form that files carry."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(preprocessing).items()
    }


def read_preprocessing(value: object) -> Preprocessing:
    """Read the form written by `as_json`."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidOption(f"preprocessing of kind {kind!r}; {', '.join(_KINDS)} are known")
    try:
        return msgspec.convert(value, _KINDS[kind])
    except (msgspec.ValidationError, UnicodeError) as error:  # a text that no file can hold
        raise InvalidOption(f"preprocessing of kind {kind!r}: {error}") from error


def preprocessing_of(inputs: Sequence[TensorInfo]) -> Preprocessing | None:
    """Return what inputs say of how samples become them; None where they say nothing."""
    said = next((one.preprocessing for one in inputs if one.preprocessing is not None), None)
    return None if said is None else read_preprocessing(said)
