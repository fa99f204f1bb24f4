"""Metrics of predicted classes: top-k of scores, and mean intersection over union of segmentations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...tensors import TensorInfo
from .metric import Metric, Outputs, Scored, Truth, class_labels, divide, first_output, require_numbers
from .positions import IGNORED_POSITION, has_classes_last, require_classes, scores_over_labels

IGNORED_PIXEL = 255
"""Label of a pixel that does not count, as Pascal VOC and Cityscapes have it."""

_MOST_CLASSES = 4096


class TopK(Metric):
    """Share of labels among the `k` largest scores of the first output.

    Scores are [batch, classes] with one label per sample, or [batch, classes, positions...] or
    [batch, positions..., classes] with one per position. Of equal scores the first wins, as with argmax.
    Every position counts alike.
    """

    def __init__(self, name: str, k: int, *, classes_last: bool = False) -> None:
        self.name, self.k, self._classes_last = name, k, classes_last

    def for_inputs(self, inputs: Sequence[TensorInfo]) -> TopK:
        """See `Metric.for_inputs`: the task tells which axis holds the classes where both fit."""
        return TopK(self.name, self.k, classes_last=has_classes_last(inputs))

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """See `Metric.score`."""
        name, scores = first_output(outputs, truth.where)
        scores, labels = scores_over_labels(
            scores, class_labels(truth, self.name), truth.where, classes_last=self._classes_last
        )
        require_numbers(name, scores, truth.where, finite=False)
        counted = labels != IGNORED_POSITION if scores.ndim > 2 else np.ones(labels.shape, bool)
        classes = scores.shape[1]
        require_classes(labels[counted], classes, truth.where)
        right = (_rank(scores, np.where(counted, labels, 0)) < self.k) & counted
        samples = len(scores)
        statistics = np.stack([_per_sample(right), _per_sample(counted)], axis=1)
        return Scored(
            statistics,
            scores.argmax(axis=1),
            np.stack(
                [
                    np.bincount(labels[right], minlength=classes),
                    np.bincount(labels[counted], minlength=classes),
                    _samples_with(labels, counted, classes, samples),
                ],
                axis=1,
            ).astype(np.float64),
        )


class MeanIoU(Metric):
    """Mean over classes of intersection over union, counted over all pixels of the data.

    The first output is scores [batch, classes, height, width] or a map of classes [batch, height, width];
    labels are [batch, height, width]. Pixels labelled 255 do not count. The mean is over the classes that
    occur in the labels, which are the same for every artifact; a class that is only predicted counts
    against those it was taken for.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """See `Metric.score`."""
        name, output = first_output(outputs, truth.where)
        labels = class_labels(truth, self.name)
        require_numbers(name, output, truth.where, finite=False)
        predictions, classes = _class_map(name, output, labels, truth.where)
        counted = labels != IGNORED_PIXEL
        if classes is None:
            classes = 1 + max(int(predictions.max(initial=0)), int(labels[counted].max(initial=0)))
            if classes > _MOST_CLASSES:
                raise DataError(f"{truth.where}: class {classes - 1}; below {_MOST_CLASSES} is required")
        require_classes(labels[counted], classes, truth.where)
        samples = len(labels)
        image = np.arange(samples).reshape(-1, *[1] * (labels.ndim - 1)) * classes

        def count(cells: NDArray[np.int64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
            pixels = np.bincount((image + cells)[chosen], minlength=samples * classes)
            return pixels.reshape(samples, classes).astype(np.float64)

        statistics = np.stack(
            [
                count(predictions, counted & (predictions == labels)),
                count(predictions, counted),
                count(labels, counted),
            ],
            axis=2,
        )
        intersection, predicted, true = statistics.sum(axis=0).T
        return Scored(
            statistics,
            predictions,
            np.stack(
                [
                    intersection,
                    predicted + true - intersection,
                    (statistics[..., 2] > 0).sum(axis=0).astype(np.float64),
                ],
                axis=1,
            ),
        )

    def value(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of sums [..., classes, 3]: intersection, pixels predicted, pixels true."""
        intersection, predicted, true = sums[..., 0], sums[..., 1], sums[..., 2]
        present = true > 0
        iou = np.where(present, divide(intersection, predicted + true - intersection), 0.0)
        return divide(iou.sum(axis=-1), present.sum(axis=-1).astype(np.float64))


def _rank(scores: NDArray[Any], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many classes stand before the label's, without sorting the others."""
    at = labels[:, None]
    own = np.take_along_axis(scores, at, axis=1)
    index = np.arange(scores.shape[1]).reshape(1, -1, *[1] * (scores.ndim - 2))
    before: NDArray[np.int64] = ((scores > own) | ((scores == own) & (index < at))).sum(axis=1)
    return before


def _per_sample(values: NDArray[np.bool_]) -> NDArray[np.float64]:
    counts: NDArray[np.float64] = values.reshape(len(values), -1).sum(axis=1, dtype=np.float64)
    return counts


def _samples_with(
    labels: NDArray[np.int64], counted: NDArray[np.bool_], classes: int, samples: int
) -> NDArray[np.int64]:
    """In how many samples each class occurs."""
    sample = np.arange(samples).reshape(-1, *[1] * (labels.ndim - 1)) * classes
    return np.bincount(np.unique((sample + labels)[counted]) % classes, minlength=classes)


def _class_map(
    name: str, output: NDArray[Any], labels: NDArray[np.int64], where: str
) -> tuple[NDArray[np.int64], int | None]:
    """The predicted class of each pixel, and the number of classes where the output says it."""
    is_map = labels.ndim > 1
    if is_map and output.ndim == labels.ndim + 1 and (output.shape[0], *output.shape[2:]) == labels.shape:
        if output.shape[1] > 1:
            return output.argmax(axis=1), output.shape[1]
        output = output[:, 0]
    if is_map and output.shape == labels.shape and output.dtype.kind in "iu":
        if (output < 0).any():
            raise DataError(f"{where}: output {name!r} holds class {output.min()}; 0 or more is required")
        return output.astype(np.int64), None
    raise DataError(
        f"{where}: output {name!r} of shape {output.shape} and type {output.dtype} with labels of shape "
        f"{labels.shape}; scores [batch, classes, height, width] or whole numbers [batch, height, width], "
        "of the labels' height and width, are required",
        hint="scale outputs to the labels' size in the model, or give `metric` file.py:function",
    )
