"""How samples become the inputs of a transformers model, from the files of its processors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ...progress import quiet
from ..moved import path_there
from ..preprocessing import AudioPreprocessing, ImagePreprocessing, Task, TextPreprocessing
from ..preprocessing_fit import scaled_resize
from ..source import Source
from .hf_folder import has_tokenizer, processor_of, read_json
from .hf_tasks import Choice
from .images import interpolation

_MOST_TOKENS = 512
_SHARE = 224 / 256
_UNCROPPED = 384  # ConvNeXt crops smaller images only
_UNTOLD = (
    "do_flip_channel_order", "do_thumbnail", "do_align_long_axis", "keep_aspect_ratio",
    "ensure_multiple_of", "do_image_splitting", "do_convert_grayscale",
)  # fmt: skip
"""Keys of image processors that do what `ImagePreprocessing` has no field for."""
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def image_size(folder: Path) -> tuple[int, int] | None:
    """Return the extents that a folder's image processor makes; None where it has none, or makes many."""
    said = processor_of(folder, "image_processor")
    size = said.get("size")
    if isinstance(size, dict) and "longest_edge" in size:
        return None
    return (_extents(said.get("crop_size")) if said.get("do_center_crop") else None) or _extents(size)


def image_preprocessing(
    source: Source, choice: Choice, config: Any, folder: Path, extents: tuple[int, int], channels: int
) -> tuple[ImagePreprocessing | None, tuple[str, ...]]:
    """Return what a folder's image processor does, and notes; None where it has none that can be told."""
    said = processor_of(folder, "image_processor")
    if not said or ("image_processor_type" not in said and "size" not in said) or channels not in (1, 3):
        return None, ()
    other = next((key for key in _UNTOLD if said.get(key)), "")
    if other:
        return None, (f"its image processor has {other}, which cannot be told: give data as arrays",)
    normalize = said.get("do_normalize", True)
    mean = tuple(map(float, said.get("image_mean") or _MEAN)) if normalize else (0.0,) * channels
    std = tuple(map(float, said.get("image_std") or _STD)) if normalize else (1.0,) * channels
    if said.get("include_top"):  # EfficientNet divides by it a second time
        std = tuple(value * value for value in std)
    resize = _resize(said, extents)
    made = ImagePreprocessing(
        source=_spelled(source),
        task=cast("Task", choice.head.task),
        classes=classes(config),
        input="pixel_values",
        height=extents[0],
        width=extents[1],
        interpolation=interpolation(said.get("resample", 2)),
        scale=float(said.get("rescale_factor", 1 / 255)) if said.get("do_rescale", True) else 1.0,
        mean=mean[:channels],
        std=std[:channels],
        channels=cast("Any", channels),
        **resize,
    )
    padded = "its image processor keeps the ratio of images; here they are padded to {}x{}".format(*extents)
    return made, (padded,) if "letterbox" in resize else ()


def _resize(said: Mapping[str, Any], extents: tuple[int, int]) -> dict[str, Any]:
    own = _extents(said.get("crop_size")) or _extents(said.get("size")) or extents
    size = said.get("size")
    if isinstance(size, dict) and "longest_edge" in size:
        return {"letterbox": True}
    if said.get("do_center_crop"):
        edge = size.get("shortest_edge") if isinstance(size, dict) else size
        if isinstance(edge, int) and str(said.get("image_processor_type", "")).startswith("Levit"):
            edge = int(edge / _SHARE)  # it resizes to 256 where its size says 224
        before = (int(edge),) if isinstance(edge, int) else (_extents(size) or ())
        return {"resize": scaled_resize(tuple(before), own, extents)}
    if "crop_pct" in said and isinstance(size, dict) and "shortest_edge" in size:
        if size["shortest_edge"] >= _UNCROPPED:
            return {}
        share = float(said["crop_pct"] or _SHARE)
        return {"resize": (int(min(extents) / share),)}
    return {}


def _extents(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    if not isinstance(size, dict):
        return None
    if "height" in size and "width" in size:
        return int(size["height"]), int(size["width"])
    edge = size.get("shortest_edge")
    return (int(edge), int(edge)) if edge else None


def text_preprocessing(
    source: Source, choice: Choice, config: Any, folder: Path, limit: int | None
) -> TextPreprocessing | None:
    """Return what a folder's tokenizer makes; None where it has none that loads."""
    if not has_tokenizer(folder):
        return None
    import transformers

    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception:  # half a tokenizer: the model has its inputs without it
        return None
    own = int(min(getattr(tokenizer, "model_max_length", _MOST_TOKENS), 1_000_000))
    sentence = read_json(folder, "sentence_bert_config.json").get("max_seq_length")
    limits = [own, _MOST_TOKENS, *([limit] if limit else []), *([int(sentence)] if sentence else [])]
    return TextPreprocessing(
        source=_spelled(source),
        task=cast("Task", choice.head.task),
        classes=classes(config),
        tokenizer=path_there(folder.resolve()),
        inputs=tuple(tokenizer.model_input_names),
        max_length=min(limits),
    )


def audio_preprocessing(
    source: Source, choice: Choice, config: Any, folder: Path, main: str
) -> AudioPreprocessing | None:
    """Return what a folder's feature extractor does; None where it has none."""
    said = processor_of(folder, "feature_extractor")
    if not said:
        return None
    waveform = "Wav2Vec2FeatureExtractor" in str(
        said.get("feature_extractor_type", "Wav2Vec2FeatureExtractor")
    )
    vocabulary, blank = _vocabulary(folder, config) if choice.head.task == "speech-recognition" else ((), 0)
    return AudioPreprocessing(
        source=_spelled(source),
        task=cast("Task", choice.head.task),
        classes=classes(config) if choice.head.classifies else (),
        inputs=(main,),
        extractor="" if waveform else path_there(folder.resolve()),
        rate_hz=int(said.get("sampling_rate", 16000)),
        normalize=bool(said.get("do_normalize", True)),
        vocabulary=vocabulary,
        blank=blank,
    )


def _vocabulary(folder: Path, config: Any) -> tuple[tuple[str, ...], int]:
    """The character of each class of a CTC model, and the class that is none."""
    by_token = read_json(folder, "vocab.json")
    settings = read_json(folder, "tokenizer_config.json")
    if any(isinstance(value, dict) for value in by_token.values()):  # one for each language
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


def classes(config: Any) -> tuple[str, ...]:
    """Return the names of the classes; empty where they are numbers only."""
    names = getattr(config, "id2label", None) or {}
    ordered = tuple(str(names[key]) for key in sorted(names, key=int))
    return () if all(name == f"LABEL_{index}" for index, name in enumerate(ordered)) else ordered


def _spelled(source: Source) -> str:
    return f"hf:{source.path.name if source.path else source.name}"
