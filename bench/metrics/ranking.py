"""Metrics of rankings: nDCG by scikit-learn, Spearman's correlation by scipy, and nearest neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .metric import Floats, Metric, Outputs, Scored, Truth, Values, first_output, require_numbers

DEFAULT_K = 10
_BLOCK = 1 << 22  # similarities that are held at once


class Ndcg(Metric):
    """Mean over samples of scikit-learn's `ndcg_score`, with the relevance itself as the gain.

    The first output is scores [batch, items]; labels are the items' relevance in that shape, 0 or more. A
    sample without a relevant item counts as 0. `k` ranks count; None for all. Columns: value, 1.
    """

    package = ("sklearn", "scikit-learn")

    def __init__(self, name: str, k: int | None = None) -> None:
        super().__init__(name)
        self._k = k

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        from sklearn.metrics import ndcg_score

        name, scores = first_output(outputs, truth.where)
        if truth.labels is None:
            raise DataError(f"{truth.where}: has no labels; {self.name} needs the relevance of each item")
        relevance = np.asarray(truth.labels)
        if scores.ndim != 2 or relevance.shape != scores.shape or scores.shape[1] < 2:
            raise DataError(
                f"{truth.where}: output {name!r} of shape {scores.shape} with labels of shape "
                f"{relevance.shape}; scores [batch, items] of two items or more and their relevance in that "
                "shape are required",
                hint="give `metric` file.py:function for rankings of another form",
            )
        require_numbers(name, scores, truth.where, finite=True)
        require_numbers("labels", relevance, truth.where, finite=True)
        if (relevance < 0).any():
            raise DataError(f"{truth.where}: relevance {relevance.min()}; 0 or more is required")
        pairs = zip(relevance[:, None], scores[:, None], strict=True)
        values = [ndcg_score(*pair, k=self._k) for pair in pairs]
        return Scored(np.stack([values, np.ones(len(values))], axis=1))


class Spearman(Metric):
    """scipy's `spearmanr` of a scalar output with targets; equal values share their mean rank.

    The first output is [batch] or [batch, 1], and so are the targets. Columns: output, target.
    """

    package = ("scipy", "scipy")
    resamples = 1000
    undefined = "outputs or targets are all equal; values that differ are required"

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
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
        return Scored(np.stack([output.ravel(), targets.ravel()], axis=1).astype(np.float64))

    def values(self, scored: Scored) -> Values:
        from scipy.stats import spearmanr

        def value(weights: Floats) -> float:
            pairs = np.repeat(scored.table, weights.astype(int), axis=0)
            if not len(pairs) or not np.ptp(pairs, axis=0).all():
                return float("nan")
            return float(spearmanr(*pairs.T).statistic)

        return lambda weights: np.array([value(row) for row in weights])


class Neighbours(Metric):
    """Mean over samples of the share of the `k` nearest others, by cosine, that are also the baseline's.

    The first output of shape [batch, size] is the embedding. Neighbours are looked for once, among all
    evaluated samples; of equal similarities the earlier sample is nearer. Resamples draw the samples' shares,
    not their neighbours. Columns, in float32: the baseline's embedding, then the artifact's.
    """

    needs_labels = False

    def __init__(self, name: str, k: int = DEFAULT_K) -> None:
        super().__init__(name)
        self._k = k

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        name = next((name for name, array in reference.items() if array.ndim == 2 and array.shape[1] > 1), "")
        if not name or reference[name].shape != outputs[name].shape or len(outputs[name]) != truth.samples:
            shapes = ", ".join(f"{name!r} {array.shape}" for name, array in outputs.items())
            raise DataError(
                f"{truth.where}: outputs {shapes}; embeddings [batch, size] of the baseline's shape are "
                "required",
                hint="export a model that pools its tokens, or give `metric` cosine",
            )
        for side in (outputs, reference):
            require_numbers(name, side[name], truth.where, finite=True)
        return Scored(np.concatenate([reference[name], outputs[name]], axis=1).astype(np.float32))

    def values(self, scored: Scored) -> Values:
        """See `Metric.values`."""
        if scored.units <= self._k:
            raise DataError(
                f"{self.name}: {scored.units} samples; more than {self._k} are required",
                hint=f"evaluate more samples, or give `metric` neighbours:{max(1, scored.units // 2)}",
            )
        baseline, artifact = np.split(scored.table, 2, axis=1)
        kept = kept_neighbours(baseline, artifact, self._k)
        return lambda weights: weights @ kept / weights.sum(axis=1)


def kept_neighbours(baseline: NDArray[np.float32], artifact: NDArray[np.float32], k: int) -> Floats:
    """Return the share of each sample's `k` nearest others that two sets of embeddings share."""
    sides = []
    for embeddings in (baseline, artifact):
        lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
        sides.append(embeddings / np.where(lengths > 0, lengths, 1.0))
    samples, shares = len(baseline), []
    rows = max(1, _BLOCK // samples)
    for start in range(0, samples, rows):
        theirs, mine = (_nearest(side, np.arange(start, min(start + rows, samples)), k) for side in sides)
        shares.append((theirs[:, :, None] == mine[:, None, :]).any(axis=2).mean(axis=1))
    return np.concatenate(shares)


def _nearest(embeddings: Floats, samples: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """The `k` nearest others of some samples, [samples, k], nearest first."""
    # Rounded, so that equal embeddings are equally near however the product was computed.
    similarity = np.round(embeddings[samples] @ embeddings.T, 12)
    similarity[np.arange(len(samples)), samples] = -np.inf
    return np.argsort(-similarity, axis=1, kind="stable")[:, :k]
