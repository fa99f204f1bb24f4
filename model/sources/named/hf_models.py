"""Describe and load models of transformers, with plain tensors in and out, without running code of a hub."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from ....errors import ModelError, first_line, translate_errors
from ....spec.tensors import AxisExtents, TensorInfo
from ...sessions.random_input import Domain
from ..nested import NestedInputs, Slot
from ..source import RANDOM, Source
from . import hf_configuration
from .description import Description, image_input, network, with_preprocessing
from .hf_configuration import AUDIO_INPUTS, HEADS, Choice, find_folder

_NOT_RETURNED = ("loss", "encoder_last_hidden_state")
_ANSWERS = ("logits", "boxes", "embeds", "predicted_depth")


class PlainModel(NestedInputs):
    """A model from positional tensors to a dict of the task's tensors, without cache or hidden states."""

    def __init__(self, model: nn.Module, names: Sequence[str], left_out: Sequence[str] = ()) -> None:
        super().__init__(model, (), {name: Slot(name) for name in names}, names)
        self.left_out = tuple(left_out)

    def forward(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run the model; return its logits, boxes and embeddings, or all tensors if it has none of these."""
        outputs = super().forward(*tensors)
        if isinstance(outputs, torch.Tensor):
            return {"output": outputs}
        if not isinstance(outputs, Mapping):
            return {f"output_{i}": item for i, item in enumerate(outputs) if isinstance(item, torch.Tensor)}
        named = {
            name: value
            for name, value in outputs.items()
            if isinstance(value, torch.Tensor) and name not in (*_NOT_RETURNED, *self.left_out)
        }
        answers = {name: value for name, value in named.items() if any(word in name for word in _ANSWERS)}
        return answers or named


_OFFSET_TYPES = frozenset(
    "camembert data2vec-text ibert layoutlmv3 lilt longformer luke mluke mpnet roberta roberta-prelayernorm "
    "xlm-roberta xlm-roberta-xl xmod".split()
)
"""Model types with positions that start after the index of the padding token."""

_Inputs = tuple[tuple[TensorInfo, ...], Mapping[str, Domain], tuple[str, ...]]
"""Inputs in order, their valid values, and notes for the user."""


def _inputs(source: Source, choice: Choice, config: Any, folder: Path) -> _Inputs:
    parameters = inspect.signature(choice.model.forward).parameters
    main = getattr(choice.model, "main_input_name", "input_ids")
    fields = hf_configuration.common_fields(source, choice, config)
    if main in AUDIO_INPUTS:
        preprocessing = hf_configuration.audio_preprocessing(folder, fields, choice, config, main)
        return (with_preprocessing(_audio_input(main, config), preprocessing),), {}, ()
    texts, domains = _text_inputs(folder, fields, config, parameters) if main != "pixel_values" else ((), {})
    if main != "pixel_values" and "pixel_values" not in parameters:
        return texts, domains, ()
    image, notes = _image_input(source, folder, fields, config)
    return (*texts, image), domains, notes


def _text_inputs(
    folder: Path, fields: Mapping[str, Any], config: Any, parameters: Mapping[str, Any]
) -> tuple[tuple[TensorInfo, ...], dict[str, Domain]]:
    inner = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
    max_positions = next((int(getattr(inner, name)) for name in positions if getattr(inner, name, None)), 0)
    if getattr(inner, "model_type", "") in _OFFSET_TYPES:
        max_positions -= (getattr(inner, "pad_token_id", None) or 0) + 1
    limit = max_positions if max_positions > 0 else None  # longest text, if the model has learned positions
    preprocessing = hf_configuration.text_preprocessing(folder, fields, limit)
    names = preprocessing.inputs if preprocessing else ("input_ids", "attention_mask", "token_type_ids")
    type_count = getattr(inner, "type_vocab_size", 0) or 0
    names = tuple(
        name for name in names
        if name in parameters and (preprocessing is not None or name != "token_type_ids" or type_count > 1)
    )  # fmt: skip
    if preprocessing:
        preprocessing = replace(preprocessing, inputs=names)
    shape, extents = ("batch", "length"), (AxisExtents(1, 1, limit),)
    tensors = tuple(
        with_preprocessing(TensorInfo(name, "int64", shape, extents), preprocessing) for name in names
    )
    special = [
        getattr(inner, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "mask", "sep", "cls")
    ]
    excluded = tuple(number for number in special if isinstance(number, int))
    vocabulary = int(getattr(inner, "vocab_size", 0) or 1000)
    tokens = Domain("index", (vocabulary,), excluded)
    return tensors, {"input_ids": tokens, "token_type_ids": Domain("index", (1,))}


def _image_input(
    source: Source, folder: Path, fields: Mapping[str, Any], config: Any
) -> tuple[TensorInfo, tuple[str, ...]]:
    inner = getattr(config, "vision_config", None) or config
    channels = int(getattr(inner, "num_channels", 3) or 3)
    extents = _extents(source, inner, folder)
    preprocessing, notes = hf_configuration.image_preprocessing(folder, fields, extents, channels)
    return image_input("pixel_values", *extents, preprocessing, channels), notes


def _extents(source: Source, config: Any, folder: Path) -> tuple[int, int]:
    """Return height and width from the options, the image processor, or the configuration's nominal size."""
    nominal = hf_configuration.extents_of(getattr(config, "image_size", None))
    size = tuple(source.options.size)
    if size and nominal and size != nominal and source.options.weights == RANDOM:
        square = isinstance(config.image_size, int) and size[0] == size[1]
        config.image_size = size[0] if square else list(size)
    extents = size or hf_configuration.image_size(folder) or nominal or (224, 224)
    return extents[0], extents[1]


def _audio_input(name: str, config: Any) -> TensorInfo:
    """Return the input for a waveform [batch, samples], or for its features."""
    mels = getattr(config, "num_mel_bins", None)
    if getattr(config, "conv_kernel", None) and name == "input_values":
        least = 1  # samples that the convolutions need for one frame
        for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
            least = (least - 1) * int(stride) + int(kernel)
        return TensorInfo(
            name, "float32", ("batch", "samples"), (AxisExtents(1, least, None, max(16 * least, 6400)),)
        )
    if mels and getattr(config, "max_source_positions", None):  # Whisper merges two frames into a position
        return TensorInfo(name, "float32", ("batch", int(mels), 2 * int(config.max_source_positions)))
    if mels and getattr(config, "max_length", None):
        return TensorInfo(name, "float32", ("batch", int(config.max_length), int(mels)))
    width = getattr(config, "feature_projection_input_dim", None) or mels or 80
    return TensorInfo(name, "float32", ("batch", "frames", int(width)), (AxisExtents(1, 1, None, 64),))


def describe(source: Source) -> Description:
    """Return a model's description from its configuration and processors."""
    folder = find_folder(source, weights=False)
    config = _config(source, folder)
    choice = hf_configuration.choose(source, config)
    if source.options.classes:
        if not HEADS[choice.name].classifies:
            raise source.refusal("has no classes to choose")
        config.num_labels = source.options.classes
    tensors, domains, notes = _inputs(source, choice, config, folder)
    names = [tensor.name for tensor in tensors]
    return Description(choice.name, tensors, lambda: _load(source, choice, config, names), (), domains, notes)


def _load(source: Source, choice: Choice, config: Any, names: Sequence[str]) -> PlainModel:
    untrained = False
    if source.options.weights:
        try:
            model = choice.model(config)
        except Exception as error:  # constructors raise many types of errors
            raise ModelError(
                f"{source.spec}: {choice.model.__name__} cannot be constructed: {type(error).__name__}: "
                f"{first_line(error)}"
            ) from error
    else:
        model, untrained = _load_trained(source, choice, config, find_folder(source, weights=True))
    if choice.encoder:
        model = model.get_encoder()
    return PlainModel(model, names, ("pooler_output",) if untrained else ())


def _config(source: Source, folder: Path) -> Any:
    message = f"{source.spec}: transformers {transformers.__version__} cannot read its configuration:"
    hint = "install a newer transformers, or write a function: file.py:function"
    with translate_errors(message, ModelError, hint=hint, file=folder / "config.json"):
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    inner = [getattr(config, name, None) for name in ("text_config", "vision_config", "encoder", "decoder")]
    for part in (config, *(part for part in inner if hasattr(part, "to_dict"))):
        for name, value in (("use_cache", False), ("return_dict", True)):
            if hasattr(part, name):
                setattr(part, name, value)
    return config


def _load_trained(source: Source, choice: Choice, config: Any, folder: Path) -> tuple[Any, bool]:
    """Return the model with its trained weights, and whether weights of its pooler are missing."""
    # Damaged, pickled and misshapen weights raise many types of errors.
    message = f"{source.spec}: the weights in {folder} cannot be loaded:"
    with translate_errors(message, ModelError, file=folder), network(allowed=False):
        model, report = choice.model.from_pretrained(
            folder, config=config, local_files_only=True, output_loading_info=True, torch_dtype=torch.float32
        )
    missing = sorted(map(str, report.get("missing_keys", ())))
    missing_weights = [name for name in missing if "pooler." not in name]
    if missing_weights:
        more_text = f" and {len(missing_weights) - 3} more" if len(missing_weights) > 3 else ""
        raise ModelError(
            f"{source.spec}: the weights in {folder} lack {', '.join(missing_weights[:3])}{more_text} of "
            f"{choice.model.__name__}",
            hint="the head was never trained: choose another task, or `weights` random",
            file=folder,
        )
    return model, bool(missing)
