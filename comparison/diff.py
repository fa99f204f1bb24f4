"""`qcompile diff`: compare two artifacts, or an artifact and its model, with Polygraphy.

What counts as equal: `model.judgement`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..bench.metrics.accuracy import read_metric
from ..bench.metrics.output_verdict import OutputDifference, Tolerances, judge
from ..bench.outputs import RunnableArtifact, collect_outputs, describe, feeds_for, shared_io
from ..errors import InvalidOption
from ..model.judgement import BY_SIGNAL, RTOL, RULES, Rule
from ..model.pt2_archive import trusting
from ..progress import Progress, silent
from ..spec.words import AUTO
from ..tensors import samples_in
from .accuracy import AccuracyComparison, evaluate

SAMPLES = 64
"""Whose outputs are compared; their accuracy is compared on all."""

_COARSER = (*RTOL, *BY_SIGNAL)


@dataclass(frozen=True)
class Comparison:
    """A comparison; true when every output passed, and the drop in accuracy if it has a limit."""

    reference: str
    artifact: str
    precision: str
    samples: int
    outputs: Sequence[OutputDifference]
    accuracy: AccuracyComparison | None = None

    def __bool__(self) -> bool:
        agree = all(output.passed for output in self.outputs)
        return agree and (self.accuracy is None or bool(self.accuracy))

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        return {"passed": bool(self), **asdict(self)}


def diff(
    reference: str,
    artifact: str,
    *,
    data: str | None = None,
    inputs: Sequence[str] = (),
    samples: int | None = None,
    tolerances: Tolerances | None = None,
    rules: Mapping[str, Rule] | None = None,
    metric: str | None = None,
    max_drop: float | None = None,
    threads: int = 0,
    trust: bool = False,
    progress: Progress = silent,
) -> Comparison:
    """Run both on the same input, each in a process of its own, and compare their outputs.

    Args:
        reference: Artifact or MODEL that is right by definition.
        artifact: What is judged.
        data: Samples; made input otherwise.
        inputs: `NAME:SHAPE[:DTYPE]` where neither side declares its inputs.
        samples: Use at most this many; 64 outputs, and all samples for accuracy, if it is not given.
        tolerances: Limits instead of the defaults.
        rules: Output name to "classes", "embedding" or "signal", where it is not what it looks like.
        metric: Compare the accuracy too; top1, map, file.py:function, ....
        max_drop: The largest drop in accuracy that passes, in the metric's unit.
        threads: Threads of each side; 0 lets it choose.
        trust: Run files that are not what their manifests say, and engines without one, all the same.
        progress: Told of every step.

    Returns:
        The comparison; a mismatch is a result, not an error.

    Raises:
        DataError, WorkerError, EngineUnavailable: If one side cannot run.
        InvalidOption: If the metric is unknown, or there is no data for it.
    """
    metric = AUTO if metric is None and max_drop is not None else metric
    if metric is not None:
        if data is None:
            raise InvalidOption("`metric`: there is no data; labelled samples are required", option="metric")
        read_metric(metric)
    runnables = [describe(one, trust=trust) for one in (reference, artifact)]
    with trusting(trust):
        io = shared_io(runnables, inputs)
    precision = _precision(runnables)
    if metric is not None:
        both = evaluate(
            runnables, io, str(data), metric, max_drop=max_drop, samples=samples, keep=samples or SAMPLES,
            threads=threads, progress=progress,
        )  # fmt: skip
        outputs = judge(both.reference, both.outputs, precision, tolerances, rules)
        return Comparison(reference, artifact, precision, both.samples, outputs, both.accuracy)
    feeds = list(feeds_for(io, data, runnables=runnables, samples=samples or SAMPLES))
    outputs_by_side = []
    for runnable in runnables:
        progress(f"run {runnable.name}")
        outputs_by_side.append(collect_outputs(runnable, feeds, runnables, threads=threads))
    count = sum(samples_in(batch) for batch in feeds)
    outputs = judge(outputs_by_side[0], outputs_by_side[1], precision, tolerances, rules)
    return Comparison(reference, artifact, precision, count, outputs)


def parse_rules(texts: Sequence[str], *, option: str) -> dict[str, Rule]:
    """Read `OUTPUT:RULE` or `RULE`, for what outputs are.

    Raises:
        InvalidOption: If a rule is unknown.
    """
    rules: dict[str, Rule] = {}
    for text in texts:
        name, _, rule = text.rpartition(":")
        if rule not in RULES:
            raise InvalidOption(
                f"{option} {text!r}: {', '.join(RULES)}, or OUTPUT:RULE, is required", option=option
            )
        rules[name] = RULES[RULES.index(rule)]
    return rules


def parse_tolerances(texts: Sequence[str], *, option: str) -> dict[str, float]:
    """Read `OUTPUT:NUMBER` or `NUMBER`, as Polygraphy spells them.

    Raises:
        InvalidOption: If a number cannot be read.
    """
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
            what = f"output {name!r}" if name else "a number for every output"
            raise InvalidOption(f"{option} {text!r}: {what} is given twice", option=option)
        limits[name] = limit
    return limits


def _precision(runnables: Sequence[RunnableArtifact]) -> str:
    """The coarser precision of the two sides decides what can be asked."""
    return max((runnable.precision for runnable in runnables), key=_COARSER.index)
