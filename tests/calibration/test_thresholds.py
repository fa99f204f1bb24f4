from __future__ import annotations

import math

import numpy as np
import pytest
from distributions import DISTRIBUTIONS, draw, histogram
from hypothesis import given, settings
from hypothesis import strategies as st

from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.thresholds import (
    METHODS,
    Method,
    amax,
    amax_auto,
    amax_by_method,
    amax_entropy,
    amax_minmax,
    amax_percentile,
)
from qcompile.errors import CalibrationError

EVERY_METHOD = [Method(name) for name in METHODS]


BOTH_WAYS = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])


BY_EVERY_METHOD = pytest.mark.parametrize("method", EVERY_METHOD, ids=str)


@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=200),
    st.floats(0.001, 100) | st.sampled_from([50.0, 99.9, 99.99, 100.0]),
)
def test_a_percentile_of_any_magnitudes_is_within_one_bin_of_numpys(
    values: list[float], percentile: float
) -> None:
    array = np.array(values, np.float32)
    made = histogram(array)
    found = amax_percentile(made, percentile)
    expected = float(np.percentile(np.abs(array.astype(np.float64)), percentile))
    assert abs(found - expected) <= made.width * (1 + 1e-9)
    assert found <= amax_minmax(made)
    assert amax(made, Method("percentile", percentile)) == found


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
    for method in EVERY_METHOD:
        for symmetric in (True, False):
            found = amax(made, method, symmetric=symmetric)
            assert 0 <= found <= largest
            assert (found > 0) == (largest > 0)


@BOTH_WAYS
@BY_EVERY_METHOD
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_scaling_by_a_power_of_two_scales_every_threshold(name: str, method: Method, symmetric: bool) -> None:
    values = draw(name, 3000)
    expected = amax(histogram(values), method, symmetric=symmetric) * 1024
    assert amax(histogram(values * 1024), method, symmetric=symmetric) == expected


@BY_EVERY_METHOD
def test_the_sign_of_values_off_the_edges_does_not_matter(method: Method) -> None:
    values = draw("normal", 3000)
    assert amax(histogram(values), method) == amax(histogram(-values), method)


def test_fewer_bits_cut_lower() -> None:
    made = histogram(draw("normal", 200_000))
    assert amax_entropy(made, num_bits=4) < amax_entropy(made, num_bits=8)


@BY_EVERY_METHOD
def test_an_empty_histogram_has_no_threshold(method: Method) -> None:
    with pytest.raises(CalibrationError, match="no values were observed"):
        amax(Histogram(), method)


def test_values_of_which_all_magnitudes_are_equal_are_kept_whole() -> None:
    made = histogram(np.array([2.5, -2.5] * 100, np.float32))
    assert amax_by_method(made) == dict.fromkeys(METHODS, 2.5)
    assert made.magnitudes().shape == (BINS,)


def error_by_hand(made: Histogram, limit: float, symmetric: bool) -> float:
    """The squared error of quantizing the middles of all bins to eight bits, bin by bin."""
    if symmetric:
        scale, zero_point, lowest, highest = limit / 127, 0, -127, 127
    else:
        low, high = min(0.0, max(made.min, -limit)), max(0.0, min(made.max, limit))
        scale = (high - low) / 255
        zero_point, lowest, highest = round(-low / scale), 0, 255
    errors = []
    for index in np.flatnonzero(made.counts):
        middle = (int(index) - BINS + 0.5) * made.width if index != BINS else 0.0
        level = min(max(round(middle / scale) + zero_point, lowest), highest) - zero_point
        errors.append(int(made.counts[index]) * (middle - level * scale) ** 2)
    return math.fsum(errors)


@BOTH_WAYS
@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9, 99.99])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_auto_clips_least_of_those_near_the_least_error(
    name: str, percentile: float, symmetric: bool
) -> None:
    for size in (300, 5000, 200_000):
        made = histogram(draw(name, size, seed=size))
        singles = {
            method.name: amax(made, method, symmetric=symmetric)
            for method in (
                Method("minmax"),
                Method("percentile", percentile),
                Method("entropy"),
                Method("mse"),
            )
        }
        errors = {one: error_by_hand(made, limit, symmetric) for one, limit in singles.items()}
        good = [singles[one] for one in singles if errors[one] <= min(errors.values()) * 1.02]
        assert amax(made, Method("auto", percentile), symmetric=symmetric) == max(good)
        assert amax_auto(made, percentile, symmetric=symmetric) == max(good)
        assert amax_by_method(made, percentile, symmetric=symmetric) == {**singles, "auto": max(good)}


@BOTH_WAYS
def test_auto_keeps_what_costs_little_and_clips_what_costs_much(symmetric: bool) -> None:
    uniform = amax_by_method(histogram(draw("uniform", 200_000)), symmetric=symmetric)
    outlier = amax_by_method(histogram(draw("outlier", 200_000)), symmetric=symmetric)
    assert uniform["mse"] < uniform["auto"] == uniform["minmax"]
    assert outlier["percentile"] < outlier["auto"] == outlier["mse"] < outlier["minmax"]
