"""Find a transformers model's folder, class, task and preprocessing."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import transformers
from huggingface_hub import snapshot_download

from ....core.progress import quiet
from ....errors import ModelError, translate_errors
from ...graph.source_paths import path_there
from ..preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    Task,
    TextPreprocessing,
    scaled_resize,
)
from ..source import Source, did_you_mean, hub_cache
from .description import interpolation, network, not_cached

_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]
AUDIO_INPUTS = ("input_values", "input_features")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
               "merges.txt", "tokenizer_config.json")  # fmt: skip


def find_folder(source: Source, *, weights: bool) -> Path:
    """Return the folder with a model's files; find a name in the cache, or download it."""
    folder = source.path or _snapshot(source, weights=weights)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{source.spec}: {folder} holds no config.json",
            hint="give a folder that save_pretrained of transformers wrote",
            file=folder,
        )
    if weights and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        if source.path is None:
            raise not_cached(source.spec, f"the weights of {source.name}", hub_cache())
        raise ModelError(
            f"{source.spec}: {folder} holds no weights (model.safetensors)",
            hint="give `weights` random, or `weights` FILE, or save the model with save_pretrained",
            file=folder,
        )
    return folder


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of a folder; empty if the file is missing or holds another type."""
    path = folder / name
    if not path.is_file():
        return {}
    with translate_errors(f"{path}: not JSON", ModelError, file=path):
        value = json.loads(path.read_bytes())
    return value if isinstance(value, dict) else {}


def processor_of(folder: Path, part: str) -> dict[str, Any]:
    """Return a folder's settings of "image_processor" or "feature_extractor"; newer files nest them."""
    whole = read_json(folder, "processor_config.json")
    inner = whole.get(part)
    if isinstance(inner, dict):
        return inner
    return read_json(folder, "preprocessor_config.json") or (whole if f"{part}_type" in whole else {})


def _snapshot(source: Source, *, weights: bool) -> Path:
    fetch = partial(snapshot_download, source.name, cache_dir=hub_cache())
    if not source.options.download:
        try:
            with network(allowed=False):
                return Path(fetch(local_files_only=True))
        except Exception as error:  # from the hub or the cache
            raise not_cached(source.spec, source.name, hub_cache()) from error
    hint = "check the name, or copy the model's files here and give hf:FOLDER"
    message = f"{source.spec}: {source.name} cannot be downloaded:"
    with translate_errors(message, ModelError, hint=hint), network(allowed=True):
        folder = Path(fetch(allow_patterns=[*_FILES, *(_WEIGHTS[:1] if weights else ())]))
        if weights and not any(folder.glob(_WEIGHTS[0])):
            folder = Path(fetch(allow_patterns=[*_FILES, *_WEIGHTS]))
        return folder


class Head(NamedTuple):
    """A task: its Auto class, class-name endings, and whether `num_labels` sets the number of classes."""

    auto: str
    endings: tuple[str, ...]
    classifies: bool = False


HEADS: dict[str, Head] = {
    "text-classification": Head("AutoModelForSequenceClassification", ("ForSequenceClassification",), True),
    "token-classification": Head("AutoModelForTokenClassification", ("ForTokenClassification",), True),
    "question-answering": Head("AutoModelForQuestionAnswering", ("ForQuestionAnswering",)),
    "masked-language-model": Head("AutoModelForMaskedLM", ("ForMaskedLM", "ForPreTraining")),
    "language-model": Head("AutoModelForCausalLM", ("ForCausalLM", "LMHeadModel")),
    "image-classification": Head(
        "AutoModelForImageClassification", ("ForImageClassification", "ForImageClassificationWithTeacher"),
        True),
    "semantic-segmentation": Head("AutoModelForSemanticSegmentation", ("ForSemanticSegmentation",), True),
    "object-detection": Head("AutoModelForObjectDetection", ("ForObjectDetection",), True),
    "instance-segmentation": Head(
        "AutoModelForUniversalSegmentation", ("ForUniversalSegmentation", "ForInstanceSegmentation"), True),
    "depth-estimation": Head("AutoModelForDepthEstimation", ("ForDepthEstimation",)),
    "speech-recognition": Head("AutoModelForCTC", ("ForCTC",)),
    "audio-classification": Head("AutoModelForAudioClassification", ("ForAudioClassification",), True),
    "embedding": Head("AutoModel", ("Model", "ModelWithProjection", "EncoderModel", "Encoder")),
}  # fmt: skip


class Choice(NamedTuple):
    """A key of `HEADS`, the model class, and whether to use only the encoder of an encoder-decoder model."""

    name: str
    model: Any
    encoder: bool = False


def choose(source: Source, config: Any) -> Choice:
    """Return task and class for a configuration."""
    task = source.options.task
    named = next(iter(getattr(config, "architectures", None) or ()), "")
    if task and task not in HEADS:
        raise source.refusal(f"task {task!r} is none of {', '.join(HEADS)}", did_you_mean(task, HEADS))
    if task:
        encoder = task == "embedding" and bool(getattr(config, "is_encoder_decoder", False))
        return Choice(task, _auto_class(source, config, task), encoder)
    model = getattr(transformers, named, None)
    if named and model is None:
        raise ModelError(
            f"{source.spec}: transformers {transformers.__version__} has no class {named}; qcompile runs no "
            "code of a hub",
            hint="write a function that returns the module: file.py:function",
        )
    name: str | None = "embedding"
    if model is not None:  # the longest ending takes precedence: `ForCausalLM` before `Model`
        endings = ((ending, key) for key, head in HEADS.items() for ending in head.endings)
        matches = [(ending, key) for ending, key in endings if named.endswith(ending)]
        name = max(matches, key=lambda pair: len(pair[0]), default=("", None))[1]
    if name == "text-classification" and getattr(model, "main_input_name", "") in AUDIO_INPUTS:
        name = "audio-classification"
    # A model that generates also takes the decoder's tokens as an input.
    parameters = inspect.signature(model.forward).parameters if model is not None else {}
    decodes = bool(getattr(config, "is_encoder_decoder", False)) and "decoder_input_ids" in parameters
    if name is None or (decodes and name != "text-classification"):
        what = "generates with a decoder" if decodes else f"is a {named}"
        raise ModelError(
            f"{source.spec}: {what}; one of these is required: {', '.join(HEADS)}",
            hint="give ?task=embedding for its encoder alone, or write a function: file.py:function",
        )
    return Choice(name, model or _auto_class(source, config, name))


def _auto_class(source: Source, config: Any, name: str) -> Any:
    """Return the class that an Auto class selects for a configuration."""
    mapping = getattr(transformers, HEADS[name].auto)._model_mapping
    try:
        model = mapping[type(config)]
    except KeyError:
        problem = f"transformers has no {HEADS[name].auto} for {type(config).__name__}"
        raise source.refusal(problem, "choose another task") from None
    return model[0] if isinstance(model, tuple | list) else model


_MAX_TOKENS = 512
_CROP_SHARE = 224 / 256
_UNCROPPED_SIZE = 384  # ConvNeXt crops only smaller images
_UNSUPPORTED_KEYS = (
    "do_flip_channel_order", "do_thumbnail", "do_align_long_axis", "keep_aspect_ratio",
    "ensure_multiple_of", "do_image_splitting", "do_convert_grayscale",
)  # fmt: skip
"""Image-processor keys without an equivalent field in `ImagePreprocessing`."""
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def image_size(folder: Path) -> tuple[int, int] | None:
    """Return the fixed height and width of a folder's image processor, or None."""
    processor = processor_of(folder, "image_processor")
    size = processor.get("size")
    if isinstance(size, dict) and "longest_edge" in size:
        return None
    return (
        extents_of(processor.get("crop_size")) if processor.get("do_center_crop") else None
    ) or extents_of(size)


def common_fields(source: Source, choice: Choice, config: Any) -> dict[str, Any]:
    """Return the fields common to all preprocessings; numbered class names (`LABEL_0`) are dropped."""
    names = getattr(config, "id2label", None) or {}
    classes = tuple(str(names[key]) for key in sorted(names, key=int))
    return {
        "source": f"hf:{source.path.name if source.path else source.name}",
        "task": choice.name if choice.name in get_args(Task) else "",
        "classes": () if all(name == f"LABEL_{index}" for index, name in enumerate(classes)) else classes,
    }


def image_preprocessing(
    folder: Path, fields: Mapping[str, Any], extents: tuple[int, int], channels: int
) -> tuple[ImagePreprocessing | None, tuple[str, ...]]:
    """Return a folder's image preprocessing and notes; None without a processor or if it is unsupported."""
    processor = processor_of(folder, "image_processor")
    if not ("image_processor_type" in processor or "size" in processor) or channels not in (1, 3):
        return None, ()
    if key := next((key for key in _UNSUPPORTED_KEYS if processor.get(key)), ""):
        return None, (f"its image processor has {key}, which is unsupported: give data as arrays",)
    normalize = processor.get("do_normalize", True)
    mean = tuple(map(float, processor.get("image_mean") or _MEAN)) if normalize else (0.0,) * channels
    std = tuple(map(float, processor.get("image_std") or _STD)) if normalize else (1.0,) * channels
    if processor.get("include_top"):  # EfficientNet divides by std a second time
        std = tuple(value * value for value in std)
    scale = float(processor.get("rescale_factor", 1 / 255)) if processor.get("do_rescale", True) else 1.0
    resize = _resize(processor, extents)
    preprocessing = ImagePreprocessing(
        **fields,
        input="pixel_values",
        height=extents[0],
        width=extents[1],
        interpolation=interpolation(processor.get("resample", 2)),
        scale=scale,
        mean=mean[:channels],
        std=std[:channels],
        channels=cast("Any", channels),
        **resize,
    )
    padded = "its image processor keeps the aspect ratio; qcompile pads images to {}x{}".format(*extents)
    return preprocessing, (padded,) if "letterbox" in resize else ()


def _resize(processor: Mapping[str, Any], extents: tuple[int, int]) -> dict[str, Any]:
    size = processor.get("size")
    shortest = size.get("shortest_edge") if isinstance(size, dict) else size
    if isinstance(size, dict) and "longest_edge" in size:
        return {"letterbox": True}
    if processor.get("do_center_crop"):
        if isinstance(shortest, int) and str(processor.get("image_processor_type", "")).startswith("Levit"):
            shortest = int(shortest / _CROP_SHARE)  # LeViT resizes to 256 for a size of 224
        before = (shortest,) if isinstance(shortest, int) else (extents_of(size) or ())
        crop = extents_of(processor.get("crop_size")) or extents_of(size) or extents
        return {"resize": scaled_resize(before, crop, extents)}
    if "crop_pct" in processor and isinstance(size, dict) and "shortest_edge" in size:
        if size["shortest_edge"] >= _UNCROPPED_SIZE:
            return {}
        return {"resize": (int(min(extents) / float(processor["crop_pct"] or _CROP_SHARE)),)}
    return {}


def extents_of(size: Any) -> tuple[int, int] | None:
    """Return height and width from a number, a pair, or a processor's dict; None if it has neither."""
    if isinstance(size, dict):
        edge = size.get("shortest_edge")
        size = (size["height"], size["width"]) if "height" in size and "width" in size else edge and int(edge)
    if isinstance(size, int):
        return (size, size) if size else None
    pair = isinstance(size, list | tuple) and len(size) == 2
    return (int(size[0]), int(size[1])) if pair else None


def text_preprocessing(
    folder: Path, fields: Mapping[str, Any], limit: int | None
) -> TextPreprocessing | None:
    """Return the text preprocessing of a folder's tokenizer; None if none loads."""
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        return None
    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception:  # incomplete tokenizer files: the model's inputs do not depend on them
        return None
    sentence = read_json(folder, "sentence_bert_config.json").get("max_seq_length")
    limits = (getattr(tokenizer, "model_max_length", 0), _MAX_TOKENS, limit, sentence)
    return TextPreprocessing(
        **fields,
        tokenizer=path_there(folder.resolve()),
        inputs=tuple(tokenizer.model_input_names),
        max_length=min(int(length) for length in limits if length),
    )


def audio_preprocessing(
    folder: Path, fields: Mapping[str, Any], choice: Choice, config: Any, main: str
) -> AudioPreprocessing | None:
    """Return the audio preprocessing of a folder's feature extractor; None without one."""
    extractor = processor_of(folder, "feature_extractor")
    if not extractor:
        return None
    usual = "Wav2Vec2FeatureExtractor"
    waveform = usual in str(extractor.get("feature_extractor_type", usual))
    vocabulary, blank = _vocabulary(folder, config) if choice.name == "speech-recognition" else ((), 0)
    return AudioPreprocessing(
        **{**fields, **({} if HEADS[choice.name].classifies else {"classes": ()})},
        inputs=(main,),
        extractor="" if waveform else path_there(folder.resolve()),
        rate_hz=int(extractor.get("sampling_rate", 16000)),
        normalize=bool(extractor.get("do_normalize", True)),
        vocabulary=vocabulary,
        blank=blank,
    )


def _vocabulary(folder: Path, config: Any) -> tuple[tuple[str, ...], int]:
    """Return the character of each class of a CTC model, and the index of the blank."""
    by_token = read_json(folder, "vocab.json")
    settings = read_json(folder, "tokenizer_config.json")
    if any(isinstance(value, dict) for value in by_token.values()):  # a vocabulary per language
        by_token = by_token.get(str(settings.get("target_lang"))) or next(
            value for value in by_token.values() if isinstance(value, dict)
        )
    blank = int(getattr(config, "pad_token_id", None) or 0)
    space = settings.get("word_delimiter_token", "|")
    special = {"<pad>", "<s>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]"}
    count = max(by_token.values(), default=-1) + 1
    characters = [""] * count
    for token, index in by_token.items():
        characters[index] = " " if token == space else "" if token in special else token
    return tuple(characters), blank
