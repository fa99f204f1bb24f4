"""Metrics of rankings: normalized discounted cumulative gain, and Spearman's rank correlation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .metric import (
    Metric,
    Outputs,
    RecordMetric,
    Scored,
    Truth,
    Values,
    divide,
    first_output,
    require_numbers,
)

Floats = NDArray[np.float64]


class Ndcg(Metric):
    """Mean over samples of the discounted cumulative gain of a ranking, over that of the best ranking.

    The first output is scores [batch, items]; labels are the items' relevance in that shape, 0 or more. The
    gain of an item is its relevance, its discount `1 / log2(1 + rank)`. Items of equal score share the mean
    of their relevance (McSherry and Najork, Computing Information Retrieval Performance Measures Efficiently
    in the Presence of Tied Scores, ECIR 2008). A sample without a relevant item counts as 0. All of this is
    as scikit-learn's `ndcg_score` has it.

    Args:
        name: As the user spelled it.
        k: Ranks that count; None for all.
    """

    def __init__(self, name: str, k: int | None = None) -> None:
        self.name, self._k = name, k

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """See `Metric.score`."""
        name, scores = first_output(outputs, truth.where)
        if truth.labels is None:
            raise DataError(f"{truth.where}: has no labels; {self.name} needs the relevance of each item")
        relevance = np.asarray(truth.labels)
        if scores.ndim != 2 or relevance.shape != scores.shape or relevance.dtype.kind not in "fiub":
            raise DataError(
                f"{truth.where}: output {name!r} of shape {scores.shape} with labels of shape "
                f"{relevance.shape}; scores [batch, items] and their relevance in that shape are required",
                hint="give `metric` file.py:function for rankings of another form",
            )
        require_numbers(name, scores, truth.where, finite=True)
        require_numbers("labels", relevance, truth.where, finite=True)
        if (relevance < 0).any():
            raise DataError(f"{truth.where}: relevance {relevance.min()}; 0 or more is required")
        values = ndcg(scores.astype(np.float64), relevance.astype(np.float64), self._k)
        return Scored(np.stack([values, np.ones(len(values))], axis=1))


def ndcg(scores: Floats, relevance: Floats, k: int | None = None) -> Floats:
    """Return the value of each row of [batch, items]."""
    discount = 1.0 / np.log2(np.arange(scores.shape[1]) + 2.0)
    if k is not None:
        discount[k:] = 0.0
    best = -np.sort(-relevance, axis=1) @ discount
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked, gains = (np.take_along_axis(one, order, axis=1) for one in (scores, relevance))
    gained = np.array([_gain(*row, discount) for row in zip(ranked, gains, strict=True)])
    return np.nan_to_num(divide(gained, best))


def _gain(ranked: Floats, gains: Floats, discount: Floats) -> float:
    """The discounted gain of one ranking, in which equal scores share their mean gain."""
    begins = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    counts = np.diff(np.append(begins, len(ranked)))
    return float(np.sum(np.add.reduceat(gains, begins) / counts * np.add.reduceat(discount, begins)))


class Spearman(RecordMetric):
    """Spearman's rank correlation of a scalar output with targets; equal values share their mean rank.

    The first output is [batch] or [batch, 1], and so are the targets. A record is (output, target).
    """

    undefined = "outputs or targets are all equal; values that differ are required"

    def __init__(self, name: str) -> None:
        self.name = name

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """See `Metric.score`."""
        name, output = first_output(outputs, truth.where)
        if truth.labels is None:
            raise DataError(f"{truth.where}: has no labels; {self.name} needs a target of each sample")
        targets = np.asarray(truth.labels)
        if output.size != truth.samples or targets.size != truth.samples:
            raise DataError(
                f"{truth.where}: output {name!r} of shape {output.shape} with targets of shape "
                f"{targets.shape} for {truth.samples} samples; one number of each for a sample is required",
                hint="give `metric` file.py:function, which may make a score of several outputs",
            )
        require_numbers(name, output, truth.where, finite=True)
        require_numbers("labels", targets, truth.where, finite=True)
        pairs = np.stack([output.ravel().astype(np.float64), targets.ravel().astype(np.float64)], axis=1)
        return Scored(records=list(pairs))

    def values(self, scored: Sequence[Scored]) -> Values:
        """See `Metric.values`."""
        found, targets = np.array([record for part in scored for record in part.records]).T
        rank_found, rank_targets = _Ranks(found), _Ranks(targets)

        def values(weights: Floats) -> Floats:
            return _correlation(rank_found(weights), rank_targets(weights), weights)

        return values


class _Ranks:
    """Mean ranks of values that occur as often as weights say."""

    def __init__(self, values: Floats) -> None:
        self._order = np.argsort(values, kind="stable")
        ordered = values[self._order]
        self._begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        self._group = np.empty(len(values), np.int64)
        self._group[self._order] = np.repeat(
            np.arange(len(self._begins)), np.diff(np.append(self._begins, len(values)))
        )

    def __call__(self, weights: Floats) -> Floats:
        """[resamples, units] to ranks of the same shape."""
        sizes = np.add.reduceat(weights[:, self._order], self._begins, axis=1)
        ranks = np.cumsum(sizes, axis=1) - sizes + (sizes + 1.0) / 2.0
        found: Floats = ranks[:, self._group]
        return found


def _correlation(one: Floats, other: Floats, weights: Floats) -> Floats:
    """Pearson's correlation of each row, weighted."""
    total = weights.sum(axis=1, keepdims=True)
    one = one - (one * weights).sum(axis=1, keepdims=True) / total
    other = other - (other * weights).sum(axis=1, keepdims=True) / total
    product = (weights * one * other).sum(axis=1)
    return divide(product, np.sqrt((weights * one**2).sum(axis=1) * (weights * other**2).sum(axis=1)))
