"""Accuracy over a data set, its drop against the baseline, and the drop's interval.

| metric              | value                                                                       |
|---------------------|-----------------------------------------------------------------------------|
| `top1`, `top5`      | share of labels among the largest scores (`metrics_classes.TopK`)           |
| `miou`              | mean intersection over union of classes (`metrics_classes.MeanIoU`)         |
| `cosine`, `mse`     | against targets, or the baseline's outputs (`metrics_values.Similarity`)    |
| `file.py:function`  | what the user's function says (`metrics_values.OwnMetric`)                  |

A drop is positive where the artifact is worse, whichever way the metric counts. It is in points
(hundredths of a share) for all but `mse` and a function, whose drop is in their own units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, InvalidOption
from ...spec.words import METRICS
from ..results.row import Accuracy, ClassChange, Interval
from ..statistics.bootstrap import paired_interval
from .classes import MeanIoU, TopK
from .metric import Metric, Scored, Truth
from .values import OwnMetric, Similarity, cosine, mean_squared_error

TOP_K = {"top1": 1, "top5": 5}
MOST_CLASSES_LISTED = 50


def read_metric(text: str, *, base: Path | None = None) -> Metric:
    """Return the metric of a spelling; a function's file is looked for from `base`.

    Raises:
        InvalidOption: If it is none of the table above.
        MissingFile, ModelError: If a function is not there.
    """
    if text in TOP_K:
        return TopK(text, TOP_K[text])
    if text == "miou":
        return MeanIoU(text)
    if text == "cosine":
        return Similarity(text, cosine, unit="points", higher_is_better=True)
    if text == "mse":
        return Similarity(text, mean_squared_error, unit="units", higher_is_better=False)
    if ":" not in text:
        raise InvalidOption(
            f"metric {text!r} is unknown; known are {', '.join(METRICS)} and file.py:function",
            option="metric",
        )
    return OwnMetric(text, base=base)


def top_k(outputs: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]], k: int) -> float:
    """Return the share of labels among the `k` largest scores, over all batches.

    Args:
        outputs: Scores of each batch, as `TopK` takes them.
        labels: Class indices of each batch.
        k: How many guesses count.

    Raises:
        DataError: If scores and labels do not fit.
    """
    metric = TopK(f"top{k}", k)
    sums = ScoreSums(metric)
    for scores, truth in zip(outputs, labels, strict=True):
        scored = metric.score({"scores": scores}, {}, Truth(truth, len(truth), "accuracy"))
        sums.add(scored, scored, len(truth))
    return sums.value()


class ScoreSums:
    """What is kept of one artifact's answers while the data goes by: a few numbers of each sample."""

    def __init__(self, metric: Metric) -> None:
        self.metric, self.samples = metric, 0
        self._statistics: list[NDArray[np.float64]] = []
        self._by_class: NDArray[np.float64] | None = None
        self._same, self._predictions = 0, 0

    def add(self, scored: Scored, baseline: Scored, samples: int) -> None:
        """Add a batch, and the baseline's score of it."""
        self.samples += samples
        self._statistics.append(scored.statistics)
        if scored.by_class is not None:
            self._by_class = _added(self._by_class, scored.by_class)
        mine, theirs = scored.predictions, baseline.predictions
        if mine is not None and theirs is not None and mine.shape == theirs.shape:
            self._same += int((mine == theirs).sum())
            self._predictions += mine.size

    @property
    def statistics(self) -> NDArray[np.float64]:
        """Of all units; classes that a batch had not met are zero there."""
        widest = max(part.shape[1] for part in self._statistics)
        padded = []
        for part in self._statistics:
            missing = ((0, 0), (0, widest - part.shape[1]), *[(0, 0)] * (part.ndim - 2))
            padded.append(np.pad(part, missing) if part.shape[1] < widest else part)
        return np.concatenate(padded)

    @property
    def by_class(self) -> dict[int, tuple[float, int]]:
        """Value and number of samples of each class that occurs in the labels."""
        if self._by_class is None:
            return {}
        return {
            label: (float(part / whole), int(samples))
            for label, (part, whole, samples) in enumerate(self._by_class)
            if samples
        }

    @property
    def agreement(self) -> float | None:
        """Share of predictions that are the baseline's; None where nothing is predicted."""
        return self._same / self._predictions if self._predictions else None

    def value(self) -> float:
        """Return the metric over everything added.

        Raises:
            DataError: If nothing counted.
        """
        value = float(self.metric.value(self.statistics.sum(axis=0))) if self._statistics else np.nan
        if np.isnan(value):
            raise DataError(f"{self.metric.name}: no label counts; at least one is required")
        return value


def accuracy(sums: ScoreSums, baseline: ScoreSums) -> Accuracy:
    """Return the accuracy of an artifact; `sums is baseline` for the baseline's own.

    Raises:
        DataError: If nothing counted, or a function gave as many values for one and not for the other.
    """
    metric, value = sums.metric, sums.value()
    drop = float(metric.drop(baseline.value(), value)) + 0.0
    if sums is baseline:
        return Accuracy(
            metric.name, value, Interval(drop), sums.samples, higher_is_better=metric.higher_is_better
        )
    interval = paired_interval(
        baseline.statistics,
        sums.statistics,
        lambda theirs, mine: metric.drop(metric.value(theirs), metric.value(mine)),
    )
    low, high = (None, None) if interval is None else (interval[0] + 0.0, interval[1] + 0.0)
    return Accuracy(
        metric.name,
        value,
        Interval(drop, low, high),
        sums.samples,
        sums.agreement,
        _class_changes(baseline.by_class, sums.by_class),
        metric.higher_is_better,
    )


def _added(total: NDArray[np.float64] | None, part: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of two tables of classes, of which one may have met more classes."""
    if total is None:
        return part
    long, short = (total, part) if len(total) >= len(part) else (part, total)
    added: NDArray[np.float64] = long.copy()
    added[: len(short)] += short
    return added


def _class_changes(
    baseline: Mapping[int, tuple[float, int]], values: Mapping[int, tuple[float, int]]
) -> tuple[ClassChange, ...]:
    """The classes whose value changed most, first."""
    changes = [
        ClassChange(label, before, values[label][0], samples) for label, (before, samples) in baseline.items()
    ]
    changes.sort(key=lambda one: (-abs(one.value - one.baseline), one.label))
    return tuple(changes[:MOST_CLASSES_LISTED])
