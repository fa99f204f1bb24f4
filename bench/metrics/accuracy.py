"""Accuracy of each artifact over the evaluation data, its drop against the baseline, and the drop's interval.

`metrics.names` lists the metrics. A positive drop means worse than the baseline, whether more or less of the
metric is better. It is in points (hundredths) for shares, else in the metric's unit (`results.row.unit_of`).

All workers run one batch before the next one is read, so memory does not grow with the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec import structs

from ...core.processes.worker import Worker
from ...data.batches import Data
from ...data.readers import Batch
from ...errors import DataError
from ...model.outputs.output_forms import OutputForm
from ...spec.tensors import Feeds, ModelIO, TensorInfo, samples_in
from ..measure.artifacts import RunnableArtifact, infer_all, pair_outputs
from ..measure.recorder import Recorder
from ..results.drop import EXACT, statement
from ..results.row import Accuracy, ClassChange
from .bounds import (
    FEWEST_UNITS,
    clopper_pearson,
    require_pairs,
    resampled_interval,
    right_or_wrong_interval,
    tail_of,
)
from .metric import LABELS_HINT, Floats, Metric, Outputs, Scored, Truth, Values, join_scores
from .names import read_metric
from .output_verdict import RunningDifference

Forms = Mapping[str, OutputForm]

__all__ = ["MOST_CLASSES_LISTED", "ScoreSums", "accuracy", "read_metric"]

MOST_CLASSES_LISTED = 50
_FEWEST_TO_JUDGE = 50  # samples; fewer right answers may be luck
_CHANCE_TAIL = 0.025
_LOOK = "the labels, their order or the preprocessing look wrong"


class ScoreSums:
    """The scores of one artifact, batch by batch in order, without its outputs."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.scored: list[Scored] = []
        self.samples, self._agreeing, self._predictions = 0, 0, 0
        self._values: Values | None = None
        self._joined_scores: Scored | None = None

    def add(self, scored: Scored, baseline: Scored, samples: int) -> None:
        predicted, expected = scored.predictions, baseline.predictions
        if predicted is not None and expected is not None and predicted.shape == expected.shape:
            self._agreeing += int((predicted == expected).sum())
            self._predictions += predicted.size
        self.scored.append(replace(scored, predictions=None))
        self.samples += samples
        self._values = self._joined_scores = None

    @property
    def units(self) -> int:
        return sum(part.units for part in self.scored)

    @property
    def by_class(self) -> dict[int, tuple[float, int]]:
        return self.metric.classes(self.joined) if self.scored else {}

    @property
    def joined(self) -> Scored:
        if self._joined_scores is None:
            self._joined_scores = join_scores(self.scored)
        return self._joined_scores

    @property
    def agreement(self) -> float | None:
        """Share of predictions equal to the baseline's; None without predictions."""
        return self._agreeing / self._predictions if self._predictions else None

    def agreement_low(self, candidates: int) -> float | None:
        """Return the exact lower bound of `agreement`; None if a sample has several predictions, since those
        are not independent."""
        if not self._predictions or self._predictions != self.samples:
            return None
        return clopper_pearson(self._agreeing, self._predictions, tail_of(candidates))[0]

    def values(self) -> Values:
        """Return the metric as a function of the units' weights; cached."""
        if self._values is None:
            self._values = self.metric.values(self.joined)
        return self._values

    def value(self) -> float:
        value = float(self.values()(np.ones((1, self.units)))[0]) if self.scored else np.nan
        if np.isnan(value):
            raise DataError(f"{self.metric.name}: {self.metric.undefined}")
        if np.isinf(value):
            raise DataError(f"{self.metric.name}: is infinite; a finite value is required")
        return value + 0.0


def accuracy(sums: ScoreSums, baseline: ScoreSums, candidates: int = 1) -> Accuracy:
    """Return the accuracy of an artifact, or of the baseline if `sums is baseline`.

    `candidates` is the number of artifacts judged on these samples, from which one may be chosen.
    """
    metric, value = sums.metric, sums.value()
    drop = float(metric.drop(baseline.value(), value)) + 0.0
    if sums is baseline:
        return Accuracy(
            metric.name, value, drop, samples=sums.samples, higher_is_better=metric.higher_is_better,
            suspicion=suspicion(sums, value),
        )  # fmt: skip
    require_pairs(baseline.units, sums.units)
    comparison = _compare_units(sums, baseline, tail_of(candidates))
    class_values = sums.by_class
    changes = [
        ClassChange(label, before, class_values[label][0], samples)
        for label, (before, samples) in baseline.by_class.items()
        if label in class_values
    ]
    changes.sort(key=lambda change: (-abs(change.value - change.baseline), change.label))
    low, high = (None, None) if comparison.interval is None else comparison.interval
    result = Accuracy(
        metric.name, value, drop, low, high, sums.samples, sums.agreement,
        tuple(changes[:MOST_CLASSES_LISTED]) or None, metric.higher_is_better,
        agreement_low=sums.agreement_low(candidates),
        units=sums.units, changed=comparison.changed, lost=comparison.lost, gained=comparison.gained,
        candidates=candidates,
    )  # fmt: skip
    return structs.replace(result, statement=statement(result))


def suspicion(sums: ScoreSums, value: float) -> str:
    """Return a warning if the baseline is no better than an answer that ignores the input, else ""."""
    metric = sums.metric
    if metric.needs_labels and metric.higher_is_better and value <= 0.0:
        return f"{metric.name} of the baseline is {value:.1%}: {_LOOK}"
    guess = metric.without_model(sums.joined)
    if guess is None or sums.units < _FEWEST_TO_JUDGE:
        return ""
    is_one_label_each = sums.joined.table[:, -1].sum() == sums.units
    right = round(value * sums.units)
    low = clopper_pearson(right, sums.units, _CHANCE_TAIL)[0] if is_one_label_each else value
    if low > guess:
        return ""
    return (
        f"{metric.name} of the baseline is {value:.1%}, and {guess:.1%} without looking at the input: {_LOOK}"
    )


class _Units(NamedTuple):
    """Comparison of an artifact's units with the baseline's.

    Attributes:
        interval: Interval of the drop, in its unit; None if there are too few units.
        changed: Units with a different score.
        lost, gained: Answers that became wrong, and right; None unless every answer is right or wrong.
    """

    interval: tuple[float, float] | None
    changed: int
    lost: int | None = None
    gained: int | None = None


def _compare_units(sums: ScoreSums, baseline: ScoreSums, tail: float) -> _Units:
    """Compare the scores unit by unit and compute the drop's interval; `bounds` lists the cases."""
    metric, units = sums.metric, sums.units
    scale = metric.drop(1.0, 0.0)  # the drop of a share that falls from 1 to 0
    scores, base = (metric.unit_sums(side.joined) for side in (sums, baseline))
    if scores is None or base is None:
        changed, worst = _changed_rows(sums, baseline), None
    else:
        if _are_right_or_wrong(metric, scores, base):
            falls, rises = (int((a[:, 0] > b[:, 0]).sum()) for a, b in ((base, scores), (scores, base)))
            lost, gained = (falls, rises) if metric.higher_is_better else (rises, falls)
            low, high = right_or_wrong_interval(lost, gained, units, tail)
            return _Units((low * abs(scale), high * abs(scale)), lost + gained, lost, gained)
        changed = int((scores != base).any(axis=1).sum())
        drops = scale * (base[:, 0] - scores[:, 0]) / max(float(base[:, 1].mean()), np.finfo(float).tiny)
        worst = (min(0.0, float(drops.min())), max(0.0, float(drops.max())))
    in_points = metric.unit == "points"
    if not in_points and min(units, changed) < min(FEWEST_UNITS, units):
        return _Units(None, changed)
    if in_points and changed < FEWEST_UNITS:
        worst = (-abs(scale), abs(scale))
    before, after = baseline.values(), sums.values()
    interval = resampled_interval(
        units,
        lambda weights: metric.drop(before(weights), after(weights)),
        tail=tail,
        added=worst,
        count=metric.resamples,
    )
    return _Units(interval, changed)


def _are_right_or_wrong(metric: Metric, *sides: Floats) -> bool:
    """Return whether each unit counts once, with value 0 or 1. In "units", zeros alone do not prove this."""
    values = np.stack(sides)
    is_binary = bool((values[:, :, 1] == 1.0).all() and np.isin(values[:, :, 0], (0.0, 1.0)).all())
    return is_binary and (metric.unit == "points" or bool(values[:, :, 0].any()))


def _changed_rows(sums: ScoreSums, baseline: ScoreSums) -> int:
    """Return the number of units with other rows than the baseline's."""
    sides = []
    for scored in (sums.joined, baseline.joined):
        counts = np.bincount(scored.unit_of_row, minlength=scored.units)
        sides.append(np.split(scored.table, np.cumsum(counts)[:-1]))
    return sum(not np.array_equal(rows, base, equal_nan=True) for rows, base in zip(*sides, strict=True))


def described_inputs(io: ModelIO, runnables: Sequence[RunnableArtifact]) -> Sequence[TensorInfo]:
    """Return the first inputs with a `preprocessing`, of `io` or of an artifact; otherwise `io`'s."""
    inputs = [io.inputs, *(runnable.io.inputs for runnable in runnables if runnable.io is not None)]
    return next((tensors for tensors in inputs if any(t.preprocessing for t in tensors)), io.inputs)


def truth_of(batch: Batch, metric: Metric, data: str) -> Truth:
    """Return the labels of a batch as `Truth`; raise DataError if the metric needs labels and none exist."""
    if metric.needs_labels and batch.labels is None:
        raise DataError(
            f"{data}: has no labels, and {metric.name} needs them",
            hint=f"{LABELS_HINT}; or give `metric` cosine",
        )
    return Truth(batch.labels, batch.samples, batch.where)


def check_evaluation(worker: Worker, io: ModelIO, data: str, metric: Metric) -> Metric:
    """Score the baseline's first batch to raise errors early; return the metric, for `auto` its choice."""
    batch = next(iter(Data(data, io.inputs)))
    truth = truth_of(batch, metric, data)
    outputs = _infer(worker, batch.feeds)
    metric = metric.resolve(outputs, truth)
    metric.score(outputs, outputs, truth)
    return metric


def measure_quality(
    workers: Mapping[str, Worker],
    recorder: Recorder,
    io: ModelIO,
    data: str,
    metric: Metric | None,
    forms: Forms = MappingProxyType({}),
    earlier: int = 0,
) -> None:
    """Measure accuracy and output difference of every measured artifact over the evaluation samples.

    `workers` maps names to running artifacts, including the baseline; `forms` describes its outputs. Without
    a metric, only outputs are compared. A failure affects only the row of its artifact. `earlier` is the
    number of candidates that were judged on these samples before.
    """
    samples = Data(data, io.inputs)
    recorder.warn(recorder.base, *(f"evaluation: {note}" for note in samples.notes()))
    batches = ((batch.feeds, Truth(batch.labels, batch.samples, batch.where)) for batch in samples)
    _compare(workers, recorder, batches, metric, forms, earlier)


def measure_random_input_difference(
    workers: Mapping[str, Worker], recorder: Recorder, feeds: Feeds, forms: Forms = MappingProxyType({})
) -> None:
    """Measure the difference of outputs on random input, for a benchmark without data."""
    _compare(workers, recorder, [(feeds, Truth(None, samples_in(feeds), "made input"))], None, forms)


def _compare(
    workers: Mapping[str, Worker],
    recorder: Recorder,
    batches: Iterable[tuple[Feeds, Truth]],
    metric: Metric | None,
    forms: Forms,
    earlier: int = 0,
) -> None:
    base = recorder.base
    compared = [name for name in workers if name != base and recorder.is_measured(name)]
    differences = {name: RunningDifference(recorder[name].precision, forms) for name in compared}
    sums = {name: ScoreSums(metric) for name in (base, *compared)} if metric else {}
    # FP32 and FP64 artifacts do not count as candidates: they compute the baseline's function.
    candidates = earlier + max(1, sum(recorder[name].precision not in EXACT for name in compared))
    for feeds, truth in batches:
        reference = recorder.attempt(base, partial(_infer, workers[base], feeds))
        if reference is None:
            return  # a failed baseline ends the comparison
        scored = metric.score(reference, reference, truth) if metric else None
        if scored:
            sums[base].add(scored, scored, truth.samples)
        for name in filter(recorder.is_measured, compared):
            outputs = recorder.attempt(name, partial(_infer, workers[name], feeds))
            if outputs is not None:
                recorder.attempt(name, partial(differences[name].add, reference, outputs))
            if outputs is not None and metric and scored:
                score = recorder.attempt(name, partial(_score_outputs, metric, outputs, reference, truth))
                if score is not None:
                    sums[name].add(score, scored, truth.samples)
    for name in filter(recorder.is_measured, compared):
        difference = differences[name].result()
        recorder.change(name, difference=difference)
        if difference.mismatch:
            recorder.warn(name, f"its outputs are not the baseline's: {difference.mismatch}")
    for name in filter(recorder.is_measured, sums):
        recorder.attempt(name, partial(accuracy, sums[name], sums[base], candidates), "accuracy")
    reference_accuracy = recorder[base].accuracy
    if reference_accuracy is not None and reference_accuracy.suspicion:
        recorder.warn(base, reference_accuracy.suspicion)


def _score_outputs(metric: Metric, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
    return metric.score(pair_outputs(reference, outputs), reference, truth)


def _infer(worker: Worker, feeds: Feeds) -> Outputs:
    [outputs] = infer_all(worker, [feeds])
    return outputs
