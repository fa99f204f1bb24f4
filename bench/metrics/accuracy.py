"""Accuracy over a data set, its drop against the baseline, and the drop's interval.

`metrics.names` lists the metrics. A drop is positive where the artifact is worse, whichever way the metric
counts. It is in points (hundredths of a share) for shares, and in the metric's own units otherwise
(`results.row.unit_of`).

Measure accuracy and output differences of all artifacts over the evaluation data.

All workers run the same batch before the next is read, so what is in memory does not grow with the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np

from ...data.batches import Data
from ...data.readers import Batch
from ...errors import DataError
from ...model.output_forms import OutputForm
from ...processes.worker import Worker
from ...tensors import Feeds, ModelIO, TensorInfo, samples_in
from ..outputs import RunnableArtifact, infer_all, paired
from ..recorder import Recorder
from ..results.row import Accuracy, ClassChange
from ..statistics import require_pairs, resampled_interval
from .metric import Metric, Outputs, Scored, Truth, Values, joined
from .names import read_metric
from .output_verdict import RunningDifference

Forms = Mapping[str, OutputForm]

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
        mine, theirs = scored.predictions, baseline.predictions
        if mine is not None and theirs is not None and mine.shape == theirs.shape:
            self._same += int((mine == theirs).sum())
            self._predictions += mine.size
        self.scored.append(replace(scored, predictions=None))
        self.samples += samples
        self._values = None

    @property
    def units(self) -> int:
        return sum(part.units for part in self.scored)

    @property
    def by_class(self) -> dict[int, tuple[float, int]]:
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
    values = sums.by_class
    changes = [
        ClassChange(label, before, values[label][0], samples)
        for label, (before, samples) in baseline.by_class.items()
        if label in values
    ]
    changes.sort(key=lambda change: (-abs(change.value - change.baseline), change.label))
    return Accuracy(
        metric.name, value, drop, low, high, sums.samples, sums.agreement,
        tuple(changes[:MOST_CLASSES_LISTED]) or None, metric.higher_is_better,
    )  # fmt: skip


def described_inputs(io: ModelIO, runnables: Sequence[RunnableArtifact]) -> Sequence[TensorInfo]:
    """Return inputs that say how samples become them: what is run, or one artifact's."""
    inputs = [io.inputs, *(runnable.io.inputs for runnable in runnables if runnable.io is not None)]
    return next((tensors for tensors in inputs if any(t.preprocessing for t in tensors)), io.inputs)


def truth_of(batch: Batch, metric: Metric, data: str) -> Truth:
    """Return what is known of a batch of data; refuse one without the labels that a metric needs."""
    if metric.needs_labels and batch.labels is None:
        raise DataError(
            f"{data}: has no labels, and {metric.name} needs them",
            hint="yield (inputs, labels), put `labels` beside the arrays, or give `metric` cosine",
        )
    return Truth(batch.labels, batch.samples, batch.where)


def check_evaluation(worker: Worker, io: ModelIO, data: str, metric: Metric) -> Metric:
    """Score the baseline's first batch: what is wrong with labels or metric is said before measuring.

    Returns the metric; the chosen one where `metric` is to choose.
    """
    batch = next(iter(Data(data, io.inputs)))
    truth = truth_of(batch, metric, data)
    outputs = _infer(worker, batch.feeds)
    metric = metric.resolved(outputs, truth)
    metric.score(outputs, outputs, truth)
    return metric


def measure_quality(
    workers: Mapping[str, Worker],
    recorder: Recorder,
    io: ModelIO,
    data: str,
    metric: Metric | None,
    forms: Forms = MappingProxyType({}),
) -> None:
    """Measure accuracy and difference of every artifact whose row is measured, over evaluation samples.

    `workers` are the running artifacts by name, the baseline among them; `forms` are of its outputs. Without
    a metric outputs alone are compared. The failure of an artifact is its own.
    """
    samples = Data(data, io.inputs)
    recorder.warn(recorder.base, *(f"evaluation: {note}" for note in samples.notes()))
    batches = ((batch.feeds, Truth(batch.labels, batch.samples, batch.where)) for batch in samples)
    _compare(workers, recorder, batches, metric, forms)


def measure_made_difference(
    workers: Mapping[str, Worker], recorder: Recorder, feeds: Feeds, forms: Forms = MappingProxyType({})
) -> None:
    """Measure the difference of outputs on one made input, for want of data."""
    _compare(workers, recorder, [(feeds, Truth(None, samples_in(feeds), "made input"))], None, forms)


def _compare(
    workers: Mapping[str, Worker],
    recorder: Recorder,
    batches: Iterable[tuple[Feeds, Truth]],
    metric: Metric | None,
    forms: Forms,
) -> None:
    base = recorder.base
    compared = [name for name in workers if name != base and recorder.is_measured(name)]
    differences = {name: RunningDifference(recorder[name].precision, forms) for name in compared}
    sums = {name: ScoreSums(metric) for name in (base, *compared)} if metric else {}
    for feeds, truth in batches:
        reference = recorder.attempt(base, partial(_infer, workers[base], feeds))
        if reference is None:
            return  # there is nothing to compare with
        scored = metric.score(reference, reference, truth) if metric else None
        if scored:
            sums[base].add(scored, scored, truth.samples)
        for name in filter(recorder.is_measured, compared):
            outputs = recorder.attempt(name, partial(_infer, workers[name], feeds))
            if outputs is not None:
                recorder.attempt(name, partial(differences[name].add, reference, outputs))
            if outputs is not None and metric and scored:
                score = recorder.attempt(name, partial(_scored, metric, outputs, reference, truth))
                if score is not None:
                    sums[name].add(score, scored, truth.samples)
    for name in filter(recorder.is_measured, compared):
        difference = differences[name].result()
        recorder.change(name, difference=difference)
        if difference.mismatch:
            recorder.warn(name, f"its outputs are not the baseline's: {difference.mismatch}")
    for name in filter(recorder.is_measured, sums):
        recorder.attempt(name, partial(accuracy, sums[name], sums[base]), "accuracy")


def _scored(metric: Metric, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
    return metric.score(paired(reference, outputs), reference, truth)


def _infer(worker: Worker, feeds: Feeds) -> Outputs:
    [outputs] = infer_all(worker, [feeds])
    return outputs
