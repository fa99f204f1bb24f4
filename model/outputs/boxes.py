"""Compare the detections of two models: how many boxes of one the other finds, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .judgement import enough_agreement

Outputs = Mapping[str, NDArray[Any]]
Detections = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]
"""Of one image: boxes [n, 4] (x1, y1, x2, y2 in pixels of the model's input), scores [n], classes [n]."""

SAME_BOX = 0.5
"""Least intersection over union of two matching boxes."""


@dataclass
class BoxAgreement:
    """Share of boxes that two detectors both find, summed over batches.

    Boxes match if they have the same class and an intersection over union of at least `SAME_BOX`. Boxes with
    higher scores are matched first. Boxes without a positive score are padding.

    `names` are the outputs: boxes, labels and scores; empty if a batch lacks them.
    """

    names: tuple[str, ...] = ()
    same: int = 0  # matched boxes of both sides
    rows: int = 0  # all boxes of both sides
    is_known: bool = True

    def add(self, reference: Outputs, outputs: Outputs) -> None:
        """Add a batch of outputs with equal names."""
        corners = next((a for a in reference.values() if a.dtype.kind == "f" and a.shape[-1:] == (4,)), None)
        samples = len(corners) if corners is not None and corners.ndim == 3 else 1
        sides = [boxes_labels_scores(side, samples) for side in (reference, outputs)] if self.is_known else []
        (first, second) = sides or (None, None)
        if first is None or second is None or first[0] != second[0]:
            self.is_known, self.names = False, ()
            return
        self.names = first[0]
        for reference_image, output_image in zip(first[1], second[1], strict=True):
            a, b = ([column[side[1] > 0.0] for column in side] for side in (reference_image, output_image))
            self.same, self.rows = self.same + 2 * _matches(a, b), self.rows + len(a[0]) + len(b[0])

    @property
    def share(self) -> float | None:
        """Share of matched boxes; None without boxes."""
        return self.same / self.rows if self.rows else None

    def verdict(self) -> tuple[bool, str]:
        """Return whether the boxes agree, and the requirement as text."""
        enough, words = enough_agreement(self.same, self.rows)
        words = words.replace("same argmax", "a partner").replace("rows", "boxes")
        return enough, f"boxes: {words}" + ("" if words.endswith(")") else f"; {self.same} of {self.rows}")


def _matches(first: Sequence[NDArray[Any]], second: Sequence[NDArray[Any]]) -> int:
    (boxes, scores, classes), (other_boxes, _, other_classes) = first, second
    if not len(boxes) or not len(other_boxes):
        return 0
    a, b = boxes.astype(np.float64)[:, None], other_boxes.astype(np.float64)[None]
    sides = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0.0, None)
    shared, areas = sides.prod(-1), [(box[..., 2:] - box[..., :2]).prod(-1) for box in (a, b)]
    unions = np.maximum(areas[0] + areas[1] - shared, np.finfo(np.float64).tiny)
    overlaps = shared / unions * (classes[:, None] == other_classes[None])
    count = 0
    for index in np.argsort(-scores, kind="stable"):
        best = int(overlaps[index].argmax())
        if overlaps[index, best] >= SAME_BOX:
            count += 1
            overlaps[:, best] = 0.0
    return count


def boxes_labels_scores(
    outputs: Outputs, samples: int
) -> tuple[tuple[str, str, str], list[Detections]] | None:
    """Return the names of a detector's outputs and the detections of each image; None for other outputs.

    The outputs are boxes [n, 4], labels [n] and scores [n] of one image, or the same with a leading axis of
    images. An integer output with one value per image is the number of its valid boxes.
    """
    for boxes, array in outputs.items():
        shape = array.shape[:-1]
        if array.dtype.kind != "f" or array.shape[-1:] != (4,) or shape[:-1] not in ((), (samples,)):
            continue
        if len(shape) == 1 and samples != 1:
            continue
        names = [name for name, other in outputs.items() if name != boxes and other.shape == shape]
        whole = {name for name in outputs if outputs[name].dtype.kind in "iu"}
        labels = next((n for n in names if n in whole or "label" in n.lower() or "class" in n.lower()), None)
        scores = next((n for n in names if n != labels and outputs[n].dtype.kind == "f"), None)
        if labels is None or scores is None:
            continue
        counts = (outputs[n].ravel() for n in whole - {labels} if outputs[n].size == samples)
        ends = next(counts, [shape[-1]] * samples)
        columns = [outputs[name] for name in (boxes, scores, labels)]
        arrays = [array.reshape(samples, *array.shape[len(shape) - 1 :]) for array in columns]
        images = [(b[:end], s[:end], label[:end]) for b, s, label, end in zip(*arrays, ends, strict=True)]
        return (boxes, labels, scores), images
    return None
