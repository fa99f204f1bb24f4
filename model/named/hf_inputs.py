"""The inputs of a transformers model, from its class, its configuration and its processors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...tensors import AxisExtents, TensorInfo
from ..source import Source
from ..source_options import RANDOM
from .description import Domain, image_input, with_preprocessing
from .hf_preprocessing import audio_preprocessing, image_preprocessing, image_size, text_preprocessing
from .hf_tasks import Choice

_OFFSET = frozenset(
    "camembert data2vec-text ibert layoutlmv3 lilt longformer luke mluke mpnet roberta roberta-prelayernorm "
    "xlm-roberta xlm-roberta-xl xmod".split()
)
"""Types of models whose positions begin behind the padding token's number."""

_MASKS = ("attention_mask",)
_ZEROS = ("token_type_ids",)


@dataclass(frozen=True)
class Inputs:
    """Inputs in order, the values that they take, and what the user should know."""

    tensors: tuple[TensorInfo, ...]
    domains: Mapping[str, Domain]
    notes: tuple[str, ...] = ()


def read_inputs(source: Source, choice: Choice, config: Any, folder: Path) -> Inputs:
    """Return the inputs of a model, with how samples become them where the folder says it."""
    taken = inspect.signature(choice.model.forward).parameters
    main = getattr(choice.model, "main_input_name", "input_ids")
    if main == "pixel_values":
        return _image(source, choice, config, folder)
    if main in ("input_values", "input_features"):
        return _audio(source, choice, config, folder, main)
    text = _text(source, choice, config, folder, taken)
    if "pixel_values" not in taken:
        return text
    image = _image(source, choice, config, folder)
    return Inputs((*text.tensors, *image.tensors), {**text.domains, **image.domains}, image.notes)


def _text(source: Source, choice: Choice, config: Any, folder: Path, taken: Mapping[str, Any]) -> Inputs:
    inner = config.get_text_config() if hasattr(config, "get_text_config") else config
    limit = _most_tokens(inner)
    preprocessing = text_preprocessing(source, choice, config, folder, limit)
    names = preprocessing.inputs if preprocessing else ("input_ids", "attention_mask", "token_type_ids")
    several = getattr(inner, "type_vocab_size", 0) or 0
    names = tuple(
        name for name in names
        if name in taken and (preprocessing is not None or name != "token_type_ids" or several > 1)
    )  # fmt: skip
    if preprocessing:
        preprocessing = replace(preprocessing, inputs=names)
    tensors = tuple(_tokens(name, limit) for name in names)
    tensors = tuple(with_preprocessing(tensor, preprocessing) for tensor in tensors)
    special = [
        getattr(inner, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "mask", "sep", "cls")
    ]
    excluded = tuple(number for number in special if isinstance(number, int))
    vocabulary = int(getattr(inner, "vocab_size", 0) or 1000)
    domains = {name: Domain("mask") for name in _MASKS} | {name: Domain("zeros") for name in _ZEROS}
    return Inputs(tensors, {**domains, "input_ids": Domain("ids", vocabulary, excluded)})


def _tokens(name: str, limit: int | None) -> TensorInfo:
    return TensorInfo(name, "int64", ("batch", "length"), (AxisExtents(1, 1, limit),))


def _most_tokens(config: Any) -> int | None:
    """The longest text: of learned positions, where the model has some."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
    most = next((int(getattr(config, name)) for name in names if getattr(config, name, None)), 0)
    if getattr(config, "model_type", "") in _OFFSET:
        most -= (getattr(config, "pad_token_id", None) or 0) + 1
    return most if most > 0 else None


def _image(source: Source, choice: Choice, config: Any, folder: Path) -> Inputs:
    inner = getattr(config, "vision_config", None) or config
    channels = int(getattr(inner, "num_channels", 3) or 3)
    height, width = _extents(source, inner, folder)
    preprocessing, notes = image_preprocessing(source, choice, config, folder, (height, width), channels)
    tensor = image_input("pixel_values", height, width, channels)
    return Inputs((with_preprocessing(tensor, preprocessing),), {}, notes)


def _extents(source: Source, config: Any, folder: Path) -> tuple[int, int]:
    """Of the spelling, the image processor, or the configuration, where convolutions note a nominal size."""
    own = _pair(getattr(config, "image_size", None))
    asked = tuple(source.options.size)
    if asked and own and asked != own and source.options.weights == RANDOM:
        square = isinstance(config.image_size, int) and asked[0] == asked[1]
        config.image_size = asked[0] if square else list(asked)
    found = asked or image_size(folder) or own or (224, 224)
    return found[0], found[1]


def _pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, int) and value:
        return value, value
    if isinstance(value, list | tuple) and len(value) == 2:
        return int(value[0]), int(value[1])
    return None


def _audio(source: Source, choice: Choice, config: Any, folder: Path, main: str) -> Inputs:
    preprocessing = audio_preprocessing(source, choice, config, folder, main)
    tensor = with_preprocessing(_sound(main, config), preprocessing)
    return Inputs((tensor,), {})


def _sound(name: str, config: Any) -> TensorInfo:
    """A waveform [batch, samples], or features of it."""
    mels = getattr(config, "num_mel_bins", None)
    if getattr(config, "conv_kernel", None) and name == "input_values":
        least = _receptive_field(config)
        return TensorInfo(
            name, "float32", ("batch", "samples"), (AxisExtents(1, least, None, max(16 * least, 6400)),)
        )
    if mels and getattr(config, "max_source_positions", None):  # Whisper: two frames become a position
        return TensorInfo(name, "float32", ("batch", int(mels), 2 * int(config.max_source_positions)))
    if mels and getattr(config, "max_length", None):
        return TensorInfo(name, "float32", ("batch", int(config.max_length), int(mels)))
    width = getattr(config, "feature_projection_input_dim", None) or mels or 80
    return TensorInfo(name, "float32", ("batch", "frames", int(width)), (AxisExtents(1, 1, None, 64),))


def _receptive_field(config: Any) -> int:
    """Samples of which the convolutions make one frame."""
    samples = 1
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        samples = (samples - 1) * stride + kernel
    return int(samples)
