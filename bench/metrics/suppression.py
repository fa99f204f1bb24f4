"""Suppress detections that overlap a better one of their class, as YOLO's validation does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .coco import iou

SMALLEST_SCORE = 1e-3
LARGEST_OVERLAP = 0.7
MOST_CANDIDATES = 1000
"""Ultralytics' values for validation but the last, which bounds the time of an image."""


def suppressed(
    boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[np.int64], overlap: float = LARGEST_OVERLAP
) -> NDArray[np.int64]:
    """Return the indices that stay, by falling score.

    Args:
        boxes: [n, 4]: x1, y1, x2, y2.
        scores: [n].
        classes: [n]; boxes of different classes do not suppress each other.
        overlap: Intersection over union above which the box of the lower score goes.
    """
    order = np.argsort(-scores, kind="stable")[:MOST_CANDIDATES]
    placed = np.concatenate([boxes[order, :2], boxes[order, 2:] - boxes[order, :2]], axis=1)
    stays = np.ones(len(order), bool)
    crowd = np.zeros(len(order), bool)
    for index in range(len(order)):
        if stays[index]:
            behind = np.arange(index + 1, len(order))
            behind = behind[stays[behind] & (classes[order[behind]] == classes[order[index]])]
            shared = iou(placed[index : index + 1], placed[behind], crowd[behind])[0]
            stays[behind[shared > overlap]] = False
    return order[stays]
