"""Accuracy over a data set, its drop against the baseline, and the drop's interval.

`metrics.names` lists the metrics. A drop is positive where the artifact is worse, whichever way the metric
counts. It is in points (hundredths of a share) for shares, and in the metric's own units otherwise
(`results.row.unit_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...errors import DataError
from ..results.row import Accuracy, ClassChange
from ..statistics.bootstrap import require_pairs, resampled_interval
from .metric import Metric, Scored, Values, joined
from .names import read_metric

__all__ = ["MOST_CLASSES_LISTED", "ScoreSums", "accuracy", "read_metric"]

MOST_CLASSES_LISTED = 50


class ScoreSums:
    """What is kept of one artifact's answers while the data goes by: the scores of each batch, in order."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.scored: list[Scored] = []
        self.samples, self._same, self._predictions = 0, 0, 0
        self._values: Values | None = None

    def add(self, scored: Scored, baseline: Scored, samples: int) -> None:
        """Add a batch, and the baseline's score of it."""
        mine, theirs = scored.predictions, baseline.predictions
        if mine is not None and theirs is not None and mine.shape == theirs.shape:
            self._same += int((mine == theirs).sum())
            self._predictions += mine.size
        self.scored.append(replace(scored, predictions=None))
        self.samples += samples
        self._values = None

    @property
    def units(self) -> int:
        """What is drawn again and again: samples, or batches."""
        return sum(part.units for part in self.scored)

    @property
    def by_class(self) -> dict[int, tuple[float, int]]:
        """Value and number of samples of each class that occurs in the labels."""
        return self.metric.classes(joined(self.scored)) if self.scored else {}

    @property
    def agreement(self) -> float | None:
        """Share of predictions that are the baseline's; None where nothing is predicted."""
        return self._same / self._predictions if self._predictions else None

    def values(self) -> Values:
        """Return the metric as a function of the weights of the units; made once."""
        if self._values is None:
            self._values = self.metric.values(joined(self.scored))
        return self._values

    def value(self) -> float:
        """Return the metric over everything added."""
        value = float(self.values()(np.ones((1, self.units)))[0]) if self.scored else np.nan
        if np.isnan(value):
            raise DataError(f"{self.metric.name}: {self.metric.undefined}")
        if np.isinf(value):
            raise DataError(f"{self.metric.name}: is infinite; a finite value is required")
        return value + 0.0


def accuracy(sums: ScoreSums, baseline: ScoreSums) -> Accuracy:
    """Return the accuracy of an artifact; `sums is baseline` for the baseline's own."""
    metric, value = sums.metric, sums.value()
    drop = float(metric.drop(baseline.value(), value)) + 0.0
    if sums is baseline:
        return Accuracy(
            metric.name, value, drop, samples=sums.samples, higher_is_better=metric.higher_is_better
        )
    require_pairs(baseline.units, sums.units)
    theirs, mine = baseline.values(), sums.values()
    interval = resampled_interval(
        sums.units, lambda weights: metric.drop(theirs(weights), mine(weights)), count=metric.resamples
    )
    low, high = (None, None) if interval is None else (interval[0] + 0.0, interval[1] + 0.0)
    return Accuracy(
        metric.name,
        value,
        drop,
        low,
        high,
        sums.samples,
        sums.agreement,
        _class_changes(baseline.by_class, sums.by_class) or None,
        metric.higher_is_better,
    )


def _class_changes(
    baseline: Mapping[int, tuple[float, int]], values: Mapping[int, tuple[float, int]]
) -> tuple[ClassChange, ...]:
    """The classes whose value changed most, first."""
    changes = [
        ClassChange(label, before, values[label][0], samples)
        for label, (before, samples) in baseline.items()
        if label in values
    ]
    changes.sort(key=lambda one: (-abs(one.value - one.baseline), one.label))
    return tuple(changes[:MOST_CLASSES_LISTED])
