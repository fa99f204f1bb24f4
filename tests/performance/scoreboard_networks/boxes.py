"""Boxes out of the outputs of detectors, and COCO's average precision of them with FP32's as the truth."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import Array, Metric, draws

Boxes = tuple[Array, Array, Array]
"""Corners [n, 4], scores [n] and classes [n], at most one for an object."""
Corners = tuple[int, int, int, int]
AP = "COCO's AP of boxes, "
"""How the metric is said."""
LEAST = 0.05
"""The score of the least box that a detector is judged by."""


def precision(least: float = 0.0) -> Metric:
    """COCO's average precision (overlaps of 0.5 to 0.95), in percent, of what FP32 finds.

    Args:
        least: The score from which on a box of FP32 counts as an object.
    """

    return Precision(lambda reference, _: [_from(boxes, least) for boxes in reference])


def drawn(truth: Callable[[], list[Boxes]]) -> Metric:
    """COCO's average precision, in percent, of what was drawn.

    Args:
        truth: Returns the boxes of all samples.
    """

    places = _Once(truth)
    return Precision(lambda _, numbers: [places[int(number)] for number in numbers])


@dataclass(frozen=True)
class Precision:
    """Average precision against `truth`, a function of FP32's boxes and the samples' numbers."""

    truth: Callable[[list[Boxes], Array], list[Boxes]]

    def __call__(self, reference: list[Boxes], found: list[Boxes], numbers: Array) -> float:
        return average_precision(self.truth(reference, numbers), found)

    def record(self, reference: list[Boxes], found: list[Boxes]) -> dict[str, Any]:
        """Return `resampled`: the metric of each draw of samples, whose boxes are matched once."""
        numbers = np.arange(len(found))
        judged = _judged(self.truth(reference, numbers), found)
        values = [_precision_of(judged, chosen) if judged else 0.0 for chosen in draws(len(found))]
        return {"resampled": [round(value, 3) for value in values]}


class _Once:
    """A list that is made when it is first asked for."""

    def __init__(self, make: Callable[[], list[Boxes]]) -> None:
        self._make, self._made = make, list[Boxes]()

    def __getitem__(self, index: int) -> Boxes:
        self._made = self._made or self._make()
        return self._made[index]


def of_one_kind(corners: list[Corners]) -> Boxes:
    """Boxes of one class that are certain."""
    return np.array(corners, float).reshape(-1, 4), np.ones(len(corners)), np.zeros(len(corners))


def _from(boxes: Boxes, least: float) -> Boxes:
    corners, scores, kinds = boxes
    return corners[scores >= least], scores[scores >= least], kinds[scores >= least]


def average_precision(truth: list[Boxes], found: list[Boxes]) -> float:
    """COCO's average precision, in percent, by pycocotools; an item of both lists is one image."""
    judged = _judged(truth, found)
    return _precision_of(judged, np.arange(len(truth))) if judged else 0.0


def _judged(truth: list[Boxes], found: list[Boxes]) -> Any:
    """Match the boxes of each image; None where none were found."""
    from pycocotools.coco import COCO  # type: ignore[import-untyped]
    from pycocotools.cocoeval import COCOeval  # type: ignore[import-untyped]

    expected, entries = (
        [
            {
                "image_id": image, "category_id": int(kind) + 1, "score": float(score), "iscrowd": 0,
                "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                "area": (box[2] - box[0]) * (box[3] - box[1]),
            }
            for image, boxes in enumerate(images, 1)
            for box, score, kind in zip(*boxes, strict=True)
        ]
        for images in (truth, found)
    )  # fmt: skip
    if not entries:
        return None
    images = [{"id": image} for image in range(1, len(truth) + 1)]
    kinds = [{"id": kind} for kind in sorted({one["category_id"] for one in expected + entries})]
    with contextlib.redirect_stdout(io.StringIO()):
        base, rest = COCO(), COCO()
        for one, annotations in ((base, expected), (rest, entries)):
            numbered = [{**entry, "id": number} for number, entry in enumerate(annotations, 1)]
            one.dataset = {"images": images, "categories": kinds, "annotations": numbered}
            one.createIndex()
        judged = COCOeval(base, rest, "bbox")
        judged.params.areaRng, judged.params.areaRngLbl = [[0.0, 1e10]], ["all"]
        judged.params.maxDets = [100]
        judged.evaluate()
    return judged


def _precision_of(judged: Any, chosen: Array) -> float:
    """Return the average precision of images by number, some of which may come several times."""
    matched, images = judged.evalImgs, len(judged.params.imgIds)
    judged.evalImgs = [matched[start + i] for start in range(0, len(matched), images) for i in chosen]
    with contextlib.redirect_stdout(io.StringIO()):
        judged.accumulate()
    judged.evalImgs = matched
    values = judged.eval["precision"][..., 0, -1]
    return float(100 * values[values > -1].mean()) if (values > -1).any() else 0.0


def of_map(
    least: float, channel: Callable[[Array], Array], *, pixels: int = 1, grow: float = 0.0
) -> Callable[[Array], Boxes]:
    """Return a function of an output: the bounds of what is connected in a map above a threshold.

    Args:
        pixels: Of the image, in one of the map.
        grow: Each side moves outwards by this, times the area by the perimeter, as DB's boxes do
            (arXiv 1911.08947, section 3.6, which has 1.5).
    """

    def boxes_of(output: Array) -> Boxes:
        from scipy import ndimage  # type: ignore[import-untyped]

        scores = channel(output)
        labelled, count = ndimage.label(scores > least)
        places = ndimage.find_objects(labelled)
        corners = np.array([[p[1].start, p[0].start, p[1].stop, p[0].stop] for p in places], float).reshape(
            -1, 4
        )
        means = np.array([scores[labelled == number].mean() for number in range(1, count + 1)])
        sides = corners[:, 2:] - corners[:, :2]
        wide = sides.min(axis=1) >= 3 if count else np.zeros(0, bool)
        moved = grow * sides.prod(axis=1, keepdims=True) / (2 * sides.sum(axis=1, keepdims=True))
        corners = pixels * (corners + moved * [-1, -1, 1, 1])
        return corners[wide], means.reshape(-1)[wide], np.zeros(int(wide.sum()))

    return boxes_of


def of_yolo(output: Array) -> Boxes:
    """Boxes of YOLOv8: [1, 4 + classes, places]."""
    rows = output[0].T
    return _kept(_corners(rows[:, :4]), rows[:, 4:])


def of_yolox(output: Array) -> Boxes:
    """Boxes of YOLOX at 416 pixels: [1, places, 5 + classes], of offsets in three grids."""
    rows = output[0].astype(np.float64)
    places, strides = _grids(416, 416, (8, 16, 32))
    centers, sizes = (rows[:, :2] + places) * strides, np.exp(np.clip(rows[:, 2:4], None, 20)) * strides
    return _kept(_corners(np.concatenate([centers, sizes], axis=1)), rows[:, 4:5] * rows[:, 5:])


def of_picodet(outputs: list[Array]) -> Boxes:
    """Boxes of PicoDet at 800 by 608 pixels: four grids of scores, and four of distributions of distances."""
    scores = np.concatenate([one[0] for one in outputs[:4]])
    bins = np.concatenate([one[0] for one in outputs[4:]]).reshape(len(scores), 4, -1).astype(np.float64)
    bins = np.exp(bins - bins.max(axis=-1, keepdims=True))
    distances = (bins / bins.sum(axis=-1, keepdims=True)) @ np.arange(bins.shape[-1])
    places, strides = _grids(800, 608, (8, 16, 32, 64))
    centers = (places + 0.5) * strides
    corners = np.concatenate([centers, centers], axis=1) + np.array([-1, -1, 1, 1]) * distances * strides
    return _kept(corners, scores)


def of_pnet(outputs: list[Array]) -> Boxes:
    """Boxes of MTCNN's first network: offsets [1, 4, rows, columns] and probabilities of two classes."""
    offsets, scores = outputs[0][0].reshape(4, -1).T, outputs[1][0, 1].reshape(-1, 1)
    rows, columns = np.divmod(np.arange(len(scores)), outputs[1].shape[-1])
    places = 2.0 * np.stack([columns, rows], axis=1) + 1
    corners = np.concatenate([places, places + 11], axis=1) + 12 * offsets
    return _kept(corners, scores)


def _grids(height: int, width: int, strides: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the column and the row of every place, and its stride."""
    places, sizes = [], []
    for stride in strides:
        rows, columns = np.indices((-(-height // stride), -(-width // stride)))
        places.append(np.stack([columns.ravel(), rows.ravel()], axis=1))
        sizes.append(np.full((rows.size, 1), stride))
    return np.concatenate(places), np.concatenate(sizes)


def _corners(rows: Array) -> Array:
    return np.concatenate([rows[:, :2] - rows[:, 2:] / 2, rows[:, :2] + rows[:, 2:] / 2], axis=1)


def _kept(corners: Array, scores: Array, overlap: float = 0.45) -> Boxes:
    """Return the boxes whose best class reaches `LEAST`, without those that a better one of it covers."""
    kinds, best = scores.argmax(axis=1), scores.max(axis=1)
    order = np.argsort(-best, kind="stable")
    order = order[best[order] >= LEAST]
    corners, best, kinds = corners[order], best[order], kinds[order]
    covers = (_overlaps(corners) >= overlap) & (kinds[:, None] == kinds)
    left = np.ones(len(order), bool)
    for i in range(len(order)):
        if left[i]:
            left[i + 1 :] &= ~covers[i, i + 1 :]
    return corners[left], best[left], kinds[left]


def _overlaps(corners: Array) -> Array:
    """Intersection over union of every two boxes."""
    low, high = corners[:, None], corners[None]
    sides = np.minimum(low[..., 2:], high[..., 2:]) - np.maximum(low[..., :2], high[..., :2])
    both = np.prod(np.maximum(sides, 0), axis=-1)
    areas = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    return np.asarray(both / np.maximum(areas[:, None] + areas - both, 1e-9))
