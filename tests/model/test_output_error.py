from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from qcompile.model.output_error import FLOAT_RTOL, OutputError, output_error, worst


def values(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_equal_outputs_are_equal_in_every_measure() -> None:
    reference = values(4, 10)
    found = output_error(reference, reference.copy())
    assert found == OutputError(0.0, float(np.abs(reference).max()), math.inf, 1.0)
    assert found.close


def test_the_measures_are_those_of_their_definitions() -> None:
    reference = np.array([[3.0, 4.0], [0.0, 1.0]], np.float32)
    output = np.array([[3.0, 3.5], [1.0, 0.0]], np.float32)
    found = output_error(reference, output)
    assert (found.max_abs_error, found.max_abs, found.agreement) == (1.0, 4.0, 0.5)
    assert found.snr_db == pytest.approx(10 * math.log10(26 / 2.25))
    assert not found.close


@pytest.mark.parametrize("decibels", [10.0, 40.0, 80.0])
def test_noise_of_a_known_power_has_that_ratio(decibels: float) -> None:
    reference, noise = values(1000).astype(np.float64), values(1000, seed=1).astype(np.float64)
    noise *= np.sqrt((reference**2).sum() / (noise**2).sum()) * 10 ** (-decibels / 20)
    assert output_error(reference, reference + noise).snr_db == pytest.approx(decibels)


@pytest.mark.parametrize(("share", "close"), [(0.5, True), (2.0, False)])
def test_close_is_relative_to_the_largest_magnitude(share: float, close: bool) -> None:
    for scale in (1.0, 1e4):
        reference = values(3, 5) * scale
        limit = FLOAT_RTOL * float(np.abs(reference).max())
        output = reference.copy()
        output[1, 2] += share * limit
        assert output_error(reference, output).close is close


def test_nan_and_infinity_at_the_same_place_are_equal() -> None:
    reference = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    found = output_error(reference, reference.copy())
    assert (found.max_abs_error, found.max_abs, found.snr_db) == (0.0, 1.0, math.inf)
    assert found.close


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("swapped", [False, True])
def test_nan_or_infinity_against_a_number_is_an_infinite_error(bad: float, swapped: bool) -> None:
    pair = [np.array([1.0, 2.0], np.float32), np.array([1.0, bad], np.float32)]
    found = output_error(*(reversed(pair) if swapped else pair))
    assert (found.max_abs_error, found.snr_db) == (math.inf, -math.inf)
    assert not found.close


def test_infinities_of_different_sign_differ() -> None:
    assert not output_error(np.array([np.inf]), np.array([-np.inf])).close


def test_noise_on_silence_has_the_lowest_ratio() -> None:
    found = output_error(np.zeros((2, 3), np.float32), np.full((2, 3), 0.5, np.float32))
    assert (found.snr_db, found.max_abs_error) == (-math.inf, 0.5)
    assert not found.close


def test_agreement_counts_rows_by_their_largest_entry() -> None:
    reference, output = np.zeros((2, 4, 5)), np.zeros((2, 4, 5))
    reference[..., 2] = 1
    output[..., 2] = 1
    output[0, :3, 4] = 2
    assert output_error(reference, output).agreement == 5 / 8


def test_a_scalar_has_no_agreement() -> None:
    found = output_error(np.array(2.0), np.array(2.0))
    assert found.agreement is None
    assert found.close


@pytest.mark.parametrize("shape", [(0, 5), (0,), (3, 0)])
def test_empty_outputs_of_the_same_shape_are_equal(shape: tuple[int, ...]) -> None:
    found = output_error(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    assert found.close
    assert found.snr_db == math.inf
    assert found.agreement in (None, 1.0)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "uint8"])
def test_other_number_types_are_compared_as_numbers(dtype: str) -> None:
    reference = np.array([[0, 1], [1, 0]], dtype)
    assert output_error(reference, reference).close
    other = np.array([[0, 1], [1, 1]], dtype)
    assert output_error(reference, other).max_abs_error == 1.0


def test_unsigned_values_do_not_wrap() -> None:
    assert output_error(np.array([0], np.uint8), np.array([1], np.uint8)).max_abs_error == 1.0


def test_strings_are_the_same_or_not() -> None:
    reference = np.array(["cat", "dog", "owl", "cow"])
    assert output_error(reference, reference).close
    found = output_error(reference, np.array(["cat", "dog", "owl", "cat"]))
    assert (found.max_abs_error, found.agreement) == (0.25, 0.75)
    assert not found.close


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes differ: \(1, 3\) and \(3,\)"):
        output_error(np.zeros((1, 3)), np.zeros(3))


def test_the_worst_output_is_the_one_with_the_lowest_ratio() -> None:
    pairs = {
        "a": OutputError(5.0, 100.0, 40.0, 1.0),
        "b": OutputError(0.1, 0.2, 3.0, 1.0),
        "c": OutputError(0.0, 1.0, math.inf, None),
    }
    assert worst(pairs) == ("b", pairs["b"])
