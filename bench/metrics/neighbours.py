"""Neighbours kept: how many of a sample's nearest samples stay its nearest in the artifact's embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .metric import Outputs, RecordMetric, Scored, Truth, Values, require_numbers

DEFAULT_K = 10
_BLOCK = 1 << 22  # similarities that are held at once

Floats = NDArray[np.float32]


class Neighbours(RecordMetric):
    """Mean over samples of the share of the `k` nearest others, by cosine, that are also the baseline's.

    The first output of shape [batch, size] is the embedding. Neighbours are looked for once, among all
    evaluated samples; of equal similarities the earlier sample is nearer. Resamples draw the samples' shares,
    not their neighbours. A record is (the baseline's embedding, the artifact's), 8 bytes per number.
    """

    needs_labels = False

    def __init__(self, name: str, k: int = DEFAULT_K) -> None:
        self.name, self._k = name, k

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """See `Metric.score`."""
        name = next((name for name, one in reference.items() if one.ndim == 2 and one.shape[1] > 1), None)
        if (
            name is None
            or reference[name].shape != outputs[name].shape
            or len(outputs[name]) != truth.samples
        ):
            shapes = ", ".join(f"{name!r} {one.shape}" for name, one in outputs.items())
            raise DataError(
                f"{truth.where}: outputs {shapes}; embeddings [batch, size] of the baseline's shape are "
                "required",
                hint="export a model that pools its tokens, or give `metric` cosine",
            )
        require_numbers(name, outputs[name], truth.where, finite=True)
        require_numbers(name, reference[name], truth.where, finite=True)
        theirs, mine = (one[name].astype(np.float32, copy=False) for one in (reference, outputs))
        return Scored(records=list(zip(theirs, mine, strict=True)))

    def arrays_of(self, record: tuple[Floats, Floats]) -> tuple[Floats, ...]:
        """See `RecordMetric.arrays_of`."""
        return record

    def record_of(self, arrays: Sequence[Floats]) -> tuple[Floats, Floats]:
        """See `RecordMetric.record_of`."""
        theirs, mine = arrays
        return theirs, mine

    def values(self, scored: Sequence[Scored]) -> Values:
        """See `Metric.values`.

        Raises:
            DataError: If there are no more samples than neighbours.
        """
        records = [record for part in scored for record in part.records]
        if len(records) <= self._k:
            raise DataError(
                f"{self.name}: {len(records)} samples; more than {self._k} are required",
                hint=f"evaluate more samples, or give `metric` neighbours:{max(1, len(records) // 2)}",
            )
        theirs, mine = (np.stack(side) for side in zip(*records, strict=True))
        kept = kept_neighbours(theirs, mine, self._k)

        def values(weights: NDArray[np.float64]) -> NDArray[np.float64]:
            found: NDArray[np.float64] = weights @ kept / weights.sum(axis=1)
            return found

        return values


def kept_neighbours(baseline: Floats, artifact: Floats, k: int) -> NDArray[np.float64]:
    """Return the share of each sample's `k` nearest others that two sets of embeddings share."""
    sides = [_normalized(side) for side in (baseline, artifact)]
    samples = len(baseline)
    rows = max(1, _BLOCK // samples)
    shares = []
    for start in range(0, samples, rows):
        theirs, mine = (_nearest(side, start, min(rows, samples - start), k) for side in sides)
        shares.append((theirs[:, :, None] == mine[:, None, :]).any(axis=2).mean(axis=1))
    return np.concatenate(shares)


def _normalized(embeddings: Floats) -> NDArray[np.float64]:
    wide = embeddings.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(lengths > 0, lengths, 1.0)


def _nearest(embeddings: NDArray[np.float64], start: int, rows: int, k: int) -> NDArray[np.int64]:
    """The `k` nearest others of some samples, [rows, k], nearest first."""
    # Rounded, so that equal embeddings are equally near however the product was computed.
    similarity = np.round(embeddings[start : start + rows] @ embeddings.T, 12)
    similarity[np.arange(rows), start + np.arange(rows)] = -np.inf
    return np.argsort(-similarity, axis=1, kind="stable")[:, :k]
