"""Accuracy of two artifacts over labelled samples, and the paired interval of the drop, for `diff`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..bench.metrics.accuracy import ScoreSums, accuracy, read_metric
from ..bench.metrics.metric import Outputs, Truth
from ..bench.metrics.quality import described_inputs
from ..bench.outputs import RunnableArtifact, infer_all, paired, require_runnable, start
from ..bench.results.row import Unit, unit_of
from ..bench.workers.process import Worker
from ..data.batches import Data
from ..errors import DataError
from ..progress import Progress, silent
from ..tensors import ModelIO


@dataclass(frozen=True)
class AccuracyComparison:
    """What both sides reach; true where the drop is within the limit, or none was given.

    Attributes:
        metric: Its spelling; the chosen one where it was to be chosen, which `note` explains.
        reference, artifact: Its values: shares for metrics in points.
        drop: How much worse the artifact is, in `unit`.
        low, high: Ends of the drop's paired 95% interval; None with too few samples.
        samples: How many were evaluated.
        agreement: Share of equal predictions; None where nothing is predicted.
        max_drop: The largest drop that passes; None for no limit.
    """

    metric: str
    note: str
    reference: float
    artifact: float
    drop: float
    low: float | None
    high: float | None
    samples: int
    agreement: float | None
    max_drop: float | None

    def __bool__(self) -> bool:
        return self.max_drop is None or self.drop <= self.max_drop

    @property
    def unit(self) -> Unit:
        """What the drop is counted in."""
        return unit_of(self.metric)


@dataclass(frozen=True)
class Evaluation:
    """Two artifacts on the same samples.

    Attributes:
        accuracy: What both reach on all of them.
        reference, outputs: Their outputs for the first batches, which hold `samples`.
        samples: In those batches.
    """

    accuracy: AccuracyComparison
    reference: Sequence[Outputs]
    outputs: Sequence[Outputs]
    samples: int


def evaluate(
    runnables: Sequence[RunnableArtifact],
    io: ModelIO,
    data: str,
    metric: str,
    *,
    max_drop: float | None = None,
    samples: int | None = None,
    keep: int = 0,
    threads: int = 0,
    progress: Progress = silent,
) -> Evaluation:
    """Run two artifacts on labelled samples, batch by batch, and compare their accuracy.

    Args:
        runnables: The reference, and what is judged.
        io: What they are run with.
        data: Samples, with labels if the metric needs them.
        metric: See `bench.metrics.names`.
        max_drop: The largest drop that passes, in the metric's unit.
        samples: At most so many; None reads all.
        keep: Outputs are kept of so many samples, in whole batches.
        threads: Of each side; 0 lets it choose.
        progress: Told of every step.

    Raises:
        InvalidOption: If the metric is unknown.
        EngineUnavailable: If one side cannot run here.
        DataError: If labels are missing, or do not fit the metric.
        WorkerError: If one side dies.
    """
    chosen = read_metric(metric, inputs=described_inputs(io, runnables))
    sums: list[ScoreSums] = []
    kept: tuple[list[Outputs], list[Outputs]] = ([], [])
    seen = 0
    for runnable in runnables:
        require_runnable(runnable)
    with contextlib.ExitStack() as stack:
        workers = []
        for runnable in runnables:
            workers.append(
                stack.enter_context(Worker(runnable.name, threads=threads, python=runnable.python))
            )
            start(workers[-1], runnable, runnables, threads)
        progress("accuracy")
        for batch in Data(data, io.inputs, limit=samples):
            if chosen.needs_labels and batch.labels is None:
                raise DataError(
                    f"{data}: has no labels, and {chosen.name} needs them",
                    hint="yield (inputs, labels), put `labels` beside the arrays, or give `metric` cosine",
                )
            truth = Truth(batch.labels, batch.samples, batch.where)
            reference, outputs = (next(infer_all(worker, [batch.feeds])) for worker in workers)
            if not sums:
                chosen = chosen.resolved(reference, truth)
                sums = [ScoreSums(chosen), ScoreSums(chosen)]
            if seen < keep:
                seen += batch.samples
                kept[0].append(reference)
                kept[1].append(outputs)
            scored = chosen.score(reference, reference, truth)
            sums[0].add(scored, scored, truth.samples)
            sums[1].add(chosen.score(paired(reference, outputs), reference, truth), scored, truth.samples)
    found = accuracy(sums[1], sums[0])
    assert found.drop is not None, "an artifact has a drop"
    compared = AccuracyComparison(
        chosen.name, chosen.note, sums[0].value(), found.value, found.drop.value, found.drop.low,
        found.drop.high, sums[1].samples, found.agreement, max_drop,
    )  # fmt: skip
    return Evaluation(compared, *kept, seen)
