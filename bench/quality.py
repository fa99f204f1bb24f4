"""How good an artifact's outputs are: accuracy, and difference from the baseline, over the evaluation data.

All workers run the same batch before the next is read, so what is in memory does not grow with the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..calibration import Data
from ..errors import DataError
from ..shapes import Feeds, ModelIO
from .accuracy import Tally, accuracy
from .metrics import Metric, Outputs, Scored, Truth
from .outputs import infer_all, paired
from .process import Worker
from .results import Entry
from .running_difference import RunningDifference

Guard = Callable[[Entry, Callable[[], Any]], Any]
"""Runs a step of one artifact; its failure is written to its entry, and then the answer is None."""


def check_evaluation(worker: Worker, io: ModelIO, data: str, metric: Metric) -> None:
    """Score the baseline's first batch: what is wrong with labels or metric is said before measuring.

    Raises:
        DataError: If labels are missing, or outputs and labels do not fit the metric.
        ModelError: If the user's function raises.
    """
    batch = next(iter(Data(data, io.inputs)))
    if metric.needs_labels and batch.labels is None:
        raise DataError(
            f"{data}: has no labels, and {metric.name} needs them",
            hint="yield (inputs, labels), put `labels` beside the arrays, or give --metric cosine",
        )
    outputs = _infer(worker, batch.feeds)
    metric.score(outputs, outputs, Truth(batch.labels, batch.samples, batch.where))


def record_quality(
    workers: Mapping[str, Worker],
    entries: Mapping[str, Entry],
    base: str,
    io: ModelIO,
    data: str,
    metric: Metric | None,
    guard: Guard,
) -> None:
    """Write `accuracy` and `difference` of every entry that is measured.

    Args:
        workers: The running artifacts by name, the baseline among them.
        entries: Their rows.
        base: Name of the baseline.
        io: The inputs that the data is read for.
        data: Evaluation samples.
        metric: What accuracy is; None compares outputs alone.
        guard: Keeps an artifact's failure to itself.

    Raises:
        DataError, ModelError: If the baseline's outputs have no such accuracy: data or metric are wrong.
    """
    names = [base, *(name for name in workers if name != base)]
    differences = {name: RunningDifference(entries[name].precision) for name in names[1:]}
    tallies = {name: Tally(metric) for name in names if metric}
    for batch in Data(data, io.inputs):
        truth = Truth(batch.labels, batch.samples, batch.where)
        reference = guard(entries[base], partial(_infer, workers[base], batch.feeds))
        if reference is None:
            return  # without the baseline's outputs there is nothing to compare with
        scored = metric.score(reference, reference, truth) if metric else None
        if scored:
            tallies[base].add(scored, scored, truth.samples)
        for name in names[1:]:
            if entries[name].status != "measured":
                continue
            step = partial(
                _look_at, workers[name], batch.feeds, reference, scored, truth,
                differences[name], tallies.get(name),
            )  # fmt: skip
            guard(entries[name], step)
    for name in names:
        entry = entries[name]
        if entry.status != "measured":
            continue
        if name != base:
            entry.difference = differences[name].as_json()
        if metric:
            entry.accuracy = guard(entry, partial(accuracy, tallies[name], tallies[base]))


def _look_at(
    worker: Worker,
    feeds: Feeds,
    reference: Outputs,
    scored: Scored | None,
    truth: Truth,
    difference: RunningDifference,
    tally: Tally | None,
) -> None:
    """One batch of one artifact: run, compared, scored, forgotten."""
    outputs = paired(reference, _infer(worker, feeds))
    difference.add(reference, outputs)
    if tally is not None and scored is not None:
        tally.add(tally.metric.score(outputs, reference, truth), scored, truth.samples)


def _infer(worker: Worker, feeds: Feeds) -> Outputs:
    [outputs] = infer_all(worker, [feeds])
    return outputs
