"""Intervals of a drop: against scipy, brute force and plain loops, and how often they hold the truth."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from qcompile.bench.metrics.bounds import (
    FEWEST_UNITS,
    clopper_pearson,
    fewest_samples,
    require_pairs,
    resampled_interval,
    resamples,
    right_or_wrong_interval,
    samples_that_prove,
    tail_of,
)
from qcompile.bench.metrics.classes import MeanIoU
from qcompile.errors import DataError

Array = NDArray[Any]
TAIL = tail_of(1)


def score_of_the_likeliest(lost: int, gained: int, samples: int, drop: float) -> float:
    """The score of a drop; the share of gained answers is looked for on a grid, ever finer."""
    rest = samples - lost - gained
    low, high = max(0.0, -drop), (1.0 - drop) / 2.0
    for _ in range(12):
        grid = np.linspace(low, high, 41)[1:-1]
        likelihood = lost * np.log(grid + drop) + gained * np.log(grid) + rest * np.log1p(-2.0 * grid - drop)
        best, step = grid[likelihood.argmax()], grid[1] - grid[0]
        low, high = max(low, best - step), min(high, best + step)
    deviation = math.sqrt(samples * (2.0 * best + drop - drop * drop))
    return (lost - gained - samples * drop) / deviation


@pytest.mark.parametrize(
    ("lost", "gained", "samples"), [(40, 20, 160), (3, 1, 50), (0, 7, 200), (12, 12, 30)]
)
def test_the_ends_are_the_drops_that_the_score_test_just_does_not_reject(
    lost: int, gained: int, samples: int
) -> None:
    z = stats.norm.ppf(1.0 - TAIL)
    low, high = right_or_wrong_interval(lost, gained, samples, TAIL)
    assert score_of_the_likeliest(lost, gained, samples, high) == pytest.approx(-z, abs=2e-3)
    assert score_of_the_likeliest(lost, gained, samples, low) == pytest.approx(z, abs=2e-3)
    assert low <= (lost - gained) / samples <= high


@pytest.mark.parametrize("samples", [10, 50, 500, 5000])
@pytest.mark.parametrize("candidates", [1, 6])
def test_without_a_changed_answer_the_bound_is_not_zero(samples: int, candidates: int) -> None:
    z = stats.norm.ppf(1.0 - 0.025 / candidates)
    low, high = right_or_wrong_interval(0, 0, samples, tail_of(candidates))
    assert (low, high) == pytest.approx((-z * z / (samples + z * z), z * z / (samples + z * z)))
    assert high > 1.0 - 0.05 ** (1 / samples)  # the exact one-sided bound of 95%


def test_fewer_than_ten_samples_have_exact_bounds() -> None:
    low, high = right_or_wrong_interval(1, 0, FEWEST_UNITS - 1, TAIL)
    exact = stats.binomtest(1, FEWEST_UNITS - 1), stats.binomtest(0, FEWEST_UNITS - 1)
    highs = [test.proportion_ci(0.95, "exact").high for test in exact]
    assert (-low, high) == pytest.approx((highs[1], highs[0]))


@given(st.integers(1, 400), st.data())
def test_exact_bounds_are_those_of_scipy(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    exact = stats.binomtest(successes, trials).proportion_ci(0.95, "exact")
    assert clopper_pearson(successes, trials, 0.025) == pytest.approx((exact.low, exact.high), abs=1e-9)


@functools.cache
def every_outcome(samples: int) -> tuple[Array, Array]:
    """Samples lost, gained and neither, [outcomes, 3], and the upper end of each."""
    pairs = itertools.product(range(samples + 1), repeat=2)
    outcomes = np.array([(*pair, samples - sum(pair)) for pair in pairs if sum(pair) <= samples])
    highs = [right_or_wrong_interval(lost, gained, samples, TAIL)[1] for lost, gained, _ in outcomes]
    return outcomes, np.array(highs)


@pytest.mark.parametrize("samples", [10, 25, 50])
@pytest.mark.parametrize("drop", [0.0, 0.002, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("gained", [0.0, 0.005, 0.05, 0.2])
def test_the_upper_end_holds_the_true_drop_in_95_percent_of_all_outcomes(
    samples: int, drop: float, gained: float
) -> None:
    """Every outcome with its probability, in place of a simulation."""
    shares = (gained + drop, gained, 1.0 - 2.0 * gained - drop)
    outcomes, highs = every_outcome(samples)
    assert stats.multinomial.pmf(outcomes[highs >= drop], samples, shares).sum() >= 0.95


@pytest.mark.parametrize("candidates", [1, 6])
def test_the_bound_of_the_best_of_several_candidates_holds(candidates: int) -> None:
    """Of candidates that all lose a point, the one that seems best is chosen on the same 500 samples."""
    releases, samples, drop = 2000, 500, 0.01
    generator = np.random.default_rng(5)
    shares = (0.02 + drop, 0.02, 1.0 - 0.04 - drop)
    counts = generator.multinomial(samples, shares, size=(releases, candidates))
    uncorrected, corrected = 0, 0
    for release in counts:
        lost, gained, _ = min(release.tolist(), key=lambda count: count[0] - count[1])
        uncorrected += right_or_wrong_interval(lost, gained, samples, TAIL)[1] >= drop
        corrected += right_or_wrong_interval(lost, gained, samples, tail_of(candidates))[1] >= drop
    assert 0.95 * releases <= corrected <= 0.99 * releases
    assert uncorrected == corrected if candidates == 1 else uncorrected < 0.92 * releases


@given(st.floats(0.0005, 0.2), st.integers(1, 40))
def test_a_budget_is_proven_by_the_stated_number_of_unchanged_samples_and_by_no_fewer(
    max_drop: float, candidates: int
) -> None:
    count, tail = fewest_samples(max_drop, candidates), tail_of(candidates)
    assert right_or_wrong_interval(0, 0, count, tail)[1] <= max_drop
    assert count == FEWEST_UNITS or right_or_wrong_interval(0, 0, count - 1, tail)[1] > max_drop


def test_more_samples_that_change_as_often_prove_a_budget_unless_the_drop_exceeds_it() -> None:
    count = samples_that_prove(3, 1, 500, 0.01)
    assert count is not None
    assert right_or_wrong_interval(3 * count / 500, count / 500, count, TAIL)[1] <= 0.01
    assert samples_that_prove(6, 1, 500, 0.01) is None
    with pytest.raises(DataError, match="a drop of 0 cannot be proven"):
        fewest_samples(0.0)


def interval(baseline: Array, found: Array, *, count: int = 2000) -> tuple[float, float] | None:
    """Of the difference of two means."""
    difference = baseline.astype(np.float64) - found
    return resampled_interval(
        len(baseline),
        lambda weights: weights @ difference / len(baseline),
        tail=TAIL,
        added=None,
        count=count,
    )


def iou_interval(baseline: Array, found: Array) -> tuple[float, float] | None:
    """Of the difference of two mean IoUs, from sums [images, classes, 3]."""

    def mean_iou(weights: Array, statistics: Array) -> Array:
        right, predicted, true = np.moveaxis(np.tensordot(weights, statistics, 1), -1, 0)
        return MeanIoU("miou").average(right, predicted, true, np.arange(statistics.shape[1]))

    return resampled_interval(
        len(baseline), lambda w: mean_iou(w, baseline) - mean_iou(w, found), tail=TAIL, added=None
    )


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


def test_the_same_data_has_the_same_interval() -> None:
    values, other = (np.random.default_rng(seed).standard_normal(50) for seed in (2, 3))
    assert interval(values, other) == interval(values.copy(), other.copy())


def test_every_resample_draws_as_many_as_there_are() -> None:
    rows = np.concatenate(list(resamples(1000, 2500)))  # more than is drawn at once
    assert rows.shape == (2500, 1000)
    assert (rows.sum(axis=1) == 1000).all()
    assert rows.mean(axis=0) == pytest.approx(np.ones(1000), abs=0.15)
    assert len(np.unique(rows, axis=0)) == 2500
    assert (rows == 0).mean() == pytest.approx(np.exp(-1), abs=0.01)  # each is left out with 1/e


def test_units_that_do_not_pair_are_refused() -> None:
    with pytest.raises(DataError, match="9 values, 10 of the baseline"):
        require_pairs(10, 9)


def test_a_resample_without_a_value_is_left_out() -> None:
    baseline = np.zeros((12, 1, 3))
    baseline[0] = [8, 10, 10]  # the other images hold no labelled pixel
    found = baseline.copy()
    found[0] = [6, 10, 10]
    assert iou_interval(baseline, found) == pytest.approx((8 / 12 - 6 / 14, 8 / 12 - 6 / 14))


@pytest.mark.parametrize("samples", [10, 100, 1000])
def test_an_added_sample_that_loses_all_makes_the_exact_bound_where_no_answer_changed(samples: int) -> None:
    found = resampled_interval(samples, lambda weights: 0.0 * weights[:, 0], tail=TAIL, added=(-1.0, 1.0))
    assert found is not None
    assert found[1] == pytest.approx(clopper_pearson(0, samples, TAIL)[1], rel=0.1)
    assert found[0] == -found[1]


@pytest.mark.parametrize("samples", [30, 200])
def test_the_bound_of_scores_holds_where_few_samples_lose_most(samples: int) -> None:
    """Drops of an exponential distribution: half of their sum is that of a sixth of the samples."""
    generator, covered, plain, releases = np.random.default_rng(11), 0, 0, 400
    for _ in range(releases):
        drops = generator.exponential(0.01, samples)
        ends = [
            resampled_interval(
                samples, lambda weights, drops=drops: weights @ drops / weights.sum(axis=1), tail=TAIL,
                added=added, count=1000,
            )
            for added in ((0.0, drops.max()), None)
        ]  # fmt: skip
        assert ends[0] is not None
        assert ends[1] is not None
        covered += ends[0][1] >= 0.01
        plain += ends[1][1] >= 0.01
    assert covered >= 0.95 * releases
    assert plain < covered
