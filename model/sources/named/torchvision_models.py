"""Describe and load models of torchvision, with the preprocessing, classes and cached file of its weights."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.detection.image_list import ImageList

from ....errors import ModelError, first_line, translate_errors
from ....spec.tensors import TensorInfo
from ..preprocessing import PRESETS, ImagePreprocessing, Task, scaled_resize
from ..pytorch import read_weights
from ..source import Source
from . import description
from .description import Description


class _OutputOf(nn.Module):
    """A module that returns one entry of another module's output dict; the other entries serve training."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module, self.name = module, name
        self.training = module.training

    def forward(self, x: Tensor) -> Tensor:
        """Take images float32 [batch, 3, height, width]; return [batch, classes, height, width]."""
        return self.module(x)[self.name]  # type: ignore[no-any-return]


_ONE_STAGE_MODULES = ("retinanet", "fcos", "ssd", "ssdlite")
"""Modules of torchvision.models.detection with one-stage detectors."""


class _OneStage(nn.Module):
    """A one-stage detector that returns the boxes of all anchors for resized and normalized images.

    torchvision's `forward` also resizes each image and suppresses overlapping boxes.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module: Any = module
        self.softmax = type(module).__name__ == "SSD"  # with a class for the background
        self.training = module.training

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Take images float32 [batch, 3, h, w]; return boxes [batch, anchors, 4] and scores."""
        maps = self.module.backbone(x)
        features = [maps] if isinstance(maps, Tensor) else list(maps.values())
        heads = self.module.head(features)
        height, width = x.shape[-2:]
        [anchors] = self.module.anchor_generator(ImageList(x[:1], [(height, width)]), features)
        offsets = heads["bbox_regression"]
        coder = self.module.box_coder
        if "bbox_ctrness" in heads:
            boxes = coder.decode(offsets, anchors.expand_as(offsets))
            scores = (heads["cls_logits"].sigmoid() * heads["bbox_ctrness"].sigmoid()).sqrt()
        else:
            repeated = anchors.expand_as(offsets).reshape(-1, 4)
            boxes = coder.decode_single(offsets.reshape(-1, 4), repeated).reshape(offsets.shape)
            logits = heads["cls_logits"]
            scores = logits.softmax(-1) if self.softmax else logits.sigmoid()
        limits = torch.tensor([width, height, width, height], dtype=boxes.dtype)
        return {"boxes": boxes.clamp(min=0).minimum(limits), "scores": scores}


_INPUT = "x"
_IMAGENET = cast("ImagePreprocessing", PRESETS["imagenet"])
_VIDEO_FRAMES = 16
_DETECTOR_SIZES = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320}
_MEANS = {
    "ssd300_vgg16": ((0.48235, 0.45882, 0.40784), (1 / 255, 1 / 255, 1 / 255)),
    "ssdlite320_mobilenet_v3_large": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
_MODULES = {"segmentation": "semantic-segmentation", "detection": "object-detection",
            "video": "video-classification", "optical_flow": "optical-flow"}  # fmt: skip


def describe(source: Source) -> Description:
    """Return torchvision's description of a model, without building the network."""
    names = models.list_models()
    if source.name not in names:
        raise description.unknown_name(source, names)
    if source.name.startswith("quantized_"):
        hint = f"give torchvision:{source.name.removeprefix('quantized_')}, and quantize it here"
        raise source.refusal("is quantized by torchvision, which ONNX cannot represent", hint)
    entry, entries = models.get_model_builder(source.name), models.get_model_weights(source.name)
    weights = getattr(entries, "DEFAULT", None) or next(iter(entries), None)
    preset = weights.transforms() if weights is not None else None
    modules = (_MODULES[part] for part in entry.__module__.split(".") if part in _MODULES)
    task = next(modules, "image-classification")
    classes = tuple(weights.meta.get("categories", ())) if weights is not None else ()
    if task == "optical-flow":
        raise source.refusal(
            "takes two images and returns a list of flows; a model with one image is required",
            "write a function that returns the model and an example: file.py:function",
        )
    if source.options.classes or len(classes) < 2:
        classes = ()

    load = partial(_load, source, entry, weights, task)
    weights_file = partial(_weights_file, source, weights)
    if task == "video-classification":
        extents = source.options.size or tuple(preset.crop_size if preset is not None else (112, 112))
        video = TensorInfo(_INPUT, "float32", ("batch", 3, _VIDEO_FRAMES, *extents))
        return Description("", (video,), load, ("logits",), weights=weights_file)
    if task == "object-detection":
        return Description(
            task, (_detector_input(source, entry, classes),), load, ("boxes", "scores"), weights=weights_file,
            notes=(
                "returns boxes [batch, anchors, 4] in pixels of its input and scores [batch, anchors, "
                "classes], before the suppression of overlapping ones",
            ),
        )  # fmt: skip
    tensor = _image_input(source, preset, cast("Task", task), classes)
    outputs = ("out" if task == "semantic-segmentation" else "logits",)
    return Description(task, (tensor,), load, outputs, weights=weights_file)


def _load(source: Source, entry: Any, weights: Any, task: str) -> Any:
    """Return the module with tensors as its outputs."""
    arguments = _arguments(source, entry, task)
    if source.options.weights or source.options.classes:
        arguments |= {"weights_backbone": None} if "weights_backbone" in _parameters(entry) else {}
        if "init_weights" in _parameters(_model_class(entry)):
            arguments["init_weights"] = True
        module = _construct(source, entry, {"weights": None, **arguments})
    else:
        state = read_weights(_weights_file(source, weights))
        weights.get_state_dict = lambda *_args, **_named: state  # torchvision's version unpickles
        try:
            module = _construct(source, entry, {"weights": weights, **arguments})
        finally:
            del weights.get_state_dict
    if task == "object-detection":
        return _OneStage(module)
    return _OutputOf(module, "out") if task == "semantic-segmentation" else module


def _image_input(source: Source, preset: Any, task: Task, classes: tuple[str, ...]) -> TensorInfo:
    resize: tuple[int, ...] = ()
    if task == "semantic-segmentation":
        side = int(preset.resize_size[0]) if preset is not None and preset.resize_size else 520
    else:
        side = int(preset.crop_size[0]) if preset is not None else 224
        resize = tuple(map(int, preset.resize_size)) if preset is not None else (256,)
    height, width = source.options.size or (side, side)
    preprocessing = replace(
        _IMAGENET, task=task, classes=classes, input=_INPUT, height=height, width=width,
        resize=scaled_resize(resize, (side, side), (height, width)),
    )  # fmt: skip
    if preset is not None:
        preprocessing = replace(
            preprocessing, source=f"torchvision:{source.name}", mean=tuple(preset.mean),
            std=tuple(preset.std), interpolation=description.interpolation(preset.interpolation),
        )  # fmt: skip
    return description.image_input(_INPUT, height, width, preprocessing)


def _detector_input(source: Source, entry: Any, classes: tuple[str, ...]) -> TensorInfo:
    if entry.__module__.rpartition(".")[2] not in _ONE_STAGE_MODULES:
        detectors = models.list_models(module=models.detection)
        one_stage = ", ".join(name for name in detectors if name.startswith(_ONE_STAGE_MODULES))
        problem = "chooses regions by their scores between two stages; a detector of one stage is required"
        hint = "write a function that returns the part to export: file.py:function"
        raise source.refusal(f"{problem}: {one_stage}", hint)
    side = _DETECTOR_SIZES.get(source.name, 800)
    height, width = source.options.size or (side, side)
    mean, std = _MEANS.get(source.name, (_IMAGENET.mean, _IMAGENET.std))
    preprocessing = ImagePreprocessing(
        source=f"torchvision:{source.name}", task="object-detection", classes=classes, input=_INPUT,
        height=height, width=width, mean=mean, std=std,
    )  # fmt: skip
    return description.image_input(_INPUT, height, width, preprocessing)


def _arguments(source: Source, entry: Any, task: str) -> dict[str, Any]:
    options = source.options
    arguments: dict[str, Any] = {"num_classes": options.classes} if options.classes else {}
    if options.size and "image_size" in _parameters(_model_class(entry)):
        if options.size[0] != options.size[1]:
            raise source.refusal("takes square images; one extent is required")
        arguments["image_size"] = options.size[0]
    if options.size and source.name.startswith("maxvit"):
        arguments["input_size"] = options.size
    if options.task:
        raise source.refusal(f"`task` is for transformers; torchvision's model is {task}")
    return arguments


def _construct(source: Source, entry: Any, arguments: dict[str, Any]) -> Any:
    try:
        return entry(**arguments)
    except ModelError:
        raise
    except Exception as error:  # constructors raise many types of errors
        raise ModelError(
            f"{source.spec}: torchvision cannot construct it: {type(error).__name__}: {first_line(error)}",
            hint="leave `size` or `classes` out, or choose values that the model takes",
        ) from error


def _weights_file(source: Source, weights: Any) -> Path:
    """Return the cached file of a model's trained weights; download it first if the user allows that."""
    if weights is None:
        raise ModelError(
            f"{source.spec}: torchvision has no weights for it", hint="give `weights` random or FILE"
        )
    cached: Path = description.torch_cache() / weights.url.rsplit("/", 1)[-1]
    if cached.is_file():
        return cached
    if not source.options.download:
        raise description.not_cached(source.spec, cached.name, cached.parent)
    cached.parent.mkdir(parents=True, exist_ok=True)
    digest = torch.hub.HASH_REGEX.search(cached.name)
    hint = f"put the file into {cached.parent}, or give `weights` random, or `weights` FILE"
    with translate_errors(f"{source.spec}: {weights.url} cannot be downloaded:", ModelError, hint=hint):
        torch.hub.download_url_to_file(
            weights.url, str(cached), digest.group(1) if digest else None, progress=False
        )
    return cached


def _parameters(entry: Any) -> set[str]:
    return set(inspect.signature(entry).parameters)


def _model_class(entry: Any) -> Any:
    """Return the class that a builder's annotation declares; the builder itself if that is no class."""
    annotation = inspect.signature(entry, eval_str=True).return_annotation
    return annotation if isinstance(annotation, type) else entry
