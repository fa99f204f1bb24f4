"""Error statistics of an output: by their definitions, and for numbers that are none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from qcompile.model.output_error import FLOAT_RTOL, OutputError, output_error, worst


def values(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


INF, NAN = math.inf, math.nan
ROWS = np.eye(5)[[2, 2, 2, 2]]


@pytest.mark.parametrize(
    ("reference", "output", "max_abs_error", "snr_db", "agreement"),
    [
        ([[3.0, 4.0], [0.0, 1.0]], [[3.0, 3.5], [1.0, 0.0]], 1.0, 10 * math.log10(26 / 2.25), 0.5),
        ([ROWS, ROWS], [np.eye(5)[[4, 4, 4, 2]], ROWS], 1.0, 10 * math.log10(8 / 6), 5 / 8),
        ([1.0, NAN, INF, -INF], [1.0, NAN, INF, -INF], 0.0, INF, 1.0),
        ([1.0, 2.0], [1.0, NAN], INF, -INF, 1.0),
        ([1.0, NAN], [1.0, 2.0], INF, -INF, 1.0),
        ([1.0, 2.0], [1.0, -INF], INF, -INF, 0.0),
        ([1.0, INF], [1.0, 2.0], INF, -INF, 1.0),
        ([INF], [-INF], INF, -INF, 1.0),
        ([[0.0] * 3] * 2, [[0.5] * 3] * 2, 0.5, -INF, 1.0),  # noise on silence
        (2.0, 2.0, 0.0, INF, None),
        (np.zeros((0, 5)), np.zeros((0, 5)), 0.0, INF, None),
        (np.zeros((3, 0)), np.zeros((3, 0)), 0.0, INF, None),
        (np.uint8([[0]]), np.uint8([[1]]), 1.0, -INF, 1.0),  # unsigned values do not wrap
        (np.array([[0, 1], [1, 0]], bool), np.array([[0, 1], [1, 1]], bool), 1.0, 10 * math.log10(2), 1.0),
        (["cat", "dog", "owl", "cow"], ["cat", "dog", "owl", "cat"], 0.25, 10 * math.log10(4), 0.75),
        (["cat"], ["cat"], 0.0, INF, 1.0),
    ],
)
def test_the_measures_are_those_of_their_definitions(
    reference: object, output: object, max_abs_error: float, snr_db: float, agreement: float | None
) -> None:
    found = output_error(np.asarray(reference), np.asarray(output))
    assert (found.max_abs_error, found.agreement) == (max_abs_error, agreement)
    assert found.snr_db == pytest.approx(snr_db)
    assert found.close is (max_abs_error == 0)


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


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes differ: \(1, 3\) and \(3,\)"):
        output_error(np.zeros((1, 3)), np.zeros(3))


def test_the_worst_output_is_the_one_with_the_lowest_ratio() -> None:
    pairs = {
        name: OutputError(0.1, 1.0, snr_db, None) for name, snr_db in (("a", 40.0), ("b", 3.0), ("c", INF))
    }
    assert worst(pairs) == ("b", pairs["b"])
