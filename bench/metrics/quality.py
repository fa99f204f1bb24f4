"""Measure accuracy and output differences of all artifacts over the evaluation data.

All workers run the same batch before the next is read, so what is in memory does not grow with the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ...data.batches import Data
from ...errors import DataError
from ...tensors import Feeds, ModelIO, TensorInfo
from ..outputs import RunnableArtifact, infer_all, paired
from ..recorder import Recorder
from ..workers.process import Worker
from .accuracy import ScoreSums, accuracy
from .metric import Metric, Outputs, Scored, Truth
from .running_difference import RunningDifference


def described_inputs(io: ModelIO, runnables: Sequence[RunnableArtifact]) -> Sequence[TensorInfo]:
    """Return inputs that say how samples become them: what is run, or one artifact's."""
    known = [io, *(one.io for one in runnables if one.io is not None)]
    said = (one.inputs for one in known if any(tensor.preprocessing for tensor in one.inputs))
    return next(said, io.inputs)


def check_evaluation(worker: Worker, io: ModelIO, data: str, metric: Metric) -> Metric:
    """Score the baseline's first batch: what is wrong with labels or metric is said before measuring.

    Returns:
        The metric; the chosen one where `metric` is to choose.

    Raises:
        DataError: If labels are missing, or outputs and labels do not fit the metric.
        ModelError: If the user's function raises.
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
    """Measure accuracy and difference of every artifact whose row is measured.

    Args:
        workers: The running artifacts by name, the baseline among them.
        recorder: Takes the figures; the failure of an artifact is its own.
        io: The inputs that the data is read for.
        data: Evaluation samples.
        metric: What accuracy is; None compares outputs alone.

    Raises:
        DataError, ModelError: If the baseline's outputs have no such accuracy: data or metric are wrong.
    """
    base = recorder.base
    names = [base, *(name for name in workers if name != base)]
    differences = {name: RunningDifference(recorder[name].precision) for name in names[1:]}
    sums = {name: ScoreSums(metric) for name in names if metric}
    samples = Data(data, io.inputs)
    recorder.warn(base, *(f"evaluation: {note}" for note in samples.notes()))
    for batch in samples:
        truth = Truth(batch.labels, batch.samples, batch.where)
        reference = recorder.attempt(base, partial(_infer, workers[base], batch.feeds))
        if reference is None:
            return  # without the baseline's outputs there is nothing to compare with
        scored = metric.score(reference, reference, truth) if metric else None
        if scored:
            sums[base].add(scored, scored, truth.samples)
        for name in names[1:]:
            if not recorder.is_measured(name):
                continue
            step = partial(
                _look_at, workers[name], batch.feeds, reference, scored, truth,
                differences[name], sums.get(name),
            )  # fmt: skip
            recorder.attempt(name, step)
    for name in names:
        if not recorder.is_measured(name):
            continue
        if name != base:
            recorder.difference(name, differences[name].result())
        result = recorder.attempt(name, partial(accuracy, sums[name], sums[base])) if metric else None
        if result is not None:
            recorder.accuracy(name, result)


def _look_at(
    worker: Worker,
    feeds: Feeds,
    reference: Outputs,
    scored: Scored | None,
    truth: Truth,
    difference: RunningDifference,
    sums: ScoreSums | None,
) -> None:
    """One batch of one artifact: run, compared, scored, forgotten."""
    outputs = paired(reference, _infer(worker, feeds))
    difference.add(reference, outputs)
    if sums is not None and scored is not None:
        sums.add(sums.metric.score(outputs, reference, truth), scored, truth.samples)


def _infer(worker: Worker, feeds: Feeds) -> Outputs:
    [outputs] = infer_all(worker, [feeds])
    return outputs
