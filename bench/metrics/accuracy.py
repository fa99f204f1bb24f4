"""Accuracy over a data set, its drop against the baseline, and the drop's interval.

`metrics.names` lists the metrics. A drop is positive where the artifact is worse, whichever way the metric
counts. It is in points (hundredths of a share) for shares, and in the metric's own units otherwise
(`results.row.unit_of`).

Measure accuracy and output differences of all artifacts over the evaluation data.

All workers run the same batch before the next is read, so what is in memory does not grow with the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...data.batches import Data
from ...errors import DataError
from ...processes.worker import Worker
from ...tensors import Feeds, ModelIO, TensorInfo, samples_in
from ..outputs import RunnableArtifact, infer_all, paired
from ..recorder import Recorder
from ..results.row import Accuracy, ClassChange
from ..statistics import require_pairs, resampled_interval
from .metric import Metric, Outputs, Scored, Truth, Values, joined
from .names import read_metric
from .output_verdict import RunningDifference

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


@dataclass
class Answers:
    """What is kept of an artifact: scores where there is a metric, its difference from the baseline."""

    sums: ScoreSums | None
    difference: RunningDifference | None


def described_inputs(io: ModelIO, runnables: Sequence[RunnableArtifact]) -> Sequence[TensorInfo]:
    """Return inputs that say how samples become them: what is run, or one artifact's."""
    known = [io, *(one.io for one in runnables if one.io is not None)]
    said = (one.inputs for one in known if any(tensor.preprocessing for tensor in one.inputs))
    return next(said, io.inputs)


def check_evaluation(worker: Worker, io: ModelIO, data: str, metric: Metric) -> Metric:
    """Score the baseline's first batch: what is wrong with labels or metric is said before measuring.

    Returns the metric; the chosen one where `metric` is to choose.
    """
    batch = next(iter(Data(data, io.inputs)))
    if metric.needs_labels and batch.labels is None:
        raise DataError(
            f"{data}: has no labels, and {metric.name} needs them",
            hint="yield (inputs, labels), put `labels` beside the arrays, or give `metric` cosine",
        )
    outputs = _infer(worker, batch.feeds)
    truth = Truth(batch.labels, batch.samples, batch.where)
    metric = metric.resolved(outputs, truth)
    metric.score(outputs, outputs, truth)
    return metric


def measure_quality(
    workers: Mapping[str, Worker], recorder: Recorder, io: ModelIO, data: str, metric: Metric | None
) -> None:
    """Measure accuracy and difference of every artifact whose row is measured, over evaluation samples.

    `workers` are the running artifacts by name, the baseline among them. Without a metric outputs alone are
    compared. The failure of an artifact is its own.
    """
    base = recorder.base
    samples = Data(data, io.inputs)
    recorder.warn(base, *(f"evaluation: {note}" for note in samples.notes()))
    answers = {base: Answers(ScoreSums(metric) if metric else None, None)}
    for name in workers:
        if name != base and recorder.is_measured(name):
            difference = RunningDifference(recorder[name].precision)
            answers[name] = Answers(ScoreSums(metric) if metric else None, difference)
    base_sums = answers[base].sums
    for batch in samples:
        truth = Truth(batch.labels, batch.samples, batch.where)
        reference = recorder.attempt(base, partial(_infer, workers[base], batch.feeds))
        if reference is None:
            return  # there is nothing to compare with
        scored = metric.score(reference, reference, truth) if metric else None
        if scored and base_sums is not None:
            base_sums.add(scored, scored, truth.samples)
        for name, answer in answers.items():
            if name != base and recorder.is_measured(name):
                step = partial(_look_at, workers[name], batch.feeds, reference, scored, truth, answer)
                recorder.attempt(name, step)
    for name, answer in answers.items():
        if not recorder.is_measured(name):
            continue
        if answer.difference is not None:
            recorder.change(name, difference=answer.difference.result())
        if answer.sums is not None and base_sums is not None:
            recorder.attempt(name, partial(accuracy, answer.sums, base_sums), "accuracy")


def measure_made_difference(workers: Mapping[str, Worker], recorder: Recorder, feeds: Feeds) -> None:
    """Measure the difference of outputs on one made input, for want of data."""
    reference = recorder.attempt(recorder.base, partial(_infer, workers[recorder.base], feeds))
    truth = Truth(None, samples_in(feeds), "made input")
    for name, worker in workers.items():
        if reference is None or name == recorder.base or not recorder.is_measured(name):
            continue
        difference = RunningDifference(recorder[name].precision)
        answers = Answers(None, difference)
        recorder.attempt(name, partial(_look_at, worker, feeds, reference, None, truth, answers))
        if recorder.is_measured(name):
            recorder.change(name, difference=difference.result())


def _look_at(
    worker: Worker, feeds: Feeds, reference: Outputs, scored: Scored | None, truth: Truth, answers: Answers
) -> None:
    outputs = paired(reference, _infer(worker, feeds))
    if answers.difference is not None:
        answers.difference.add(reference, outputs)
    if answers.sums is not None and scored is not None:
        answers.sums.add(answers.sums.metric.score(outputs, reference, truth), scored, truth.samples)


def _infer(worker: Worker, feeds: Feeds) -> Outputs:
    [outputs] = infer_all(worker, [feeds])
    return outputs
