"""A metric: what is kept of each sample, and a value computed from it for any weights of the samples.

Outputs are looked at batch by batch and forgotten. There are two kinds.

- Functions of sums over samples, such as a mean or a mean intersection over union, keep a few numbers of each
  sample (`Scored.statistics`). A resample of the samples costs one matrix product.
- Others, such as mean average precision or a rank correlation, keep a record of each sample
  (`Scored.records`, `RecordMetric`), and compute their value from the records and from how often each counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...tensors import TensorInfo
from ..statistics.bootstrap import RESAMPLES, weighted_sums

Outputs = Mapping[str, NDArray[Any]]

Values = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""How often each unit counts, [resamples, units], to the values [resamples]; NaN where there is none."""


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
        predictions: What is predicted of each sample, position or pixel, such as a class; None where nothing
            is predicted.
        by_class: [classes, 3], float64: numerator and denominator of each class's value, and the samples
            it occurs in, all counts, so that sums do not depend on their order; None where there are no
            classes.
        records: One per sample, in place of statistics, of metrics that are no functions of sums.
    """

    statistics: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    predictions: NDArray[Any] | None = None
    by_class: NDArray[np.float64] | None = None
    records: Sequence[Any] = ()

    @property
    def units(self) -> int:
        """What is drawn again and again: samples, or batches."""
        return len(self.records) or len(self.statistics)


class Metric(ABC):
    """A number that says how good outputs are.

    Attributes:
        name: As the user spelled it.
        unit: What a drop is counted in: points are hundredths of a share.
        higher_is_better: Whether more is better.
        needs_labels: Whether it means nothing without labels.
        resamples: How often the samples are drawn for the interval of a drop.
        undefined: Why there is no value where `value` says NaN.
        note: What was taken for granted, for people: which form the outputs have, which metric was chosen.
    """

    name: str
    unit: Literal["points", "units"] = "points"
    higher_is_better: bool = True
    needs_labels: bool = True
    resamples: int = RESAMPLES
    undefined: str = "no label counts; at least one is required"

    note: str = ""

    def for_inputs(self, inputs: Sequence[TensorInfo]) -> Metric:
        """Return the metric of a model with these inputs, whose preprocessing names task and classes."""
        return self

    def resolved(self, outputs: Outputs, truth: Truth) -> Metric:
        """Return the metric for the baseline's outputs of the first batch; another only for `auto`.

        Raises:
            DataError: If outputs and labels tell no metric.
        """
        return self

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

    def values(self, scored: Sequence[Scored]) -> Values:
        """Return the values of everything that was scored, for any weights of its units."""
        statistics = joined(scored)
        return lambda weights: self.value(weighted_sums(weights, statistics))

    def classes(self, scored: Sequence[Scored]) -> dict[int, tuple[float, int]]:
        """Return value and samples of each class, where `Scored.by_class` does not say them."""
        return {}

    def drop(self, baseline: Any, value: Any) -> Any:
        """Return how much worse a value is than the baseline's, in the metric's unit; below 0: better."""
        worse = baseline - value if self.higher_is_better else value - baseline
        return (100.0 if self.unit == "points" else 1.0) * worse


class RecordMetric(Metric):
    """A metric that is no function of sums over samples: `values` computes it from the samples' records."""

    @abstractmethod
    def values(self, scored: Sequence[Scored]) -> Values:
        """See `Metric.values`."""

    def arrays_of(self, record: Any) -> tuple[NDArray[Any], ...]:
        """Return a record as arrays, each with a first axis; as many, and of equal other axes, every time."""
        return (record,)

    def record_of(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Return the record of these arrays."""
        [record] = arrays
        return record

    def value(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Records have no sums."""
        raise NotImplementedError(f"{self.name} is computed from records")


def joined(scored: Sequence[Scored]) -> NDArray[np.float64]:
    """Return the statistics of all units; classes that a batch had not met are zero there."""
    widest = max(part.statistics.shape[1] for part in scored)
    padded = []
    for part in scored:
        missing = widest - part.statistics.shape[1]
        axes = ((0, 0), (0, missing), *[(0, 0)] * (part.statistics.ndim - 2))
        padded.append(np.pad(part.statistics, axes) if missing else part.statistics)
    return np.concatenate(padded)


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
