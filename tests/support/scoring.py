"""A metric's value, and its `accuracy`, of outputs that are given batch by batch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcompile.bench.metrics.accuracy import ScoreSums, accuracy, read_metric
from qcompile.bench.metrics.classes import TopK
from qcompile.bench.metrics.metric import Metric, Truth
from qcompile.bench.results.row import Accuracy
from qcompile.model.sources.preprocessing import Preprocessing, as_json
from qcompile.spec.tensors import TensorInfo

Arrays = Mapping[str, NDArray[Any]]


def inputs_of(preprocessing: Preprocessing) -> list[TensorInfo]:
    """One input that says how samples become it."""
    return [TensorInfo("x", "float32", ("batch", 3), preprocessing=as_json(preprocessing))]


def both_sums(
    metric: Metric | str,
    baseline: Arrays | NDArray[Any],
    found: Arrays | NDArray[Any] | None = None,
    labels: NDArray[Any] | None = None,
    cuts: Sequence[int] = (),
) -> tuple[ScoreSums, ScoreSums]:
    """What is kept of a baseline and of outputs (else its own), cut into batches."""
    metric = read_metric(metric) if isinstance(metric, str) else metric
    baseline = baseline if isinstance(baseline, Mapping) else {"y": baseline}
    found = baseline if found is None else found if isinstance(found, Mapping) else {"y": found}
    samples = len(next(iter(baseline.values()))) if labels is None else len(labels)
    base, mine = ScoreSums(metric), ScoreSums(metric)
    for low, high in itertools.pairwise(sorted({0, *cuts, samples})):
        truth = Truth(None if labels is None else labels[low:high], high - low, f"data[{low}:{high}]")
        reference, outputs = (
            {name: array[low:high] for name, array in side.items()} for side in (baseline, found)
        )
        theirs = metric.score(reference, reference, truth)
        base.add(theirs, theirs, high - low)
        mine.add(metric.score(outputs, reference, truth), theirs, high - low)
    return base, mine


def scored(
    metric: Metric | str,
    baseline: Arrays | NDArray[Any],
    found: Arrays | NDArray[Any] | None = None,
    labels: NDArray[Any] | None = None,
    cuts: Sequence[int] = (),
) -> Accuracy:
    """The accuracy of outputs against a baseline's, with the interval of the drop."""
    base, mine = both_sums(metric, baseline, found, labels, cuts)
    return accuracy(mine, base)


def value(
    metric: Metric | str,
    outputs: Arrays | NDArray[Any],
    labels: NDArray[Any] | None = None,
    cuts: Sequence[int] = (),
) -> float:
    """The metric of outputs, without an interval."""
    return both_sums(metric, outputs, None, labels, cuts)[1].value()


def expanded(array: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[Any]:
    """Rows repeated as often as weights say."""
    return np.repeat(array, weights.astype(int), axis=0)


def top_k(outputs: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]], k: int) -> float:
    """The share of labels among the `k` largest scores, over all batches."""
    metric = TopK(f"top{k}", k)
    sums = ScoreSums(metric)
    for scores, truth in zip(outputs, labels, strict=True):
        scored = metric.score({"scores": scores}, {}, Truth(truth, len(truth), "accuracy"))
        sums.add(scored, scored, len(truth))
    return sums.value()
