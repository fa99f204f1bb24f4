"""Metrics of distributions over classes or a vocabulary: perplexity, and the divergence from the baseline.

Outputs are logits. An output whose baseline is a distribution (no value below 0, sums of 1) is taken as
probabilities, of which those below 1e-12 count as 1e-12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...tensors import TensorInfo
from .metric import (
    IGNORED_POSITION,
    Floats,
    Metric,
    Outputs,
    Scored,
    Truth,
    class_labels,
    first_output,
    has_classes_last,
    require_classes,
    require_numbers,
)  # fmt: skip

_SMALLEST_PROBABILITY = 1e-12
_SUM_TOLERANCE = 1e-3


class Perplexity(Metric):
    """`exp` of the mean negative log-likelihood of the labels, in nats, over all positions of the data.

    The first output is logits [batch, length, vocabulary]; labels are [batch, length], -100 where a position
    does not count. A causal model's logits at a position are for the label at the next one (as transformers
    shifts them); those of a masked model for the label at the same.
    """

    unit, higher_is_better = "units", False

    def __init__(self, name: str, *, shift: bool = True) -> None:
        self.name, self._shift = name, shift

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        name, logits = first_output(outputs, truth.where)
        labels = class_labels(truth, self.name)
        if logits.ndim != 3 or labels.shape != logits.shape[:2]:
            raise DataError(
                f"{truth.where}: output {name!r} of shape {logits.shape} with labels of shape "
                f"{labels.shape}; logits [batch, length, vocabulary] and labels [batch, length] are required",
                hint="give `metric` file.py:function for outputs of another form",
            )
        require_numbers(name, logits, truth.where, finite=False)
        if self._shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        counted = labels != IGNORED_POSITION
        require_classes(labels[counted], logits.shape[2], truth.where)
        known = is_distribution(reference[name])
        rows = []
        for row, label, kept in zip(
            logits, labels, counted, strict=True
        ):  # a sample at a time: they are large
            scores = log_probabilities(row[kept], known=known)
            rows.append([-scores[np.arange(len(scores)), label[kept]].sum(), float(len(scores))])
        return Scored(np.array(rows, np.float64).reshape(-1, 2))

    def finished(self, values: Floats) -> Floats:
        with np.errstate(over="ignore"):
            perplexity: Floats = np.exp(values)
        return perplexity


class Divergence(Metric):
    """Mean over rows of KL(baseline ‖ artifact) of the softmax, in nats.

    The first output is [batch, classes], [batch, positions, classes], or [batch, classes, height, width].
    Positions that labels [batch, positions] mark with -100 do not count; other labels are not looked at.
    """

    unit, higher_is_better, needs_labels = "units", False, False

    def __init__(self, name: str, *, classes_last: bool = False) -> None:
        self.name, self._classes_last = name, classes_last

    def for_inputs(self, inputs: Sequence[TensorInfo]) -> Divergence:
        return Divergence(self.name, classes_last=has_classes_last(inputs))

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        name, output = first_output(outputs, truth.where)
        expected = reference[name]
        if output.shape != expected.shape or output.ndim < 2 or output.shape[0] != truth.samples:
            raise DataError(
                f"{truth.where}: output {name!r} is of shape {output.shape}, the baseline's of "
                f"{expected.shape}; equal shapes with an axis of samples and one of classes are required"
            )
        require_numbers(name, output, truth.where, finite=False)
        require_numbers(name, expected, truth.where, finite=False)
        if output.ndim > 3 and not self._classes_last:
            output, expected = np.moveaxis(output, 1, -1), np.moveaxis(expected, 1, -1)
        counted = np.ones(output.shape[:-1], bool)
        if truth.labels is not None and np.shape(truth.labels) == counted.shape and counted.ndim > 1:
            counted = np.asarray(truth.labels) != IGNORED_POSITION
        known = is_distribution(expected)
        rows = []
        for found, theirs, kept in zip(output, expected, counted, strict=True):
            mine, log = (log_probabilities(one[kept], known=known) for one in (found, theirs))
            seen = (log > -np.inf) & (log != mine)
            ratio = np.subtract(log, mine, out=np.zeros_like(log), where=seen)
            rows.append([(np.exp(log) * ratio).sum(), float(kept.sum())])
        return Scored(np.array(rows, np.float64).reshape(-1, 2))


def is_distribution(values: NDArray[Any]) -> bool:
    """Return whether the last axis holds probabilities."""
    if not values.size or values.min() < 0:
        return False
    sums = values.sum(axis=-1, dtype=np.float64)
    return bool(np.abs(sums - 1.0).max() <= _SUM_TOLERANCE)


def log_probabilities(values: NDArray[Any], *, known: bool) -> Floats:
    """Return the logarithm of the softmax over the last axis, or of the probabilities that are `known`."""
    wide = values.astype(np.float64)
    if known:
        wide = np.maximum(wide, _SMALLEST_PROBABILITY)
        found: Floats = np.log(wide / wide.sum(axis=-1, keepdims=True))
        return found
    wide = wide - wide.max(axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(divide="ignore"):
        logs: Floats = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return logs
