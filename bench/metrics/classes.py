"""Metrics of predicted classes: top-k, mean intersection over union, F1, and seqeval's F1 of entities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .metric import (
    IGNORED_POSITION,
    Floats,
    Metric,
    Outputs,
    Scored,
    Truth,
    Values,
    divide,
    first_output,
    require_classes,
    require_numbers,
    scores_over_labels,
)

IGNORED_PIXEL = 255  # label of a pixel that does not count, as in Pascal VOC and Cityscapes
_MOST_CLASSES = 4096

Counted = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""Classes of positions [samples, positions...], and a mask of the positions that count."""


def _class_counts(
    classes: int, *columns: Counted, predictions: NDArray[np.int64], stored: Any = None
) -> Scored:
    """Return rows of a class and its count in each of `columns`, for the classes present in each sample."""
    samples = len(predictions)
    first = np.arange(samples).reshape(-1, *[1] * (predictions.ndim - 1)) * classes
    counts = np.stack(
        [np.bincount((first + cells)[counted], minlength=samples * classes) for cells, counted in columns],
        axis=1,
    )
    cells = np.flatnonzero(counts.any(axis=1))
    table = np.concatenate([cells[:, None] % classes, counts[cells]], axis=1).astype(np.float64)
    stored = predictions if stored is None else stored
    return Scored(table, np.bincount(cells // classes, minlength=samples), stored)


class TopK(Metric):
    """Share of labels among the `k` largest scores of the first output; all positions have equal weight.

    Scores are [batch, classes] with one label per sample, or [batch, classes, positions...] or
    [batch, positions..., classes] with one per position. The first of equal scores wins, as with argmax.
    Columns of the table, one row per class of a sample: class, labels among the largest scores, labels.
    """

    def __init__(self, name: str, k: int) -> None:
        super().__init__(name)
        self.k = k

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        name, scores = first_output(outputs, truth.where)
        scores, labels = scores_over_labels(
            scores, self.class_labels(truth, scores), truth.where, classes_last=self.classes_last
        )
        require_numbers(name, scores, truth.where, finite=False)
        counted = labels != IGNORED_POSITION if scores.ndim > 2 else np.ones(labels.shape, bool)
        require_classes(labels[counted], scores.shape[1], truth.where)
        at = np.where(counted, labels, 0)[:, None]
        score = np.take_along_axis(scores, at, axis=1)
        index = np.arange(scores.shape[1]).reshape(1, -1, *[1] * (scores.ndim - 2))
        before = (scores > score) | ((scores == score) & (index < at))
        right = (before.sum(axis=1) < self.k) & counted  # avoids a sort
        predictions = scores.argmax(axis=1)
        return _class_counts(scores.shape[1], (labels, right), (labels, counted), predictions=predictions)

    def classes(self, scored: Scored) -> dict[int, tuple[float, int]]:
        return _values_of_classes(scored, divide)

    def without_model(self, scored: Scored) -> float | None:
        """Return the share of the `k` most frequent labels; None with `k` labels or fewer."""
        labels = np.bincount(scored.table[:, 0].astype(np.int64), weights=scored.table[:, -1])
        if np.count_nonzero(labels) <= self.k:
            return None
        return float(np.sort(labels)[-self.k :].sum() / labels.sum())


def _values_of_classes(scored: Scored, each: Callable[..., Floats]) -> dict[int, tuple[float, int]]:
    """Return value and number of samples of each labelled class; the last column counts labels."""
    table, values = scored.table, {}
    for label in np.unique(table[table[:, -1] > 0, 0]):
        rows = table[table[:, 0] == label, 1:]
        value = float(each(*rows.sum(axis=0)[:, None])[0])
        values[int(label)] = (value, int((rows[:, -1] > 0).sum()))
    return values


class _ClassMetric(Metric):
    """A mean over classes of a value of counts over the data. Columns: class, right, predicted, labelled."""

    is_mean = False

    def each(self, right: Floats, predicted: Floats, true: Floats) -> Floats:
        raise NotImplementedError

    def average(self, right: Floats, predicted: Floats, true: Floats, labels: Floats) -> Floats:
        raise NotImplementedError

    def values(self, scored: Scored) -> Values:
        labels, places = np.unique(scored.table[:, 0], return_inverse=True)
        unit = scored.unit_of_row

        def values(weights: Floats) -> Floats:
            right, predicted, true = (
                np.array([np.bincount(places, row[unit] * column, len(labels)) for row in weights], float)
                for column in scored.table[:, 1:].T
            )
            return np.where(true.any(axis=1), self.average(right, predicted, true, labels), np.nan)

        return values

    def classes(self, scored: Scored) -> dict[int, tuple[float, int]]:
        return _values_of_classes(scored, self.each)


class MeanIoU(_ClassMetric):
    """Mean over classes of intersection over union, counted over all pixels of the data.

    The first output is scores [batch, classes, height, width] or a map of classes [batch, height, width];
    labels are [batch, height, width]. Pixels labelled 255 do not count. The mean is over the classes in the
    labels, equal for every artifact; a class that is only predicted lowers the value of the labelled one.
    """

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        name, output = first_output(outputs, truth.where)
        labels = self.class_labels(truth, output)
        require_numbers(name, output, truth.where, finite=False)
        predictions, classes = _class_map(name, output, labels, truth.where)
        counted = labels != IGNORED_PIXEL
        if classes is None:
            classes = 1 + max(int(predictions.max(initial=0)), int(labels[counted].max(initial=0)))
            if classes > _MOST_CLASSES:
                raise DataError(f"{truth.where}: class {classes - 1}; below {_MOST_CLASSES} is required")
        require_classes(labels[counted], classes, truth.where)
        right = counted & (predictions == labels)
        columns = ((predictions, right), (predictions, counted), (labels, counted))
        return _class_counts(classes, *columns, predictions=predictions)

    def each(self, right: Floats, predicted: Floats, true: Floats) -> Floats:
        return divide(right, predicted + true - right)

    def average(self, right: Floats, predicted: Floats, true: Floats, labels: Floats) -> Floats:
        each = np.where(true > 0, self.each(right, predicted, true), 0.0)
        return divide(each.sum(axis=1), (true > 0).sum(axis=1).astype(np.float64))


def _class_map(
    name: str, output: NDArray[Any], labels: NDArray[np.int64], where: str
) -> tuple[NDArray[np.int64], int | None]:
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


def predicted_classes(
    outputs: Outputs, truth: Truth, metric: Metric, *, classes_last: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return predictions and labels of one shape, from scores or from classes in the labels' shape."""
    name, output = first_output(outputs, truth.where)
    labels = metric.class_labels(truth, output)
    require_numbers(name, output, truth.where, finite=False)
    if output.dtype.kind in "iub" and output.squeeze().shape == labels.squeeze().shape:
        return output.reshape(labels.shape).astype(np.int64), labels
    scores, labels = scores_over_labels(output, labels, truth.where, classes_last=classes_last)
    require_classes(labels[labels != IGNORED_POSITION], scores.shape[1], truth.where)
    return np.asarray(scores.argmax(axis=1)), labels


class F1(_ClassMetric):
    """F1 over classes, `2 right / (predicted + labelled)`; positions labelled -100 do not count.

    Averages are those of scikit-learn's `f1_score`: `macro` is the mean over the classes that occur in labels
    or predictions, `weighted` weights them by their labels, `micro` sums all counts, `binary` is of class 1.
    """

    def __init__(self, name: str, average: str) -> None:
        super().__init__(name)
        self._average = average

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        predictions, labels = predicted_classes(outputs, truth, self, classes_last=self.classes_last)
        counted = labels != IGNORED_POSITION
        if self._average == "binary" and (labels[counted] > 1).any():
            raise DataError(
                f"{truth.where}: label {labels[counted].max()}; 0 or 1 is required by {self.name}",
                hint="give `metric` f1 for more than two classes",
            )
        right = counted & (predictions == labels)
        columns = ((labels, right), (predictions, counted), (labels, counted))
        classes = 1 + max(int(labels.max(initial=0)), int(predictions.max(initial=0)))
        stored = np.where(counted, predictions, IGNORED_POSITION)
        return _class_counts(classes, *columns, predictions=predictions, stored=stored)

    def each(self, right: Floats, predicted: Floats, true: Floats) -> Floats:
        return divide(2.0 * right, predicted + true)

    def average(self, right: Floats, predicted: Floats, true: Floats, labels: Floats) -> Floats:
        if self._average == "micro":
            return self.each(right.sum(axis=1), predicted.sum(axis=1), true.sum(axis=1))
        weights = {"weighted": true, "binary": np.where(labels == 1, 1.0, 0.0) * np.ones_like(true)}
        counted = weights.get(self._average, (predicted + true > 0).astype(np.float64))
        each = np.nan_to_num(self.each(right, predicted, true))
        return np.nan_to_num(divide((each * counted).sum(axis=1), counted.sum(axis=1)))


class EntityF1(Metric):
    """Micro F1 of whole entities in IOB2 tags, as in seqeval's `f1_score`.

    Positions labelled -100 are left out first. Columns: twice the correct entities; labelled plus predicted.
    """

    package = ("seqeval", "seqeval")
    undefined = "no entity is labelled or predicted; at least one is required"

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        from seqeval.metrics.sequence_labeling import get_entities

        tags = np.array(self.preprocessing.classes if self.preprocessing else (), dtype=str)
        if not is_iob2(tags.tolist()):
            names = f"the classes are named {', '.join(tags[:8])}" if len(tags) else "no classes are named"
            raise DataError(
                f"{self.name}: {names}; IOB2 tags (O, B-PER, I-PER, ...) are required",
                hint="export with a `preprocessing` that names the classes, or give `metric` f1",
            )
        predictions, labels = predicted_classes(outputs, truth, self, classes_last=True)
        require_classes(predictions, len(tags), truth.where)
        counted, table = labels != IGNORED_POSITION, []
        for counts, *sides in zip(counted, labels, predictions, strict=True):
            true, predicted = (set(get_entities(tags[side[counts]].tolist())) for side in sides)
            table.append([2.0 * len(true & predicted), float(len(true) + len(predicted))])
        stored = np.where(counted, predictions, IGNORED_POSITION)
        return Scored(np.array(table).reshape(-1, 2), None, stored)


def is_iob2(tags: Sequence[str]) -> bool:
    """Return whether all class names are entity tags: O, or B- or I- with a type."""
    return bool(tags) and all(tag == "O" or tag[:2] in ("B-", "I-") for tag in tags)
