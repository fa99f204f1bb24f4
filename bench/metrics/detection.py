"""Mean average precision of detectors, by pycocotools. The forms of outputs that this module reads:

| form                     | outputs                                                                    |
|--------------------------|----------------------------------------------------------------------------|
| boxes, labels and scores | `[n, 4]`, `[n]`, `[n]` of one image (torchvision), or with a leading axis of images; a whole number per image (TensorRT's NMS) is the number of valid boxes |
| DETR                     | logits `[images, n, classes]`, and boxes cx, cy, width, height as shares of the input `[images, n, 4]`. With one class more than the model names, the last is "nothing" and scores are a softmax; with as many, they are sigmoids |
| rows                     | `[images, n, 6]`: x1, y1, x2, y2, score, class                              |
| YOLO                     | `[images, n, 4 + classes]` or its transpose: cx, cy, width, height in pixels and the score of each class; with `5 + classes` an objectness score precedes the classes. This module suppresses overlaps |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.progress import quiet
from ...errors import DataError
from ...model.outputs.boxes import Detections, boxes_labels_scores
from ...model.sources.preprocessing import ImagePreprocessing, preprocessing_of
from ...spec.tensors import TensorInfo
from .metric import Floats, Metric, Outputs, Scored, Truth, Values, divide, require_numbers

AREAS = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
"""COCO's ranges of a box's area in square pixels; boxes outside are ignored."""
_MOST_DETECTIONS = 100  # per class and image
_RECALLS = np.linspace(0.0, 1.0, 101)
_MOST_PAIRS = 300  # of query and class, by the sigmoid scores of DETR's successors, as in RT-DETR
_SMALLEST_SCORE, _LARGEST_OVERLAP, _MOST_CANDIDATES = 1e-3, 0.7, 1000  # Ultralytics' values for validation


class MeanAveragePrecision(Metric):
    """COCO's mAP: the mean over classes, 10 thresholds of IoU (0.50 to 0.95) and 101 recalls.

    `map:50` and `map:75` use that threshold alone; `map:small`, `map:medium` and `map:large` only boxes of
    that area. Labels are [images, most, 5 to 7]: class, x1, y1, x2, y2 in pixels of the model's input, and
    optionally whether the box is a crowd, and its area; class -1 is padding. Columns: class; score, NaN for
    a labelled box that counts; for each threshold whether a detection is matched, and whether it is ignored.
    Each image is matched once; resampling repeats no matching.
    """

    package = ("pycocotools", "pycocotools")
    is_mean = False
    resamples = 500
    undefined = "the labels hold no box that counts; at least one is required"

    def __init__(self, name: str, kind: str = "") -> None:
        super().__init__(name)
        self.area = AREAS.get(kind, (0.0, 1e10))
        self.thresholds = np.array([int(kind) / 100]) if kind.isdigit() else np.linspace(0.5, 0.95, 10)

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        labels = None if truth.labels is None else np.asarray(truth.labels)
        if (
            labels is None
            or labels.ndim != 3
            or labels.shape[::2] not in [(truth.samples, n) for n in (5, 6, 7)]
        ):
            shown = "has no labels" if labels is None else f"labels of shape {labels.shape}"
            raise DataError(
                f"{truth.where}: {shown} for {truth.samples} images; {self.name} needs boxes "
                "[images, most, 5 to 7]: class, x1, y1, x2, y2, is a crowd, area"
            )
        require_numbers("labels", labels, truth.where, finite=True)
        for name, array in outputs.items():
            require_numbers(name, array, truth.where, finite=False)
        form, images = read_detections(outputs, truth.samples, self.inputs, truth.where)
        self.note = f"{self.name}: {form}"
        return match(images, [rows[rows[:, 0] >= 0] for rows in labels], self.thresholds, self.area)

    def values(self, scored: Scored) -> Values:
        classes = self._curves(scored)

        def values(weights: Floats) -> Floats:
            each = np.array([_average_precision(weights, *curve) for curve in classes.values()])
            has_boxes = ~np.isnan(each)
            total = np.where(has_boxes, each, 0.0).sum(axis=0)
            return divide(total, has_boxes.sum(axis=0).astype(np.float64))

        return values if classes else lambda weights: np.full(len(weights), np.nan)

    def classes(self, scored: Scored) -> dict[int, tuple[float, int]]:
        ones = np.ones((1, scored.units))
        return {
            label: (float(_average_precision(ones, *curve)[0]), int(np.count_nonzero(curve[0])))
            for label, curve in self._curves(scored).items()
        }

    def _curves(self, scored: Scored) -> dict[int, tuple[Any, ...]]:
        """Return by class: boxes per image; image, matched, ignored of each detection, by falling score."""
        table, unit, curves = scored.table, scored.unit_of_row, {}
        is_box = np.isnan(table[:, 1])
        for label in np.unique(table[is_box, 0]):
            positives = np.bincount(unit[is_box & (table[:, 0] == label)], minlength=scored.units)
            rows = np.flatnonzero(~is_box & (table[:, 0] == label))
            rows = rows[np.argsort(-table[rows, 1], kind="stable")]
            curves[int(label)] = (positives, unit[rows], *np.split(table[rows, 2:] > 0, 2, axis=1))
        return curves


def match(images: Sequence[Detections], labels: Sequence[Floats], thresholds: Floats, area: Any) -> Scored:
    """Match detections with labelled boxes by COCOeval; `MeanAveragePrecision` documents the columns."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    sides = []
    for side_rows in (
        (np.column_stack([label, box, np.zeros((len(box), 2)), score]) for box, score, label in images),
        (np.pad(boxes, ((0, 0), (0, 8 - boxes.shape[1])), constant_values=-1) for boxes in labels),
    ):
        side = COCO()
        side.dataset = {"images": [{"id": number} for number in range(len(images))], "categories": []}
        side.dataset["annotations"] = list(_annotations(side_rows))
        sides.append(side)
    classes = sorted({box["category_id"] for side in sides for box in side.dataset["annotations"]})
    with quiet():
        for side in sides:
            side.createIndex()
        evaluation = COCOeval(sides[1], sides[0], "bbox")
        params = evaluation.params
        params.imgIds, params.catIds, params.iouThrs = list(range(len(images))), classes, thresholds
        params.areaRng, params.areaRngLbl, params.maxDets = [list(area)], ["all"], [_MOST_DETECTIONS]
        if classes:
            evaluation.evaluate()
    width = 2 + 2 * len(thresholds)
    tables: list[list[Floats]] = [[np.empty((0, width))] for _ in images]
    for matched in filter(None, evaluation.evalImgs):
        flags = np.concatenate([matched["dtMatches"] > 0, matched["dtIgnore"] > 0]).T
        scores = np.array(matched["dtScores"])
        boxes = int(np.count_nonzero(np.asarray(matched["gtIgnore"]) == 0))
        rows = np.zeros((len(scores) + boxes, width))
        rows[:, 0] = matched["category_id"]
        rows[: len(scores), 1], rows[: len(scores), 2:] = scores, flags.reshape(len(scores), width - 2)
        rows[len(scores) :, 1] = np.nan
        tables[matched["image_id"]].append(rows)
    counts = np.array([sum(map(len, parts)) for parts in tables], np.int64)
    return Scored(np.concatenate([part for parts in tables for part in parts]), counts)


def _annotations(images: Iterable[Floats]) -> Iterable[dict[str, Any]]:
    """Yield rows [class, x1, y1, x2, y2, is a crowd, area, score] of images in COCO's form; -1 is unknown."""
    identifier = 0
    for image, rows in enumerate(images):
        for label, x1, y1, x2, y2, crowd, area, score in rows.tolist():
            identifier += 1  # COCOeval reads an id of 0 as no match
            size = [x1, y1, x2 - x1, y2 - y1]
            yield {
                "id": identifier, "image_id": image, "category_id": int(label), "bbox": size, "score": score,
                "iscrowd": int(crowd > 0), "area": area if area > 0 else size[2] * size[3],
            }  # fmt: skip


def _average_precision(
    weights: Floats, positives: NDArray[Any], unit: NDArray[Any], matched: NDArray[Any], ignored: NDArray[Any]
) -> Floats:
    """Return COCOeval's average precision of a class for weights [resamples, images]; NaN without boxes."""
    boxes = weights @ positives
    by_detection, total = weights.T[unit], np.zeros(len(weights))
    for right, skipped in zip((matched & ~ignored).T, ignored.T, strict=True):
        at = np.flatnonzero(right)
        if not at.size:
            continue
        counted = np.cumsum(by_detection * ~skipped[:, None], axis=0)[at]
        hits = np.cumsum(by_detection[at], axis=0)
        precision = hits / (counted + np.spacing(1))
        best_behind = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
        recalls_reached = np.searchsorted(_RECALLS, hits / np.where(boxes > 0, boxes, 1.0), side="right")
        total += (best_behind * np.diff(recalls_reached, axis=0, prepend=0)).sum(axis=0)
    return np.where(boxes > 0, total / (len(_RECALLS) * matched.shape[1]), np.nan)


def read_detections(
    outputs: Outputs, samples: int, inputs: Sequence[TensorInfo], where: str
) -> tuple[str, list[Detections]]:
    """Return a description of the outputs' form, and the detections of each image."""
    preprocessing = preprocessing_of(inputs)
    classes = len(preprocessing.classes) if preprocessing else 0
    size = next((tensor.shape[:1:-1] for tensor in inputs if len(tensor.shape) == 4), ())
    if isinstance(preprocessing, ImagePreprocessing):
        size = (preprocessing.width, preprocessing.height)
    if named_detections := boxes_labels_scores(outputs, samples):
        (boxes, labels, scores), images = named_detections
        return f"boxes {boxes!r}, labels {labels!r}, scores {scores!r}", images
    pair = _read_detr(outputs, samples, classes, size, where) or _read_rows_or_yolo(outputs, samples, classes)
    if pair:
        return pair
    shapes = ", ".join(f"{name!r} {array.dtype}{list(array.shape)}" for name, array in outputs.items())
    raise DataError(
        f"{where}: outputs {shapes} for {samples} images; boxes with labels and scores, DETR's logits and "
        "boxes, rows of 6, or YOLO's predictions are required",
        hint="the forms are listed in docs/measuring.md: return one of them from the model, or give `metric` "
        "file.py:function",
    )


def _read_detr(
    outputs: Outputs, samples: int, classes: int, size: Sequence[Any], where: str
) -> tuple[str, list[Detections]] | None:
    arrays = {n: a for n, a in outputs.items() if a.dtype.kind == "f" and a.ndim == 3 and len(a) == samples}
    # Logits of three classes and "nothing" have the shape of boxes, so names with "box" come first.
    for boxes in sorted(arrays, key=lambda name: "box" not in name.lower()):
        logits = next(
            (n for n, a in arrays.items() if n != boxes and a.shape[:2] == arrays[boxes].shape[:2]), None
        )
        if arrays[boxes].shape[2] != 4 or logits is None:
            continue
        if not size or not all(isinstance(extent, int) for extent in size):
            raise DataError(
                f"{where}: boxes {boxes!r} are shares of an input of unknown height and width",
                hint="export with a `preprocessing`, or with a fixed height and width",
            )
        sigmoid, images = classes == arrays[logits].shape[2], []
        for image_boxes, scores in zip(
            _corners(arrays[boxes]) * [*size, *size], arrays[logits].astype(np.float64), strict=True
        ):
            if sigmoid:  # the pairs of query and class with the highest scores
                pairs = (0.5 * (1.0 + np.tanh(0.5 * scores))).ravel()
                best = np.argsort(-pairs, kind="stable")[:_MOST_PAIRS]
                images.append((image_boxes[best // scores.shape[1]], pairs[best], best % scores.shape[1]))
            else:  # the most likely class of each query, except the last class
                shares = np.exp(scores - scores.max(axis=1, keepdims=True))
                shares = (shares / shares.sum(axis=1, keepdims=True))[:, :-1]
                images.append((image_boxes, shares.max(axis=1), shares.argmax(axis=1)))
        score_kind = "sigmoid scores" if sigmoid else "softmax, the last class is nothing"
        return f"DETR: logits {logits!r} ({score_kind}), boxes {boxes!r} as shares of the input", images
    return None


def _read_rows_or_yolo(outputs: Outputs, samples: int, classes: int) -> tuple[str, list[Detections]] | None:
    arrays = {name: array for name, array in outputs.items() if array.ndim == 3 and len(array) == samples}
    for name, array in arrays.items():
        if array.shape[2] == 6 and classes != 2 and (array[..., 5] == np.floor(array[..., 5])).all():
            rows = [image[(image[:, 4] > 0) & (image[:, 5] >= 0)] for image in array]
            images = [(i[:, :4], i[:, 4], i[:, 5]) for i in rows]
            return f"rows {name!r}: x1, y1, x2, y2, score, class", images
    for name, array in arrays.items():
        middle, last = array.shape[1:]
        layouts = [(middle < last, 4)] if min(middle, last) > 4 else []
        if classes:
            sizes = [(False, last, 4), (True, middle, 4), (False, last, 5), (True, middle, 5)]
            layouts = [(is_row, first) for is_row, size, first in sizes if size == first + classes]
        if array.dtype.kind == "f" and layouts:
            transposed, first = layouts[0]
            shape = f"[images, {first} + classes, n]" if transposed else f"[images, n, {first} + classes]"
            images = [_decode_yolo(np.asarray(i.T if transposed else i, np.float64), first) for i in array]
            return f"YOLO {name!r} {shape}, overlaps suppressed", images
    return None


def _decode_yolo(rows: Floats, first: int) -> Detections:
    scores = rows[:, first:] * (rows[:, 4:5] if first == 5 else 1.0)
    at, classes = np.nonzero(scores > _SMALLEST_SCORE)
    boxes, best = _corners(rows[:, :4])[at], scores[at, classes]
    clear = suppress_overlaps(boxes, best, classes)
    return boxes[clear], best[clear], classes[clear]


def suppress_overlaps(
    boxes: Floats, scores: Floats, classes: NDArray[np.int64], overlap: float = _LARGEST_OVERLAP
) -> NDArray[np.int64]:
    """Non-maximum suppression: return the indices, by falling score, of detections without a better one of
    their class that overlaps by more than `overlap` (intersection over union). Boxes are x1, y1, x2, y2."""
    from pycocotools.mask import iou

    order = np.argsort(-scores, kind="stable")[:_MOST_CANDIDATES]
    corners = boxes[order].astype(np.float64)
    xywh = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    survives = np.ones(len(order), bool)
    for index in range(len(order)):
        lower = np.flatnonzero(survives & (classes[order] == classes[order[index]]))
        lower = lower[lower > index]
        if survives[index] and lower.size:
            overlaps = iou(xywh[index : index + 1], xywh[lower], np.zeros(len(lower), np.uint8))[0]
            survives[lower[overlaps > overlap]] = False
    return order[survives]


def _corners(boxes: NDArray[Any]) -> Floats:
    centre, half = boxes[..., :2].astype(np.float64), boxes[..., 2:].astype(np.float64) / 2.0
    return np.concatenate([centre - half, centre + half], axis=-1)
