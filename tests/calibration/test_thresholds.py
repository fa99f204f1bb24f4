from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.thresholds import (
    METHODS,
    Method,
    amax,
    amax_entropy,
    amax_minmax,
    amax_percentile,
    entropy_divergences,
)
from qcompile.errors import CalibrationError, InvalidOption

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda generator, size: generator.standard_normal(size),
    "laplace": lambda generator, size: generator.laplace(size=size),
    "uniform": lambda generator, size: generator.uniform(-3, 3, size),
    "relu": lambda generator, size: np.maximum(generator.standard_normal(size), 0),
    "sparse": lambda generator, size: generator.standard_normal(size) * (generator.random(size) < 0.05),
    "outlier": lambda generator, size: np.append(generator.standard_normal(size - 1), 40.0),
}


def draw(name: str, size: int, seed: int = 0) -> NDArray[np.float32]:
    return DISTRIBUTIONS[name](np.random.default_rng(seed), size).astype(np.float32)


def histogram(values: NDArray[np.float32]) -> Histogram:
    made = Histogram()
    made.add(values)
    return made


def divergence(counts: list[float], kept: int, levels: int) -> float:
    """KL(P‖Q) of one candidate, bin by bin, as the docstring of `amax_entropy` defines it."""
    clipped = counts[:kept]
    p = list(clipped)
    p[-1] += sum(counts[kept:])
    level_sum, level_bins = [0.0] * levels, [0] * levels
    for j in range(kept):
        level = j * levels // kept
        level_sum[level] += clipped[j]
        level_bins[level] += p[j] > 0
    q = [0.0] * kept
    for j in range(kept):
        if p[j] > 0:
            level = j * levels // kept
            q[j] = level_sum[level] / level_bins[level]
    sum_p, sum_q = math.fsum(p), math.fsum(q)
    terms = []
    for j in range(kept):
        if p[j] > 0:
            if q[j] == 0:
                return math.inf
            terms.append(p[j] / sum_p * math.log((p[j] / sum_p) / (q[j] / sum_q)))
    return math.fsum(terms)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_divergences_are_those_of_the_definition(name: str, seed: int) -> None:
    values = np.abs(draw(name, 30 * 4**seed, seed).astype(np.float64))
    bins, levels = 96 + 7 * seed, (4, 8, 13, 16, 32, 64)[seed]
    counts = np.histogram(values, bins)[0].astype(np.float64)
    candidates = np.arange(levels, bins + 1)
    expected = [divergence(counts.tolist(), int(kept), levels) for kept in candidates]
    found = entropy_divergences(counts, candidates, levels)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_chosen_threshold_is_the_best_by_the_definition(name: str) -> None:
    made = histogram(draw(name, 5000))
    counts = made.magnitudes().astype(np.float64)
    counts[0] = counts[1]
    last = int(np.flatnonzero(counts)[-1])
    chosen = amax_entropy(made)
    # The last candidate keeps everything, so it is cut at the largest magnitude itself.
    kept = last + 1 if chosen == amax_minmax(made) else round(chosen / made.width)
    best = divergence(counts.tolist(), kept, 128)
    others = np.random.default_rng(0).integers(128, last + 2, 12)
    assert math.isfinite(best)
    assert all(best <= divergence(counts.tolist(), int(other), 128) + 1e-12 for other in others)


def test_a_candidate_whose_last_bins_are_empty_is_never_chosen_over_a_full_one() -> None:
    counts = np.zeros(16)
    counts[[0, 1, 2, 15]] = 10
    found = entropy_divergences(counts, np.array([8, 16]), 4)
    assert math.isinf(found[0])
    assert math.isfinite(found[1])


def test_entropy_cuts_an_outlier_and_keeps_a_uniform_whole() -> None:
    outlier, uniform = histogram(draw("outlier", 100_000)), histogram(draw("uniform", 100_000))
    assert amax_entropy(outlier) < 10 < amax_minmax(outlier)
    assert amax_entropy(uniform) == pytest.approx(3, rel=0.01)


def test_the_spike_of_a_relu_at_zero_does_not_decide() -> None:
    values = draw("relu", 20_000)
    more_zeros = np.append(values, np.zeros(500_000, np.float32))
    assert amax_entropy(histogram(values)) == amax_entropy(histogram(more_zeros))


@pytest.mark.parametrize("percentile", [1.0, 50.0, 99.0, 99.9, 99.99, 100.0])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_percentile_is_within_one_bin_of_numpys(name: str, percentile: float) -> None:
    values = draw(name, 20_000)
    made = histogram(values)
    expected = float(np.percentile(np.abs(values.astype(np.float64)), percentile))
    assert abs(amax_percentile(made, percentile) - expected) <= made.width


@settings(deadline=None)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30),
    st.floats(0.01, 100) | st.sampled_from([99.9, 99.99, 100.0]),
)
def test_a_percentile_of_few_values_is_within_one_bin_of_numpys(
    values: list[float], percentile: float
) -> None:
    made = histogram(np.array(values, np.float32))
    expected = float(np.percentile(np.abs(np.array(values, np.float32).astype(np.float64)), percentile))
    assert abs(amax_percentile(made, percentile) - expected) <= made.width * (1 + 1e-9)


def test_a_high_percentile_of_few_values_does_not_cut_the_largest() -> None:
    made = histogram(np.array([1, 1, 1, 1, 100], np.float32))
    assert amax_percentile(made, 99.99) == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("values", [[-3.7, 1.0], [0.1, 2.3], [-0.5], [0.0], [-1e-40, 1e-41], [3e38]])
def test_minmax_is_the_largest_magnitude_exactly(values: list[float]) -> None:
    array = np.array(values, np.float32)
    assert amax_minmax(histogram(array)) == float(np.abs(array).max())


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=50))
def test_no_method_goes_above_the_largest_magnitude(values: list[float]) -> None:
    array = np.array(values, np.float32)
    made, largest = histogram(array), float(np.abs(array).max())
    for method in METHODS:
        assert 0 <= amax(made, method) <= largest
        assert (amax(made, method) > 0) == (largest > 0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_scaling_by_a_power_of_two_scales_every_threshold(name: str, method: Method) -> None:
    values = draw(name, 3000)
    assert amax(histogram(values * 1024), method) == amax(histogram(values), method) * 1024


@pytest.mark.parametrize("method", METHODS)
def test_the_sign_of_values_off_the_edges_does_not_matter(method: Method) -> None:
    values = draw("normal", 3000)
    assert amax(histogram(values), method) == amax(histogram(-values), method)


def test_fewer_bits_cut_lower() -> None:
    made = histogram(draw("normal", 200_000))
    assert amax_entropy(made, num_bits=4) < amax_entropy(made, num_bits=8)


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_histogram_has_no_threshold(method: Method) -> None:
    with pytest.raises(CalibrationError, match="no values were observed"):
        amax(Histogram(), method)


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match="known are minmax, percentile, entropy"):
        amax(histogram(draw("normal", 10)), "kl")  # type: ignore[arg-type]


@pytest.mark.parametrize("percentile", [0.0, -1.0, 100.1, math.nan])
def test_a_percentile_out_of_range_is_refused(percentile: float) -> None:
    with pytest.raises(InvalidOption, match="above 0 and at most 100"):
        amax_percentile(histogram(draw("normal", 10)), percentile)


def test_values_of_which_all_magnitudes_are_equal_are_kept_whole() -> None:
    made = histogram(np.array([2.5, -2.5] * 100, np.float32))
    assert {method: amax(made, method) for method in METHODS} == dict.fromkeys(METHODS, 2.5)
    assert made.magnitudes().shape == (BINS,)
