"""The paired interval: against a plain loop, and by how often it holds the truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from qcompile.bench.metrics.classes import MeanIoU
from qcompile.bench.statistics.bootstrap import (
    FEWEST_UNITS,
    require_pairs,
    resampled_interval,
    resamples,
)
from qcompile.errors import DataError

Array = NDArray[np.float64]


def mean_drop(theirs: Array, mine: Array) -> Array:
    """Of a sum and its weight."""
    found: Array = theirs[:, 0] / theirs[:, 1] - mine[:, 0] / mine[:, 1]
    return found


def with_weights(values: NDArray[np.generic]) -> Array:
    return np.stack([values.astype(np.float64), np.ones(len(values))], axis=1)


def weighted_sums(weights: NDArray[np.float64], statistics: Array) -> Array:
    """Return the sums of statistics [units, ...] over units drawn so often, as [resamples, ...]."""
    flat = statistics.reshape(len(statistics), -1)
    return (weights @ flat).reshape(len(weights), *statistics.shape[1:])


def paired_interval(
    baseline: Array, found: Array, drop: Callable[[Array, Array], Array], count: int = 2000
) -> tuple[float, float] | None:
    """Of a drop that is a function of sums of statistics, [units, ...]."""
    return resampled_interval(
        len(baseline), lambda w: drop(weighted_sums(w, baseline), weighted_sums(w, found)), count=count
    )


def interval(baseline: Array, found: Array, *, count: int = 2000) -> tuple[float, float]:
    result = paired_interval(baseline, found, mean_drop, count=count)
    assert result is not None
    return result


def test_a_plain_loop_gives_the_same_interval() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(60) + 1.0, rng.standard_normal(60)
    low, high = interval(with_weights(a), with_weights(b))
    other = np.random.default_rng(99)  # draws of its own
    drops = []
    for _ in range(8000):
        chosen = [int(other.integers(60)) for _ in range(60)]
        drops.append(sum(a[i] - b[i] for i in chosen) / 60)
    expected = np.percentile(drops, [2.5, 97.5])
    width = expected[1] - expected[0]
    assert [low, high] == pytest.approx(expected, abs=0.06 * width)


def iou(metric: MeanIoU, sums: Array) -> Array:
    """The metric of sums [resamples, classes, 3]."""
    right, predicted, true = np.moveaxis(sums, -1, 0)
    return metric.average(right, predicted, true, np.arange(sums.shape[-2]))


def test_a_plain_loop_over_images_gives_the_same_interval_of_mean_iou() -> None:
    rng = np.random.default_rng(1)
    images, classes = 30, 3
    true = rng.integers(20, 60, (images, classes)).astype(np.float64)
    true[:, 2] *= rng.random(images) < 0.2  # a rare class, absent from some resamples

    def answers(share: float) -> Array:
        return np.stack([np.floor(true * share), np.floor(true * (share + 0.2)), true], axis=2)

    baseline = answers(0.7)
    found = answers(0.6)
    found[::2] = baseline[::2]
    metric = MeanIoU("miou")
    result = paired_interval(baseline, found, lambda a, b: iou(metric, a) - iou(metric, b))
    other, drops = np.random.default_rng(98), []
    for _ in range(3000):
        chosen = other.integers(images, size=images)
        means = []
        for answer in (baseline, found):
            ious = []
            for label in range(classes):
                inside, predicted, pixels = (sum(answer[i, label, j] for i in chosen) for j in range(3))
                if pixels:
                    ious.append(inside / (predicted + pixels - inside))
            means.append(sum(ious) / len(ious))
        drops.append(means[0] - means[1])
    expected = np.percentile(drops, [2.5, 97.5])
    assert result == pytest.approx(expected, abs=0.1 * (expected[1] - expected[0]))


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Right or wrong of 200 samples: 85% against 80%, most samples being as hard for both."""
    rng, held, widths, unpaired = np.random.default_rng(7), 0, [], []
    datasets = 300
    for _ in range(datasets):
        fate = rng.random(200)
        baseline = (fate < 0.78) | (fate > 0.93)  # 0.85
        found = (fate < 0.78) | ((fate > 0.78) & (fate < 0.80))  # 0.80
        low, high = interval(with_weights(baseline), with_weights(found), count=1000)
        held += low <= 0.05 <= high
        widths.append(high - low)
        unpaired.append(2 * 1.96 * np.sqrt((0.85 * 0.15 + 0.8 * 0.2) / 200))
    assert 0.90 <= held / datasets <= 0.99
    assert np.mean(widths) < 0.8 * np.mean(unpaired)  # what pairing gives


def test_equal_artifacts_are_said_to_differ_as_seldom_as_it_says() -> None:
    rng, wrong = np.random.default_rng(8), 0
    for _ in range(300):
        fate = rng.random(300)
        baseline, found = fate < 0.85, (fate < 0.80) | (fate > 0.95)  # 85% both, on other samples
        low, high = interval(with_weights(baseline), with_weights(found), count=1000)
        wrong += not low <= 0.0 <= high
    assert wrong / 300 <= 0.09


def test_the_same_data_has_the_same_interval_and_identical_answers_none_to_speak_of() -> None:
    values = with_weights(np.random.default_rng(2).standard_normal(50))
    other = with_weights(np.random.default_rng(3).standard_normal(50))
    assert interval(values, other) == interval(values.copy(), other.copy())
    assert interval(values, values.copy()) == (0.0, 0.0)


def test_every_resample_draws_as_many_as_there_are() -> None:
    rows = np.concatenate(list(resamples(1000, 2500)))  # more than is drawn at once
    assert rows.shape == (2500, 1000)
    assert (rows.sum(axis=1) == 1000).all()
    assert rows.mean(axis=0) == pytest.approx(np.ones(1000), abs=0.15)
    assert len(np.unique(rows, axis=0)) == 2500
    assert (rows == 0).mean() == pytest.approx(np.exp(-1), abs=0.01)  # each is left out with 1/e


def test_few_units_and_units_that_do_not_pair_have_no_interval() -> None:
    few = with_weights(np.arange(FEWEST_UNITS - 1))
    assert paired_interval(few, few + 1, mean_drop) is None
    with pytest.raises(DataError, match="9 values against 10 of the baseline"):
        require_pairs(10, len(few))


def test_a_resample_without_a_value_is_left_out() -> None:
    metric = MeanIoU("miou")
    baseline = np.zeros((12, 1, 3))
    baseline[0] = [8, 10, 10]  # the other images hold no labelled pixel
    found = baseline.copy()
    found[0] = [6, 10, 10]
    result = paired_interval(baseline, found, lambda a, b: iou(metric, a) - iou(metric, b))
    assert result == pytest.approx((8 / 12 - 6 / 14, 8 / 12 - 6 / 14))
