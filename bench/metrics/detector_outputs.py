"""Outputs of detectors, in the forms that are common, as boxes in pixels of the model's input.

| form                     | outputs                                                                    |
|--------------------------|----------------------------------------------------------------------------|
| boxes, labels and scores | `[n, 4]`, `[n]`, `[n]` of one image (torchvision), or with an axis of images in front; a whole number per image (TensorRT's NMS) says how many of them count |
| DETR                     | logits `[images, n, classes]`, and boxes cx, cy, width, height as shares of the input `[images, n, 4]`. With one class more than the model names, the last is "nothing" and scores are a softmax; with as many, they are sigmoids |
| rows                     | `[images, n, 6]`: x1, y1, x2, y2, score, class                              |
| YOLO                     | `[images, n, 4 + classes]` or its transpose: cx, cy, width, height in pixels and the score of each class; `5 + classes` with the score of an object in front. Overlaps are suppressed here |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...model.preprocessing import ImagePreprocessing, preprocessing_of
from ...tensors import TensorInfo
from .coco import Detections
from .metric import Outputs
from .suppression import SMALLEST_SCORE, suppressed

MOST_PAIRS = 300
"""Pairs of query and class that sigmoid scores of DETR's successors give, as RT-DETR takes them."""

Array = NDArray[Any]
Form = tuple[str, Callable[[Outputs], list[Detections]]]
"""In words, and what reads outputs of the form."""

_WAY_OUT = (
    "the forms are listed in docs/measuring.md: return one of them from the model, or give `metric` "
    "file.py:function"
)


@dataclass(frozen=True)
class DetectorInput:
    """What is known of a detector's input.

    Attributes:
        width, height: Extents in pixels; 0 where they are not known.
        classes: How many classes it names; 0 where they are not known.
    """

    width: int = 0
    height: int = 0
    classes: int = 0


def detector_input(inputs: Sequence[TensorInfo]) -> DetectorInput:
    """Return what the inputs say: their preprocessing, else the shape of an image."""
    said = preprocessing_of(inputs)
    classes = len(said.classes) if said else 0
    if isinstance(said, ImagePreprocessing):
        return DetectorInput(said.width, said.height, classes)
    for one in inputs:
        if len(one.shape) == 4 and isinstance(one.shape[2], int) and isinstance(one.shape[3], int):
            return DetectorInput(one.shape[3], one.shape[2], classes)
    return DetectorInput(classes=classes)


def detector_form(outputs: Outputs, samples: int, detector: DetectorInput, where: str) -> Form:
    """Return the name of the form of outputs, and what reads them.

    Raises:
        DataError: If they have none of the forms.
    """
    form = (
        _boxes_labels_scores(outputs, samples)
        or _detr(outputs, samples, detector, where)
        or _rows(outputs, samples, detector)
        or _yolo(outputs, samples, detector)
    )
    if form is not None:
        return form
    shapes = ", ".join(f"{name!r} {one.dtype}{list(one.shape)}" for name, one in outputs.items())
    raise DataError(
        f"{where}: outputs {shapes} for {samples} images; boxes with labels and scores, DETR's logits and "
        "boxes, rows of 6, or YOLO's predictions are required",
        hint=_WAY_OUT,
    )


def _boxes_labels_scores(outputs: Outputs, samples: int) -> Form | None:
    for boxes, array in outputs.items():
        shape = array.shape[:-1]
        if array.dtype.kind != "f" or array.shape[-1:] != (4,) or len(shape) not in (1, 2):
            continue
        if (len(shape) == 1 and samples != 1) or (len(shape) == 2 and shape[0] != samples):
            continue
        rest = [name for name, one in outputs.items() if name != boxes and one.shape == shape]
        labels = next((name for name in rest if _is_label(name, outputs[name])), None)
        scores = next((name for name in rest if name != labels and outputs[name].dtype.kind == "f"), None)
        if labels is not None and scores is not None:
            counts = _counts(outputs, (boxes, labels, scores), samples)
            words = f"boxes {boxes!r}, labels {labels!r}, scores {scores!r}"
            return words, partial(_read_boxes, (boxes, scores, labels), counts)
    return None


def _read_boxes(names: Sequence[str], counts: str, outputs: Outputs) -> list[Detections]:
    arrays = [np.asarray(outputs[name], np.float64) for name in names]
    if arrays[0].ndim == 2:
        arrays = [one[None] for one in arrays]
    ends = outputs[counts].ravel() if counts else [arrays[0].shape[1]] * len(arrays[0])
    return [
        Detections(boxes[:end], scores[:end], labels[:end].astype(np.int64))
        for boxes, scores, labels, end in zip(*arrays, ends, strict=True)
    ]


def _is_label(name: str, array: Array) -> bool:
    return array.dtype.kind in "iu" or any(word in name.lower() for word in ("label", "class"))


def _counts(outputs: Outputs, names: Sequence[str], samples: int) -> str:
    """The output that says how many detections of an image count; empty where there is none."""
    for name, one in outputs.items():
        if name not in names and one.dtype.kind in "iu" and one.shape in ((samples,), (samples, 1)):
            return name
    return ""


def _detr(outputs: Outputs, samples: int, detector: DetectorInput, where: str) -> Form | None:
    floats = {name: one for name, one in outputs.items() if one.dtype.kind == "f" and one.ndim == 3}
    # With three classes and "nothing" the logits look like boxes: the name decides.
    for boxes in sorted(floats, key=lambda name: "box" not in name.lower()):
        array = floats[boxes]
        if array.shape[0] != samples or array.shape[2] != 4:
            continue
        others = (name for name, one in floats.items() if name != boxes and one.shape[:2] == array.shape[:2])
        logits = next(others, None)
        if logits is None:
            continue
        if not detector.width:
            raise DataError(
                f"{where}: boxes {boxes!r} are shares of an input whose height and width are not known",
                hint="export with a `preprocessing`, or with a fixed height and width",
            )
        sigmoid = detector.classes == floats[logits].shape[2]
        how = "sigmoid scores" if sigmoid else "softmax, the last class is nothing"
        words = f"DETR: logits {logits!r} ({how}), boxes {boxes!r} as shares of the input"
        return words, partial(_read_detr, boxes, logits, detector, sigmoid)
    return None


def _read_detr(
    boxes: str, logits: str, detector: DetectorInput, sigmoid: bool, outputs: Outputs
) -> list[Detections]:
    size = np.array([detector.width, detector.height] * 2, np.float64)
    placed = _corners(np.asarray(outputs[boxes], np.float64)) * size
    take = _pairs if sigmoid else _queries
    return [take(*one) for one in zip(placed, np.asarray(outputs[logits], np.float64), strict=True)]


def _queries(boxes: Array, logits: Array) -> Detections:
    """One detection per query: its likeliest class but the last."""
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    best = shares[:, :-1].argmax(axis=1)
    return Detections(boxes, shares[np.arange(len(best)), best], best)


def _pairs(boxes: Array, logits: Array) -> Detections:
    """The pairs of query and class with the highest scores."""
    scores = (0.5 * (1.0 + np.tanh(0.5 * logits))).ravel()  # the sigmoid, without overflow
    chosen = np.argsort(-scores, kind="stable")[:MOST_PAIRS]
    return Detections(boxes[chosen // logits.shape[1]], scores[chosen], chosen % logits.shape[1])


def _rows(outputs: Outputs, samples: int, detector: DetectorInput) -> Form | None:
    for name, array in outputs.items():
        if array.ndim != 3 or array.shape[0] != samples or array.shape[2] != 6 or detector.classes == 2:
            continue
        if (array[..., 5] == np.floor(array[..., 5])).all():
            return f"rows {name!r}: x1, y1, x2, y2, score, class", partial(_read_rows, name)
    return None


def _read_rows(name: str, outputs: Outputs) -> list[Detections]:
    images = []
    for image in np.asarray(outputs[name], np.float64):
        kept = image[(image[:, 4] > 0) & (image[:, 5] >= 0)]
        images.append(Detections(kept[:, :4], kept[:, 4], kept[:, 5].astype(np.int64)))
    return images


def _yolo(outputs: Outputs, samples: int, detector: DetectorInput) -> Form | None:
    for name, array in outputs.items():
        if array.dtype.kind != "f" or array.ndim != 3 or array.shape[0] != samples:
            continue
        layout = _yolo_layout(array.shape[1], array.shape[2], detector.classes)
        if layout is not None:
            transposed, first = layout
            shape = f"[images, {first} + classes, n]" if transposed else f"[images, n, {first} + classes]"
            words = f"YOLO {name!r} {shape}, overlaps suppressed"
            return words, partial(_read_yolo, name, transposed, first)
    return None


def _yolo_layout(middle: int, last: int, classes: int) -> tuple[bool, int] | None:
    """Whether the predictions are transposed, and the column of the first class."""
    if not classes:
        return (middle < last, 4) if min(middle, last) > 4 else None
    for first in (4, 5):
        for transposed, width in ((False, last), (True, middle)):
            if width == first + classes:
                return transposed, first
    return None


def _read_yolo(name: str, transposed: bool, first: int, outputs: Outputs) -> list[Detections]:
    images = []
    for image in np.asarray(outputs[name], np.float64):
        rows = image.T if transposed else image
        scores = rows[:, first:] * (rows[:, 4:5] if first == 5 else 1.0)
        at, classes = np.nonzero(scores > SMALLEST_SCORE)
        boxes, chosen = _corners(rows[:, :4])[at], scores[at, classes]
        kept = suppressed(boxes, chosen, classes)
        images.append(Detections(boxes[kept], chosen[kept], classes[kept]))
    return images


def _corners(boxes: Array) -> Array:
    """cx, cy, width, height to x1, y1, x2, y2."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2.0
    return np.concatenate([centre - half, centre + half], axis=-1)
