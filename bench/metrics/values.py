"""Metrics of output values: cosine, mean squared error, nDCG, Spearman, neighbours, and a user's function.

Cosine and mean squared error compare the first output with the labels if these are targets. Without labels,
or with classes (whole numbers in another shape than the output's), they compare every output with the
baseline's; the baseline's value is then 1 or 0.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core.figures import counted
from ...errors import DataError, InvalidOption
from ...model.outputs.masks import without_masks
from ...model.sources.source import parse_source
from ...model.sources.user_code import call, load_function
from .metric import Floats, Metric, Outputs, Scored, Truth, Values, first_output, labels_of, require_numbers

PerSample = Callable[[Floats, Floats], Floats]


def cosine(actual: Floats, expected: Floats) -> Floats:
    """Return the cosine of each pair of rows, [samples, elements] to [samples].

    Equal rows, including zeros, yield 1; any other row against zeros yields 0.
    """
    # Scale first: the square of a large float32 fits into float64, that of a large float64 does not.
    actual, expected = (rows / _power_of_two_scale(rows) for rows in (actual, expected))
    lengths = np.linalg.norm(actual, axis=1) * np.linalg.norm(expected, axis=1)
    products = (actual * expected).sum(axis=1)
    equal = (actual == expected).all(axis=1)
    return np.where(equal, 1.0, products / np.where(lengths > 0, lengths, 1.0))


def mean_squared_error(actual: Floats, expected: Floats) -> Floats:
    """Return the mean squared error of each pair of rows, [samples, elements] to [samples]."""
    return np.asarray(np.square(actual - expected).mean(axis=1))


class Similarity(Metric):
    """Mean over samples of a comparison with the targets, or with the baseline's outputs."""

    def __init__(
        self, name: str, compare: PerSample, *, unit: Literal["points", "units"], higher_is_better: bool
    ) -> None:
        super().__init__(name)
        self._compare = compare
        self.unit, self.higher_is_better, self.needs_labels = unit, higher_is_better, False

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        sides: list[list[Floats]] = []
        for name, actual, expected in _output_pairs(outputs, reference, truth):
            actual, expected = (by_sample(name, side, truth) for side in (actual, expected))
            a, b, _, unmasked = without_masks(expected, actual)
            if not unmasked:
                expected, actual = a, b
            require_numbers(name, actual, truth.where, finite=True)
            require_numbers(f"{name} (expected)", expected, truth.where, finite=True)
            sides.append([side.reshape(len(side), -1).astype(np.float64) for side in (actual, expected)])
        if self._compare is cosine and all(actual.shape[1] == 1 for actual, _ in sides):
            return _score_single_numbers(sides)
        mean = np.mean([self._compare(*pair) for pair in sides], axis=0)
        return Scored(np.stack([mean, np.ones(len(mean))], axis=1))


def _score_single_numbers(sides: Sequence[Sequence[Floats]]) -> Scored:
    """Score samples of one number each as 1 − Σ|error| / Σ|expected|, since their cosine is only a sign."""
    actual, expected = np.concatenate(sides, axis=2)
    errors = np.abs(actual - expected)
    sizes = np.maximum(np.abs(expected), errors) + np.finfo(np.float32).tiny
    return Scored(np.stack([(sizes - errors).mean(axis=1), sizes.mean(axis=1)], axis=1))


def by_sample(name: str, array: NDArray[Any], truth: Truth) -> NDArray[Any]:
    """Return an output with its samples on the first axis, moved from the first axis of that extent.

    An LSTM returns its states as [directions, batch, hidden]. With one sample, the output is that sample.
    """
    if truth.samples == 1 and array.shape[:1] != (1,):
        return array[None]
    axis = next((axis for axis, extent in enumerate(array.shape) if extent == truth.samples), None)
    if axis is None:
        raise DataError(
            f"{truth.where}: output {name!r} of shape {array.shape} for {truth.samples} samples; "
            "an axis of samples is required",
            hint="give `metric` file.py:function, which may choose among the outputs",
        )
    return np.moveaxis(array, axis, 0)


class UserMetric(Metric):
    """`file.py:function`, called with a batch's outputs (name to array) and labels (None if missing).

    It returns one value per sample, or one number for the batch. That number has the weight of the batch's
    samples, and the batch is resampled as a whole. `function.higher_is_better = False` if less is better.
    """

    unit = "units"
    needs_labels = False

    def __init__(self, text: str, *, base: Path | None = None) -> None:
        super().__init__(text)
        self._source = parse_source(text, base=base)
        self._function: Callable[..., Any] = load_function(self._source)
        better = getattr(self._function, "higher_is_better", True)
        if not isinstance(better, bool):
            raise InvalidOption(f"metric {text}: higher_is_better is {better!r}; True or False is required")
        self.higher_is_better = better

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        # Copies, because the function may change arrays that other artifacts are compared with.
        copies, labels = copy.deepcopy((dict(outputs), truth.labels))
        returned = call(lambda: self._function(copies, labels), self._source)
        if hasattr(returned, "detach"):  # a torch tensor, without importing torch
            returned = returned.detach().cpu().numpy()
        values = None
        is_number = isinstance(returned, int | float | np.generic | np.ndarray | list | tuple)
        if is_number and not isinstance(returned, bool):
            with contextlib.suppress(ValueError):  # lists of different lengths
                array = np.asarray(returned)
                values = array.astype(np.float64) if array.dtype.kind in "fiub" else None
        if values is None or values.shape not in ((), (truth.samples,)):
            description = type(returned).__name__ if values is None else f"an array of shape {values.shape}"
            raise DataError(
                f"metric {self.name}: returned {description} for the {truth.samples} samples of {truth.where}"
                "; one value per sample or one number is required"
            )
        if not np.isfinite(values).all():
            raise DataError(
                f"metric {self.name}: returned {values[~np.isfinite(values)].ravel()[0]} for {truth.where}; "
                "finite numbers are required"
            )
        weight = np.full(values.size, truth.samples / values.size)
        return Scored(np.stack([values.ravel() * weight, weight], axis=1))


def _power_of_two_scale(rows: Floats) -> Floats:
    """Return a power of two near each row's largest magnitude; division by it leaves all mantissas."""
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    return np.asarray(np.ldexp(1.0, np.frexp(largest)[1] - 1))


def _output_pairs(
    outputs: Outputs, reference: Outputs, truth: Truth
) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    name, first = first_output(outputs, truth.where)
    labels = None if truth.labels is None else np.asarray(truth.labels)
    if labels is not None:
        shapes = [[extent for extent in array.shape[1:] if extent != 1] for array in (labels, first)]
        if shapes[0] == shapes[1] and len(labels) == truth.samples:
            yield name, first, labels.reshape(first.shape)
            return
        if labels.dtype.kind not in "iub":
            raise DataError(
                f"{truth.where}: targets of shape {labels.shape}; the shape of output {name!r}, "
                f"{first.shape}, is required"
            )
    for name, expected in reference.items():
        if outputs[name].shape != expected.shape:
            raise DataError(
                f"{truth.where}: output {name!r} is of shape {outputs[name].shape}; the baseline's, "
                f"{expected.shape}, is required"
            )
        yield name, outputs[name], expected


DEFAULT_K = 10
_BLOCK = 1 << 22  # similarities in memory at once


class Ndcg(Metric):
    """Mean over samples of scikit-learn's `ndcg_score`, with the relevance itself as the gain.

    The first output is scores [batch, items]; labels are the items' relevance in that shape, 0 or more. A
    sample without a relevant item counts as 0. `k` is the number of ranks; None for all. Columns: value, 1.
    """

    package = ("sklearn", "scikit-learn")

    def __init__(self, name: str, k: int | None = None) -> None:
        super().__init__(name)
        self._k = k

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        from sklearn.metrics import ndcg_score

        name, scores = first_output(outputs, truth.where)
        relevance = labels_of(truth, self.name, "the relevance of each item")
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

    Output and targets are [batch] or [batch, 1]. Columns: output, target.
    """

    package = ("scipy", "scipy")
    is_mean = False
    resamples = 1000
    undefined = "outputs or targets are all equal; values that differ are required"

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        name, output = first_output(outputs, truth.where)
        targets = labels_of(truth, self.name, "a target of each sample")
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

    The first output of shape [batch, size] is the embedding. Neighbours are computed once, among all
    evaluated samples; of equal similarities the earlier sample is nearer. Resampling draws the samples'
    shares, not their neighbours. Columns, in float32: the baseline's embedding, then the artifact's.
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

    def unit_sums(self, scored: Scored) -> Floats:
        if scored.units <= self._k:
            raise DataError(
                f"{self.name}: {counted(scored.units, 'sample')}; more than {self._k} are required",
                hint=f"evaluate more samples, or give `metric` neighbours:{max(1, scored.units // 2)}",
            )
        baseline, artifact = np.split(scored.table, 2, axis=1)
        shares = shared_neighbours(baseline, artifact, self._k)
        return np.stack([shares, np.ones(len(shares))], axis=1)


def shared_neighbours(baseline: NDArray[np.float32], artifact: NDArray[np.float32], k: int) -> Floats:
    """Return, for each sample, the share of its `k` nearest neighbours common to two sets of embeddings."""
    sides = []
    for embeddings in (baseline, artifact):
        lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
        sides.append(embeddings / np.where(lengths > 0, lengths, 1.0))
    samples, shares = len(baseline), []
    rows = max(1, _BLOCK // samples)
    for start in range(0, samples, rows):
        block, nearest = np.arange(start, min(start + rows, samples)), []
        for side in sides:
            # Rounding makes equal embeddings equally near, independent of the order of the sums.
            similarity = np.round(side[block] @ side.T, 12)
            similarity[np.arange(len(block)), block] = -np.inf
            nearest.append(np.argsort(-similarity, axis=1, kind="stable")[:, :k])
        baseline_nearest, artifact_nearest = nearest
        shares.append((baseline_nearest[:, :, None] == artifact_nearest[:, None, :]).any(axis=2).mean(axis=1))
    return np.concatenate(shares)
