"""A metric: statistics kept of each sample, and a value computed from their sums.

A mean over samples and a mean intersection over union are both functions of sums over samples. So outputs
are looked at batch by batch and forgotten, and a resample of the samples costs one matrix product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError

Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Truth:
    """What is known about a batch.

    Attributes:
        labels: Classes or targets, first axis the samples; None without.
        samples: How many samples it holds.
        where: Where it came from, for messages.
    """

    labels: NDArray[Any] | None
    samples: int
    where: str


@dataclass(frozen=True)
class Scored:
    """What is kept of one artifact's outputs for one batch.

    Attributes:
        statistics: [units, columns] or [units, classes, columns], float64; a unit is a sample, or a batch
            where only the batch has a value. Their sum over units has the metric's value.
        predictions: The class of each sample, position or pixel; None where nothing is predicted.
        by_class: [classes, 3], float64: numerator and denominator of each class's value, and the samples
            it occurs in; None where there are no classes.
    """

    statistics: NDArray[np.float64]
    predictions: NDArray[np.int64] | None = None
    by_class: NDArray[np.float64] | None = None


class Metric(ABC):
    """A number that says how good outputs are.

    Attributes:
        name: As the user spelled it.
        unit: What a drop is counted in: points are hundredths of a share.
        higher_is_better: Whether more is better.
        needs_labels: Whether it means nothing without labels.
    """

    name: str
    unit: Literal["points", "units"] = "points"
    higher_is_better: bool = True
    needs_labels: bool = True

    @abstractmethod
    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """Look at one batch.

        Args:
            outputs: Of the artifact, in the order and by the names of the baseline's.
            reference: The baseline's outputs for the same batch.
            truth: The batch's labels.

        Raises:
            DataError: If outputs and labels do not fit the metric or each other, or hold NaN.
        """

    def value(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the value of summed statistics [..., columns] as [...]; NaN where there is none.

        Two columns are a weighted sum and its weights; a metric of other statistics says what they mean.
        """
        return divide(sums[..., 0], sums[..., 1])

    def drop(self, baseline: Any, value: Any) -> Any:
        """Return how much worse a value is than the baseline's, in the metric's unit; below 0: better."""
        worse = baseline - value if self.higher_is_better else value - baseline
        return (100.0 if self.unit == "points" else 1.0) * worse


def divide(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quotient; NaN where the denominator is 0."""
    quotient = np.full(np.broadcast(numerator, denominator).shape, np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator != 0)
    return quotient


def first_output(outputs: Outputs, where: str) -> tuple[str, NDArray[Any]]:
    """Return the first output, which holds the scores.

    Raises:
        DataError: If there is none.
    """
    for name, array in outputs.items():
        return name, array
    raise DataError(f"{where}: there are no outputs; at least one is required")


def require_numbers(name: str, array: NDArray[Any], where: str, *, finite: bool) -> None:
    """Refuse an output of text, with NaN, or (`finite`) with infinities.

    Raises:
        DataError: Naming the output.
    """
    if array.dtype.kind not in "fiub":
        raise DataError(f"{where}: output {name!r} is of type {array.dtype}; numbers are required")
    if array.dtype.kind != "f":
        return
    if np.isnan(array).any():
        raise DataError(f"{where}: output {name!r} holds NaN; it has no accuracy", tensor=name)
    if finite and np.isinf(array).any():
        raise DataError(f"{where}: output {name!r} holds an infinity; it has no accuracy", tensor=name)


def class_labels(truth: Truth, metric: str) -> NDArray[np.int64]:
    """Return the labels as whole numbers.

    Raises:
        DataError: If there are none, or they are no classes.
    """
    if truth.labels is None:
        raise DataError(
            f"{truth.where}: has no labels; {metric} needs them",
            hint="yield (inputs, labels), or put `labels` beside the arrays",
        )
    labels = np.asarray(truth.labels)
    whole = labels.dtype.kind in "iub"
    if labels.dtype.kind == "f":
        whole = bool(np.isfinite(labels).all() and (labels == np.floor(labels)).all())
    if not whole:
        raise DataError(f"{truth.where}: labels of type {labels.dtype}; class indices are required")
    return labels.astype(np.int64)
