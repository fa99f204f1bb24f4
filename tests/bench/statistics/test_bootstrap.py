"""The paired interval: against a plain loop, and by how often it holds the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qcompile.bench.metrics.classes import MeanIoU
from qcompile.bench.statistics import FEWEST_UNITS, require_pairs, resampled_interval, resamples
from qcompile.errors import DataError

Array = NDArray[Any]


def interval(baseline: Array, found: Array, *, count: int = 2000) -> tuple[float, float] | None:
    """Of the difference of two means."""
    difference = baseline.astype(np.float64) - found
    return resampled_interval(
        len(baseline), lambda weights: weights @ difference / len(baseline), count=count
    )


def iou_interval(baseline: Array, found: Array) -> tuple[float, float] | None:
    """Of the difference of two mean IoUs, from sums [images, classes, 3]."""

    def mean_iou(weights: Array, statistics: Array) -> Array:
        right, predicted, true = np.moveaxis(np.tensordot(weights, statistics, 1), -1, 0)
        return MeanIoU("miou").average(right, predicted, true, np.arange(statistics.shape[1]))

    return resampled_interval(len(baseline), lambda w: mean_iou(w, baseline) - mean_iou(w, found))


def test_a_plain_loop_over_images_gives_the_same_interval_of_mean_iou() -> None:
    rng = np.random.default_rng(1)
    true = rng.integers(20, 60, (30, 3)).astype(np.float64)
    true[:, 2] *= rng.random(30) < 0.2  # a rare class, absent from some resamples
    baseline, found = (
        np.stack([np.floor(true * share), np.floor(true * (share + 0.2)), true], axis=2)
        for share in (0.7, 0.6)
    )
    found[::2] = baseline[::2]

    def mean_iou(images: Array) -> float:
        right, predicted, pixels = (sums := images.sum(axis=0))[sums[:, 2] > 0].T
        return float(np.mean(right / (predicted + pixels - right)))

    draws = np.random.default_rng(98).integers(30, size=(3000, 30))
    drops = [mean_iou(baseline[chosen]) - mean_iou(found[chosen]) for chosen in draws]
    expected = np.percentile(drops, [2.5, 97.5])
    assert iou_interval(baseline, found) == pytest.approx(expected, abs=0.1 * (expected[1] - expected[0]))


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Right or wrong of 200 samples: 85% against 80%, most samples being as hard for both."""
    rng = np.random.default_rng(7)
    fates = rng.random((300, 200))
    ends = np.array([
        interval((fate < 0.78) | (fate > 0.93), fate < 0.80, count=1000) for fate in fates
    ])  # fmt: skip
    assert 0.90 <= np.mean((ends[:, 0] <= 0.05) & (ends[:, 1] >= 0.05)) <= 0.99
    unpaired = 2 * 1.96 * np.sqrt((0.85 * 0.15 + 0.8 * 0.2) / 200)
    assert np.mean(ends[:, 1] - ends[:, 0]) < 0.8 * unpaired  # what pairing gives


def test_the_same_data_has_the_same_interval_and_identical_answers_none_to_speak_of() -> None:
    values, other = (np.random.default_rng(seed).standard_normal(50) for seed in (2, 3))
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
    few = np.arange(FEWEST_UNITS - 1)
    assert interval(few, few + 1) is None
    with pytest.raises(DataError, match="9 values against 10 of the baseline"):
        require_pairs(10, len(few))


def test_a_resample_without_a_value_is_left_out() -> None:
    baseline = np.zeros((12, 1, 3))
    baseline[0] = [8, 10, 10]  # the other images hold no labelled pixel
    found = baseline.copy()
    found[0] = [6, 10, 10]
    assert iou_interval(baseline, found) == pytest.approx((8 / 12 - 6 / 14, 8 / 12 - 6 / 14))
