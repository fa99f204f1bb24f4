"""`qcompile diff`: compare the outputs, and on labelled samples the accuracy, of two artifacts or models.

`model.outputs.judgement` defines when two outputs agree.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...core.processes.worker import Worker
from ...core.progress import Progress, silent
from ...data.batches import Data
from ...errors import InvalidOption
from ...model.outputs.judgement import BY_SIGNAL, RTOL
from ...model.outputs.output_forms import parse_rules
from ...model.sources.archives import trust_files
from ...spec.decode import spec_from_call
from ...spec.measure import DiffSpec
from ...spec.tensors import ModelIO, samples_in
from ...spec.words import AUTO
from ..measure.artifacts import (
    WORKER,
    RunnableArtifact,
    collect_outputs,
    describe,
    feeds_for,
    forms_of,
    infer_all,
    load_in_worker,
    pair_outputs,
    require_runnable,
    shared_io,
)
from ..metrics.accuracy import ScoreSums, accuracy, described_inputs, read_metric, truth_of
from ..metrics.metric import Outputs
from ..metrics.output_verdict import OutputDifference, Tolerances, judge
from ..results.row import Unit, unit_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import DiffKeywords

SAMPLES = 64  # default number for the comparison of outputs; accuracy is compared on all samples
_BY_COARSENESS = (*RTOL, *BY_SIGNAL)


@dataclass(frozen=True)
class OutputComparison:
    """A comparison; true if every output passes and the accuracy drop is within its limit, if any.

    `spread` names the samples of the comparison of outputs, for example "64 of 5000 samples".
    """

    reference: str
    artifact: str
    precision: str
    samples: int
    outputs: Sequence[OutputDifference]
    accuracy: AccuracyComparison | None = None
    warnings: Sequence[str] = ()
    spread: str = ""

    def __bool__(self) -> bool:
        agree = all(output.passed for output in self.outputs)
        return agree and (self.accuracy is None or bool(self.accuracy))

    def as_json(self) -> dict[str, Any]:
        return {"passed": bool(self), **asdict(self)}


def diff(
    reference: str,
    artifact: str,
    spec: DiffSpec | None = None,
    /,
    *,
    tolerances: Tolerances | None = None,
    progress: Progress = silent,
    **options: Unpack[DiffKeywords],
) -> OutputComparison:
    """Run two artifacts on the same input, each in a separate process, and compare their outputs.

    Args:
        reference: Artifact, or model (`model.py:build`), with the correct outputs.
        artifact: Artifact or model to check.
        spec: Options of the comparison.
        tolerances: Limits in place of `atol`, `rtol` and `snr`.
        progress: Called at every step.
        options: Fields of `DiffSpec` by name, in place of those of `spec`.

    Returns:
        The comparison; a mismatch is a result, not an error.

    Raises:
        DataError, WorkerError, EngineUnavailable: If one side cannot run.
        InvalidOption: If the metric is unknown, or `data` for it is missing.
    """
    spec = spec_from_call(DiffSpec, spec, options)
    limits = (parse_tolerances(getattr(spec, kind), option=f"`{kind}`") for kind in ("atol", "rtol", "snr"))
    tolerances, rules = tolerances or Tolerances(*limits), parse_rules(spec.rules)
    metric = AUTO if spec.metric is None and spec.max_drop is not None else spec.metric
    if metric is not None:
        if spec.data is None:
            raise InvalidOption("`metric`: there is no data; labelled samples are required", option="metric")
        read_metric(metric)
    runnables = [describe(side, trust=spec.trust) for side in (reference, artifact)]
    with trust_files(spec.trust):
        io = shared_io(runnables, spec.inputs)
    forms = forms_of(runnables)
    # The coarser precision of the two sides determines the criteria.
    precision = max((runnable.precision for runnable in runnables), key=_BY_COARSENESS.index)
    notes: list[str] = []
    comparison: AccuracyComparison | None = None
    sides: list[Sequence[Outputs]] = []
    spread_text = ""
    if metric is not None:
        progress("accuracy")
        comparison, *sides, count = evaluate(runnables, io, spec, metric, notes)
    else:
        if spec.data is not None and spec.samples is None:
            spread = Data(spec.data, io.inputs).spread(SAMPLES)
            feeds, spread_text = spread.batches, str(spread)
        else:
            feeds = list(feeds_for(io, spec.data, runnables=runnables, samples=spec.samples or SAMPLES))
        for runnable in runnables:
            progress(f"run {runnable.name}")
            sides.append(collect_outputs(runnable, feeds, runnables, threads=spec.threads, notes=notes))
        count = sum(map(samples_in, feeds))
    outputs = judge(sides[0], sides[1], precision, tolerances, rules, forms)
    return OutputComparison(
        reference, artifact, precision, count, outputs, comparison, notes, spread_text or f"{count} samples"
    )


def parse_tolerances(texts: Sequence[str], *, option: str) -> dict[str, float]:
    """Parse `OUTPUT:NUMBER` or `NUMBER`, the syntax of Polygraphy."""
    limits = {}
    for text in texts:
        name, _, number = text.rpartition(":")
        try:
            limit = float(number)
        except ValueError:
            limit = -1.0
        if not 0.0 <= limit < math.inf:
            raise InvalidOption(
                f"{option} {text!r}: a finite number from 0, or OUTPUT:NUMBER, is required", option=option
            )
        if name in limits:
            target = f"output {name!r}" if name else "a number for every output"
            raise InvalidOption(f"{option} {text!r}: {target} is given twice", option=option)
        limits[name] = limit
    return limits


@dataclass(frozen=True)
class AccuracyComparison:
    """Accuracy of both sides; true if the drop is within `max_drop`, or there is no limit.

    Attributes:
        metric: Name of the metric; for "auto" the selected one, as `note` explains.
        reference, artifact: Values of the metric; from 0 to 1 if `unit` is points.
        drop: How much worse the artifact is, in `unit`.
        low, high: Ends of the drop's paired 95% interval; None with too few samples.
        agreement: Share of equal predictions; None without predictions.
        statement: Conclusion from the samples, as text.
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
    statement: str = ""

    def __bool__(self) -> bool:
        return self.max_drop is None or self.drop <= self.max_drop

    @property
    def unit(self) -> Unit:
        return unit_of(self.metric)


def evaluate(
    runnables: Sequence[RunnableArtifact], io: ModelIO, spec: DiffSpec, metric: str, notes: list[str]
) -> tuple[AccuracyComparison, list[Outputs], list[Outputs], int]:
    """Run two artifacts on labelled samples, batch by batch, and compare their accuracy on all.

    Also returns the outputs of both for the first batches, and the number of samples in these. Notes of the
    worker processes are appended to `notes`.
    """
    data, most_samples = str(spec.data), spec.samples or SAMPLES
    scoring = read_metric(metric, inputs=described_inputs(io, runnables))
    sums: list[ScoreSums] = []
    first: tuple[list[Outputs], list[Outputs]] = ([], [])
    stored_samples = 0
    for runnable in runnables:
        require_runnable(runnable)
    with contextlib.ExitStack() as stack:
        workers = []
        for runnable in runnables:
            worker = Worker(runnable.name, module=WORKER, threads=spec.threads, python=runnable.python)
            workers.append(stack.enter_context(worker))
            load_in_worker(worker, runnable, runnables, spec.threads)
        for batch in Data(data, io.inputs, limit=spec.samples):
            truth = truth_of(batch, scoring, data)
            reference, outputs = (next(infer_all(worker, [batch.feeds], notes)) for worker in workers)
            if not sums:
                scoring = scoring.resolve(reference, truth)
                sums = [ScoreSums(scoring), ScoreSums(scoring)]
            if stored_samples < most_samples:
                stored_samples += batch.samples
                first[0].append(reference)
                first[1].append(outputs)
            base = scoring.score(reference, reference, truth)
            sums[0].add(base, base, truth.samples)
            sums[1].add(
                scoring.score(pair_outputs(reference, outputs), reference, truth), base, truth.samples
            )
    result = accuracy(sums[1], sums[0])
    assert result.drop is not None, "an artifact has a drop"
    comparison = AccuracyComparison(
        scoring.name, scoring.note, sums[0].value(), result.value, result.drop.value, result.drop.low,
        result.drop.high, sums[1].samples, result.agreement, spec.max_drop,
        result.statement,
    )  # fmt: skip
    return comparison, *first, stored_samples
