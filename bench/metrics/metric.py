"""Base class of metrics, and checks of their labels and outputs.

A metric scores outputs into a table with one or more rows per sample. Its value depends on the table and a
weight per sample: 1 for the value itself; 0, 1, 2, ... for a resample.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...data.readers import require_package
from ...errors import DataError
from ...model.sources.preprocessing import Preprocessing, Task, preprocessing_of
from ...spec.tensors import TensorInfo
from .bounds import RESAMPLES

Floats = NDArray[np.float64]
Outputs = Mapping[str, NDArray[Any]]
Values = Callable[[Floats], Floats]
"""Map the weight of each unit, [resamples, units], to the values [resamples]; NaN if undefined."""

IGNORED_POSITION = -100  # label of a position that does not count: PyTorch's default `ignore_index`
_CLASSES_LAST: tuple[Task, ...] = ("token-classification", "language-model", "speech-recognition")


class Truth(NamedTuple):
    """Labels of a batch (classes or targets, samples on the first axis), and their origin for messages."""

    labels: NDArray[Any] | None
    samples: int
    where: str


@dataclass(frozen=True)
class Scored:
    """Scores of one artifact's outputs.

    Attributes:
        table: [rows, columns]; each metric defines its columns.
        counts: Rows per unit (a sample, or a batch if only the batch has a value); None for one each.
        predictions: Classes or texts by sample, position or pixel, for a comparison with the baseline.
    """

    table: NDArray[Any]
    counts: NDArray[np.int64] | None = None
    predictions: NDArray[Any] | None = None

    @property
    def units(self) -> int:
        return len(self.table) if self.counts is None else len(self.counts)

    @property
    def unit_of_row(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(self.units), 1 if self.counts is None else self.counts)

    def sums(self, columns: slice) -> Floats:
        """Return the sums of columns over the rows of each unit, [units, columns]."""
        if self.counts is None:
            return self.table[:, columns]
        sums = np.zeros((self.units, self.table[:0, columns].shape[1]))
        np.add.at(sums, self.unit_of_row, self.table[:, columns])
        return sums


def join_scores(parts: Sequence[Scored]) -> Scored:
    counts = [np.bincount(part.unit_of_row, minlength=part.units) for part in parts]
    return Scored(np.concatenate([part.table for part in parts]), np.concatenate(counts))


class Metric(ABC):
    """A measure of how good outputs are.

    Attributes:
        unit: Unit of a drop; points are hundredths of a share.
        is_mean: Whether its value is a mean over units; other metrics override `values`.
        resamples: Number of resamples for the interval of a drop.
        undefined: Reason for a NaN from `values`.
        note: Assumption to report: the outputs' form, or the metric that `auto` chose.
        inputs: The model's inputs; their preprocessing names task, classes and vocabulary.
        package: Module and name of the required package; empty if none.
    """

    name: str
    unit: Literal["points", "units"] = "points"
    higher_is_better: bool = True
    is_mean: bool = True
    needs_labels: bool = True
    resamples: int = RESAMPLES
    undefined: str = "no label counts; at least one is required"
    note: str = ""
    inputs: Sequence[TensorInfo] = ()
    preprocessing: Preprocessing | None = None
    package: tuple[str, str] | tuple[()] = ()

    def __init__(self, name: str) -> None:
        if self.package:
            require_package(*self.package, f"computes {name}", extra="metrics")
        self.name = name

    def for_inputs(self, inputs: Sequence[TensorInfo]) -> Metric:
        metric = copy.copy(self)
        metric.inputs, metric.preprocessing = tuple(inputs), preprocessing_of(inputs)
        return metric

    @property
    def classes_last(self) -> bool:
        """Whether the task's scores are [batch, positions, classes], as in transformers."""
        return self.preprocessing is not None and self.preprocessing.task in _CLASSES_LAST

    def resolve(self, outputs: Outputs, truth: Truth) -> Metric:
        """Return the metric for the baseline's outputs of the first batch: itself, except for `auto`."""
        return self

    @abstractmethod
    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """Score one batch; `outputs` has the names of `reference`, the baseline's outputs."""

    def values(self, scored: Scored) -> Values:
        """Return the metric's value of all scores, as a function of the units' weights."""
        sums = self.unit_sums(scored)
        assert sums is not None, "a metric without a mean overrides `values`"
        return lambda weights: self.finished(divide(*(weights @ sums).T))

    def unit_sums(self, scored: Scored) -> Floats | None:
        """Return sum and weight of each unit, [units, 2], by default the last columns; None for non-means."""
        return scored.sums(slice(-2, None)) if self.is_mean else None

    def finished(self, values: Floats) -> Floats:
        return values

    def classes(self, scored: Scored) -> dict[int, tuple[float, int]]:
        """Return value and number of samples of each labelled class; empty without classes."""
        return {}

    def without_model(self, scored: Scored) -> float | None:
        """Return the value of the best answer that ignores the input; None if it is unknown."""
        return None

    def drop(self, baseline: Any, value: Any) -> Any:
        """Return how much worse than the baseline a value is, in the metric's unit; negative if better."""
        worse = baseline - value if self.higher_is_better else value - baseline
        return (100.0 if self.unit == "points" else 1.0) * worse


def divide(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quotient; NaN if the denominator is 0."""
    quotient = np.full(np.broadcast(numerator, denominator).shape, np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator != 0)
    return quotient


def first_output(outputs: Outputs, where: str) -> tuple[str, NDArray[Any]]:
    for name, array in outputs.items():
        return name, array
    raise DataError(f"{where}: there are no outputs; at least one is required")


def require_numbers(name: str, array: NDArray[Any], where: str, *, finite: bool) -> None:
    """Raise DataError for an output of text, with NaN, or (`finite`) with infinities."""
    if array.dtype.kind not in "fiub":
        raise DataError(f"{where}: output {name!r} is of type {array.dtype}; numbers are required")
    if array.dtype.kind != "f":
        return
    if np.isnan(array).any():
        raise DataError(f"{where}: output {name!r} holds NaN; it has no accuracy", tensor=name)
    if finite and np.isinf(array).any():
        raise DataError(f"{where}: output {name!r} holds an infinity; it has no accuracy", tensor=name)


LABELS_HINT = "yield (inputs, labels), or put `labels` beside the arrays where no input has that name"


def labels_of(truth: Truth, metric: str, required: str = "them") -> NDArray[Any]:
    if truth.labels is None:
        raise DataError(
            f"{truth.where}: has no labels; {metric} needs {required}",
            hint=LABELS_HINT,
        )
    return np.asarray(truth.labels)


def class_labels(truth: Truth, metric: str) -> NDArray[np.int64]:
    labels = labels_of(truth, metric)
    if not are_classes(labels):
        raise DataError(f"{truth.where}: labels of type {labels.dtype}; class indices are required")
    return labels.astype(np.int64)


def are_classes(labels: NDArray[Any]) -> bool:
    if labels.dtype.kind != "f":
        return labels.dtype.kind in "iub"
    return bool(np.isfinite(labels).all() and (labels == np.floor(labels)).all())


def scores_over_labels(
    scores: NDArray[Any], labels: NDArray[np.int64], where: str, *, classes_last: bool = False
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return scores as [batch, classes, positions...], and labels as [batch, positions...].

    Scores are [batch, classes], [batch, classes, positions...] or [batch, positions..., classes];
    `classes_last` decides if two forms fit. A trailing axis of extent 1 is removed from labels.
    """
    if scores.ndim >= 2:
        shapes = {False: (scores.shape[0], *scores.shape[2:]), True: scores.shape[:-1]}
        for is_last in (classes_last, not classes_last):
            if labels.shape in ((shape := shapes[is_last]), (*shape, 1)):
                return np.moveaxis(scores, -1, 1) if is_last else scores, labels.reshape(shape)
    raise DataError(
        f"{where}: an output of shape {scores.shape} with labels of shape {labels.shape}; [batch, classes] "
        "and one label per sample, or [batch, classes, positions...] or [batch, positions..., classes] and "
        "one per position, are required",
        hint="give `metric` file.py:function for outputs of another kind",
    )


def require_classes(labels: NDArray[np.int64], classes: int, where: str) -> None:
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        raise DataError(f"{where}: label {wrong[0]}; 0 to {classes - 1} is required for {classes} classes")
