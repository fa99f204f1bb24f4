"""Describe and load models of timm: preprocessing from its configuration, weights from the local caches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import timm
from huggingface_hub import try_to_load_from_cache
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_data_config

from ....errors import ModelError, translate_errors
from ..preprocessing import ImagePreprocessing, Task
from ..pytorch import read_weights
from ..source import Source, hub_cache
from . import description
from .description import Description

_INPUT = "x"
_IMAGENET = 1000


def describe(source: Source) -> Description:
    """Return a model's description from timm's configuration, without building the network."""
    options, name = source.options, source.name
    if not timm.is_model(name):
        raise description.unknown_name(source, timm.list_models())
    cfg = timm.get_pretrained_cfg(name)
    config = cfg.to_dict() if cfg is not None else {}
    channels, height, width = config.get("input_size") or (3, 224, 224)
    height, width = options.size or (height, width)
    task = options.task or "image-classification"
    if task not in ("embedding", "image-classification"):
        raise source.refusal(f"task {task!r}; image-classification or embedding is required")
    if not config.get("num_classes", 1) and not options.classes:
        task = "embedding"
    preprocessing = None
    if channels in (1, 3):
        classes = _classes(config) if task == "image-classification" and not options.classes else ()
        preprocessing = replace(
            _preprocessing(source, config, height, width), task=cast("Task", task), classes=classes
        )
    tensor = description.image_input(_INPUT, height, width, preprocessing, channels)
    outputs = ("features",) if task == "embedding" else ("logits",)
    return Description(task, (tensor,), lambda: _load(source, cfg), outputs)


def _classes(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the WordNet ids of ImageNet's classes (n01440764, ...), the usual names of image folders."""
    subset = infer_imagenet_subset(config) if config.get("num_classes") == _IMAGENET else None
    return tuple(ImageNetInfo(subset).label_names()) if subset else ()


def _load(source: Source, cfg: Any) -> Any:
    arguments = _arguments(source, cfg)
    if source.options.weights:
        return timm.create_model(source.name, pretrained=False, **arguments)
    message = f"{source.spec}: timm cannot load its weights:"
    hint = "give `weights` random, or `weights` FILE"
    with translate_errors(message, ModelError, hint=hint), description.network(source.options.download):
        if not source.options.download:
            arguments |= _cached_weights(source, cfg)
        return timm.create_model(source.name, pretrained=True, **arguments)


def _arguments(source: Source, cfg: Any) -> dict[str, Any]:
    options = source.options
    arguments: dict[str, Any] = {}
    if options.classes:
        arguments["num_classes"] = options.classes
    if options.task == "embedding":
        arguments["num_classes"] = 0
    if options.size and getattr(cfg, "fixed_input_size", False):
        arguments["img_size"] = options.size
    return arguments


def _preprocessing(source: Source, config: dict[str, Any], height: int, width: int) -> ImagePreprocessing:
    size = (config.get("input_size") or (3, height, width))[0]
    data = resolve_data_config({"input_size": (size, height, width)}, pretrained_cfg=config)
    # The size before the crop, as `timm.data.transforms_factory` computes it for evaluation.
    share = float(data.get("crop_pct") or 1.0)
    scaled = (int(height / share), int(width / share))
    resized: dict[str, Any] = {"resize": (scaled[0],) if height == width else (max(scaled),)}
    if data.get("crop_mode") in ("squash", "border"):
        resized = {"resize": scaled} if data["crop_mode"] == "squash" else {"letterbox": True}
    return ImagePreprocessing(
        source=f"timm:{source.name}",
        input=_INPUT,
        height=height,
        width=width,
        interpolation=description.interpolation(data["interpolation"]),
        mean=tuple(map(float, data["mean"])),
        std=tuple(map(float, data["std"])),
        channels=cast("Any", size),
        **resized,
    )


def _cached_weights(source: Source, cfg: Any) -> dict[str, Any]:
    """Return the arguments that make `create_model` load its weights only from the local caches."""
    if cfg is None or not (cfg.url or cfg.hf_hub_id or cfg.file):
        raise ModelError(f"{source.spec}: timm has no weights for it", hint="give `weights` random or FILE")
    path, folder = Path(), hub_cache()
    if cfg.hf_hub_id:
        names = [cfg.hf_hub_filename] if cfg.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
        files = (try_to_load_from_cache(cfg.hf_hub_id, name, cache_dir=folder) for name in names)
        path = next((Path(file) for file in files if isinstance(file, str)), path)
    if cfg.url and not path.name:
        path = description.torch_cache() / cfg.url.rsplit("/", 1)[-1]
        folder = folder if cfg.hf_hub_id else description.torch_cache()
    if not path.is_file():
        raise description.not_cached(source.spec, "the file of its weights", folder)
    if cfg.custom_load:
        return {"pretrained_cfg_overlay": {"file": str(path)}}
    return {"pretrained_cfg_overlay": {"state_dict": read_weights(path)}}
