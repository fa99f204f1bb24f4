"""Detections matched with boxes, and average precision, as COCO's evaluation has them (its `cocoeval.py`).

An image is matched once. Average precision for any weights of the images is then computed from the matches
alone, so an interval over resampled images repeats no matching.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .metric import divide

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)
MOST_DETECTIONS = 100
"""Of a class in an image; those of the highest scores count."""

AREAS: dict[str, tuple[float, float]] = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""Ranges of a box's area in square pixels; boxes outside are ignored."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Detections:
    """What a detector found in an image.

    Attributes:
        boxes: [n, 4]: x1, y1, x2, y2 in pixels of the model's input.
        scores: [n].
        classes: [n].
    """

    boxes: Floats
    scores: Floats
    classes: NDArray[np.int64]


@dataclass(frozen=True)
class MatchedImage:
    """The detections of an image, each class by falling score, and what they were matched with.

    Attributes:
        classes, scores: Of the detections, [n].
        matched, ignored: At each threshold of IoU, [n, thresholds]: whether a box was found, and whether the
            detection counts neither as right nor as wrong.
        positives: Class of each labelled box that is to be found.
    """

    classes: NDArray[np.int64]
    scores: Floats
    matched: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    positives: NDArray[np.int64]


def match_image(
    found: Detections, boxes: Floats, thresholds: Floats, area: tuple[float, float] = AREAS["all"]
) -> MatchedImage:
    """Match detections with the labelled boxes of an image.

    Args:
        found: The detections.
        boxes: [n, 5 to 7]: class, x1, y1, x2, y2, and where given whether it is a crowd, and its area.
        thresholds: Of IoU.
        area: Smallest and largest area that counts.
    """
    crowd = boxes[:, 5] > 0 if boxes.shape[1] > 5 else np.zeros(len(boxes), bool)
    sizes = boxes[:, 6] if boxes.shape[1] > 6 else _area(_corner_and_size(boxes[:, 1:5]))
    ignored = crowd | (sizes < area[0]) | (sizes > area[1])
    labels = boxes[:, 0].astype(np.int64)
    order = np.lexsort((-found.scores, found.classes))
    classes = found.classes[order]
    kept = np.arange(len(order)) - np.searchsorted(classes, classes) < MOST_DETECTIONS
    order, classes = order[kept], classes[kept]
    placed = _corner_and_size(found.boxes[order])
    matched = np.zeros((len(order), len(thresholds)), bool)
    skipped = matched.copy()
    for label in np.unique(labels):
        mine = slice(*np.searchsorted(classes, [label, label + 1]))
        theirs = np.flatnonzero(labels == label)
        theirs = theirs[np.argsort(ignored[theirs], kind="stable")]  # those to be found stand first
        overlaps = iou(placed[mine], _corner_and_size(boxes[theirs, 1:5]), crowd[theirs])
        matched[mine], skipped[mine] = _match(overlaps, ignored[theirs], crowd[theirs], thresholds)
    size = _area(placed)
    outside = (size < area[0]) | (size > area[1])
    skipped |= ~matched & outside[:, None]
    return MatchedImage(classes, found.scores[order], matched, skipped, labels[~ignored])


def iou(found: Floats, boxes: Floats, crowd: NDArray[np.bool_]) -> Floats:
    """Return intersection over union of boxes (x, y, width, height), [found, boxes].

    Of a crowd it is the intersection over the area of what was found.
    """
    low = np.maximum(found[:, None, :2], boxes[None, :, :2])
    high = np.minimum((found[:, :2] + found[:, 2:])[:, None, :], (boxes[:, :2] + boxes[:, 2:])[None, :, :])
    sides = np.maximum(high - low, 0.0)
    common = sides[..., 0] * sides[..., 1]
    own = _area(found)[:, None]
    whole = np.where(crowd[None, :], own, own + _area(boxes)[None, :] - common)
    return np.where(common > 0, divide(common, whole), 0.0)


def _match(
    overlaps: Floats, ignored: NDArray[np.bool_], crowd: NDArray[np.bool_], thresholds: Floats
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Detections take, by falling score, the free box of the largest overlap; of equal ones the last.

    A box that is to be found goes before one that is ignored; a crowd is never taken up.
    """
    detections, boxes = overlaps.shape
    matched = np.zeros((detections, len(thresholds)), bool)
    skipped = np.zeros((detections, len(thresholds)), bool)
    if not boxes:
        return matched, skipped
    least = np.minimum(thresholds, 1.0 - 1e-10)[:, None]
    free = np.ones((len(thresholds), boxes), bool)
    every = np.arange(len(thresholds))
    for index, overlap in enumerate(overlaps):
        if overlap.max() < least[0, 0]:
            continue
        fits = (overlap >= least) & (free | crowd)
        regular = fits & ~ignored
        fits = np.where(regular.any(axis=1, keepdims=True), regular, fits)
        value = np.where(fits, overlap, -1.0)
        best = boxes - 1 - value[:, ::-1].argmax(axis=1)
        matched[index] = value[every, best] >= 0.0
        skipped[index] = matched[index] & ignored[best]
        free[every[matched[index]], best[matched[index]]] = False
    return matched, skipped


class AveragePrecision:
    """Average precision of each class for any weights of the images: the mean over the thresholds of IoU."""

    def __init__(self, images: Sequence[MatchedImage]) -> None:
        positives = [image.positives for image in images]
        self.classes = np.unique(np.concatenate([*positives, np.empty(0, np.int64)]))
        self._positives = np.array(
            [[np.count_nonzero(one == label) for label in self.classes] for one in positives], np.float64
        ).reshape(len(images), len(self.classes))
        owner = np.repeat(np.arange(len(images)), [len(image.classes) for image in images])
        labels, scores, matched, ignored = (
            np.concatenate([getattr(image, name) for image in images])
            for name in ("classes", "scores", "matched", "ignored")
        )
        self._of_class = []
        for label in self.classes:
            chosen = np.flatnonzero(labels == label)
            chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
            self._of_class.append((owner[chosen], matched[chosen], ignored[chosen]))

    @property
    def samples(self) -> NDArray[np.int64]:
        """In how many images each class is to be found."""
        counts: NDArray[np.int64] = np.count_nonzero(self._positives, axis=0)
        return counts

    def __call__(self, weights: Floats) -> Floats:
        """[resamples, images] to [resamples, classes]; NaN where nothing of a class is to be found."""
        positives = weights @ self._positives
        values = np.full(positives.shape, np.nan)
        # Counts are whole numbers below 2**24, so float32 holds their sums exactly, in half the memory.
        by_image = np.ascontiguousarray(weights.T, np.float32)
        for index, (owner, matched, ignored) in enumerate(self._of_class):
            there = positives[:, index] > 0
            found = _average(by_image[owner], matched, ignored, np.where(there, positives[:, index], 1.0))
            values[there, index] = found[there]
        return values


def _average(
    weights: NDArray[np.float32], matched: NDArray[np.bool_], ignored: NDArray[np.bool_], positives: Floats
) -> Floats:
    """The mean over thresholds of the precision at 101 recalls; weights are [detections, resamples].

    Precision changes its maximum and recall its value at right detections alone, so only those are looked at.
    """
    right = matched & ~ignored
    last = np.flatnonzero(right.any(axis=1)).max(initial=-1) + 1
    weights, right, ignored = weights[:last], right[:last], ignored[:last]
    whole = None if ignored.any() else np.cumsum(weights, axis=0)
    total = np.zeros(len(positives))
    for column in range(right.shape[1]):
        at = np.flatnonzero(right[:, column])
        if not at.size:
            continue
        counted = whole if whole is not None else np.cumsum(weights * ~ignored[:, column, None], axis=0)
        hits = np.cumsum(weights[at], axis=0, dtype=np.float64)
        precision = hits / (counted[at].astype(np.float64) + np.spacing(1))
        best_behind = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
        reached = np.searchsorted(RECALL_THRESHOLDS, hits / positives, side="right")
        total += (best_behind * np.diff(reached, axis=0, prepend=0)).sum(axis=0)
    average: Floats = total / (len(RECALL_THRESHOLDS) * matched.shape[1])
    return average


def _corner_and_size(boxes: Floats) -> Floats:
    """x1, y1, x2, y2 to x, y, width, height."""
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def _area(boxes: Floats) -> Floats:
    area: Floats = boxes[:, 2] * boxes[:, 3]
    return area
