"""F1 of classes, of token classes, and of entities.

F1 of a class is `2 tp / (predicted + true)`, counted over all samples or positions of the data. Averages are
those of scikit-learn's `f1_score`: `macro` is the mean over the classes that occur in labels or predictions,
`weighted` weighs them by the labels, `micro` counts all classes together, `binary` is that of class 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...model.preprocessing import preprocessing_of
from ...tensors import TensorInfo
from .metric import (
    Metric,
    Outputs,
    RecordMetric,
    Scored,
    Truth,
    Values,
    class_labels,
    divide,
    first_output,
    require_numbers,
)
from .positions import IGNORED_POSITION, has_classes_last, require_classes, scores_over_labels

Floats = NDArray[np.float64]


def predicted_classes(
    outputs: Outputs, truth: Truth, metric: str, *, classes_last: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return predictions and labels of one shape; the output is scores, or classes of the labels' shape.

    Raises:
        DataError: If they do not fit.
    """
    name, output = first_output(outputs, truth.where)
    labels = class_labels(truth, metric)
    require_numbers(name, output, truth.where, finite=False)
    if output.dtype.kind in "iu" and output.shape == labels.shape:
        return output.astype(np.int64), labels
    scores, labels = scores_over_labels(output, labels, truth.where, classes_last=classes_last)
    require_classes(labels[labels != IGNORED_POSITION], scores.shape[1], truth.where)
    predictions: NDArray[np.int64] = scores.argmax(axis=1)
    return predictions, labels


class F1(RecordMetric):
    """F1 over classes; positions labelled -100 do not count.

    A record is [cells, 3]: true class, predicted class and how often they met in the sample.
    """

    def __init__(self, name: str, average: str, *, classes_last: bool = False) -> None:
        self.name, self._average, self._classes_last = name, average, classes_last

    def for_inputs(self, inputs: Sequence[TensorInfo]) -> F1:
        """See `Metric.for_inputs`."""
        return F1(self.name, self._average, classes_last=has_classes_last(inputs))

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """See `Metric.score`."""
        predictions, labels = predicted_classes(outputs, truth, self.name, classes_last=self._classes_last)
        counted = labels != IGNORED_POSITION
        if self._average == "binary" and (labels[counted] > 1).any():
            raise DataError(
                f"{truth.where}: label {labels[counted].max()}; 0 or 1 is required by {self.name}",
                hint="give `metric` f1 for more than two classes",
            )
        records = []
        for sample in range(len(labels)):
            kept = counted[sample]
            pairs = np.stack([np.atleast_1d(one[sample][kept]).ravel() for one in (labels, predictions)], 1)
            cells, counts = np.unique(pairs, axis=0, return_counts=True)
            records.append(np.concatenate([cells, counts[:, None]], axis=1))
        return Scored(records=records, predictions=np.where(counted, predictions, IGNORED_POSITION))

    def values(self, scored: Sequence[Scored]) -> Values:
        """See `Metric.values`."""
        _, count = _counter(scored)
        averaged = _AVERAGES[self._average]

        def values(weights: Floats) -> Floats:
            hits, predicted, true = count(weights)
            value = averaged(hits, predicted, true)
            return np.where(true.sum(axis=1) > 0, value, np.nan)

        return values if self._average != "binary" else _of_class(1, scored)

    def classes(self, scored: Sequence[Scored]) -> dict[int, tuple[float, int]]:
        """See `Metric.classes`: the F1 of each class that occurs in the labels."""
        labels, count = _counter(scored)
        hits, predicted, true = (sums[0] for sums in count(np.ones((1, sum(one.units for one in scored)))))
        samples: dict[int, int] = {}
        for one in scored:
            for record in one.records:
                for label in np.unique(record[:, 0]):
                    samples[int(label)] = samples.get(int(label), 0) + 1
        return {
            label: (float(2 * hits[index] / (predicted[index] + true[index])), samples[label])
            for index, label in enumerate(map(int, labels))
            if true[index]
        }


Counts = tuple[Floats, Floats, Floats]


def _counter(scored: Sequence[Scored]) -> tuple[NDArray[np.int64], Callable[[Floats], Counts]]:
    """The classes, and a function from weights [resamples, units] to hits, predicted and true counts."""
    records = [record for part in scored for record in part.records]
    unit = np.repeat(np.arange(len(records)), [len(record) for record in records])
    cells = np.concatenate(records)
    classes, places = np.unique(cells[:, :2], return_inverse=True)
    true, predicted = places.reshape(-1, 2).T
    equal = true == predicted

    def count(weights: Floats) -> Counts:
        def table(where: NDArray[np.int64], chosen: NDArray[np.bool_] | slice) -> Floats:
            of = where[chosen]
            rows = [np.bincount(of, row[unit[chosen]] * cells[chosen, 2], len(classes)) for row in weights]
            return np.stack(rows)

        every = slice(None)
        return table(true, equal), table(predicted, every), table(true, every)

    return classes, count


def _of_class(label: int, scored: Sequence[Scored]) -> Values:
    classes, count = _counter(scored)
    [at] = np.nonzero(classes == label)

    def values(weights: Floats) -> Floats:
        if not at.size:  # neither true nor predicted: scikit-learn's zero_division
            return np.zeros(len(weights))
        hits, predicted, true = (sums[:, at[0]] for sums in count(weights))
        return np.nan_to_num(divide(2 * hits, predicted + true))

    return values


def _macro(hits: Floats, predicted: Floats, true: Floats) -> Floats:
    present = predicted + true > 0
    each = np.nan_to_num(divide(2 * hits, predicted + true))
    return divide(each.sum(axis=1), present.sum(axis=1).astype(np.float64))


def _micro(hits: Floats, predicted: Floats, true: Floats) -> Floats:
    return divide(2 * hits.sum(axis=1), (predicted + true).sum(axis=1))


def _weighted(hits: Floats, predicted: Floats, true: Floats) -> Floats:
    each = np.nan_to_num(divide(2 * hits, predicted + true))
    return divide((each * true).sum(axis=1), true.sum(axis=1))


_AVERAGES: Mapping[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "macro": _macro,
    "micro": _micro,
    "weighted": _weighted,
    "binary": _macro,
}


class EntityF1(Metric):
    """Micro F1 of whole entities in IOB2 tags, as seqeval's `f1_score` counts them.

    An entity is right where type, first and last position are. An `I-` tag without an entity of its type in
    front of it begins one. Positions labelled -100 are left out first.
    """

    undefined = "no entity is labelled or predicted; at least one is required"

    def __init__(self, name: str, tags: Sequence[str] = ()) -> None:
        self.name, self._tags = name, tuple(tags)

    def for_inputs(self, inputs: Sequence[TensorInfo]) -> EntityF1:
        """See `Metric.for_inputs`."""
        preprocessing = preprocessing_of(inputs)
        return EntityF1(self.name, preprocessing.classes if preprocessing else ())

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """See `Metric.score`.

        Raises:
            DataError: If the model does not name its classes, or a name is no IOB2 tag.
        """
        if not is_iob2(self._tags):
            shown = (
                f"the classes are named {', '.join(self._tags[:8])}" if self._tags else "no classes are named"
            )
            raise DataError(
                f"{self.name}: {shown}; IOB2 tags (O, B-PER, I-PER, ...) are required",
                hint="export with a `preprocessing` that names the classes, or give `metric` f1",
            )
        predictions, labels = predicted_classes(outputs, truth, self.name, classes_last=True)
        require_classes(predictions, len(self._tags), truth.where)
        rows = []
        for true, predicted in zip(labels, predictions, strict=True):
            kept = true != IGNORED_POSITION
            expected, found = (
                entities([self._tags[label] for label in one[kept]]) for one in (true, predicted)
            )
            rows.append([2.0 * len(expected & found), float(len(expected) + len(found))])
        return Scored(
            np.array(rows).reshape(-1, 2), np.where(labels != IGNORED_POSITION, predictions, IGNORED_POSITION)
        )


def is_iob2(tags: Sequence[str]) -> bool:
    """Return whether names of classes are tags of entities: O, and B- or I- with a type."""
    return bool(tags) and all(tag == "O" or tag[:2] in ("B-", "I-") for tag in tags)


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return type, first and last position of each entity."""
    found, begin, kind = set(), -1, ""
    for at, tag in enumerate([*tags, "O"]):
        continues = tag.startswith("I-") and begin >= 0 and tag[2:] == kind
        if begin >= 0 and not continues:
            found.add((kind, begin, at - 1))
            begin = -1
        if tag != "O" and not continues:
            begin, kind = at, tag[2:]
    return found
