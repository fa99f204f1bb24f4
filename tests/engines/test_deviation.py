"""The rule by which values are judged, on numbers whose answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from qcompile.engines.deviation import Deviation


def deviation(*batches: tuple[Any, Any, Any]) -> Deviation:
    found = Deviation()
    for batch in batches:
        found.add(*(np.asarray(part) for part in batch))
    return found


def excess(*batches: tuple[Any, Any, Any], integers: bool = True, noise_db: float | None = None) -> float:
    return deviation(*batches).excess(integers=integers, noise_db=noise_db)


def test_the_rule_is_that_of_a_hand_computed_example() -> None:
    found = deviation(([1.0], [1.1], [1.3]), ([2.0], [1.9], [2.0]))
    assert found.quantization == pytest.approx(0.01 + 0.01)
    assert found.total == pytest.approx(0.04 + 0.01)
    assert found.error == pytest.approx(0.09)
    assert found.excess(integers=True, noise_db=None) == pytest.approx((0.05 - 0.02) / 0.02)
    assert found.excess(integers=True, noise_db=10) == pytest.approx(0.03 / (0.02 + 5 * 0.1))


def test_masks_leave_an_error_no_more_room() -> None:
    plain = np.random.default_rng(0).uniform(-9, 9, (10, 100))
    ref, out = np.rint(plain), np.rint(plain) + 3 * np.random.default_rng(1).uniform(-1, 1, plain.shape)
    open_ = np.arange(100) % 3 > 0
    expected = excess((ref[:, open_], plain[:, open_], out[:, open_]))
    masked = [np.where(open_, side, mask) for side, mask in ((ref, -1e9), (plain, -np.inf), (out, -65504.0))]
    assert excess(tuple(masked)) == pytest.approx(expected)  # type: ignore[arg-type]
    assert expected > 4
    assert excess((*masked[:2], np.where(open_, ref, 0.0))) == np.inf


def test_a_kernel_that_rounds_the_other_way_or_not_at_all_passes() -> None:
    plain = np.random.default_rng(0).uniform(-9, 9, 1000)
    ref = np.rint(plain)
    assert excess((ref, plain, 2 * plain - ref)) == 0
    assert excess((ref, plain, plain)) == 0
    assert excess((ref, plain, ref)) == 0
    noise = np.random.default_rng(1).uniform(-1, 1, 1000)
    assert 0.9 < excess((ref, plain, ref + 0.5 * noise)) < 1.1  # as much as rounding itself
    assert 3.5 < excess((ref, plain, ref + noise)) < 4.5


def test_without_quantization_error_a_neighbouring_integer_passes_and_two_do_not() -> None:
    ref = np.full(4, 12.7)
    one, two = ref + np.array([0.1, 0, 0, 0]), ref + np.array([0.2, 0, 0, 0])
    assert excess((ref, ref, one)) == pytest.approx(1.0)
    assert excess((ref, ref, two)) == pytest.approx(4.0)
    assert excess((ref, ref, one), integers=False) == math.inf
    many = np.full(1200, 12.7)
    off = many + np.where(np.arange(1200) < 100, 0.1, 0)  # a twelfth of them, as rounding would
    assert excess((many, many, off)) == pytest.approx(1.0)


def test_noise_of_floats_is_allowed_at_its_decibels() -> None:
    ref = np.ones(100)
    assert excess((ref, ref, ref + 0.0099), integers=False, noise_db=40) < 1
    assert excess((ref, ref, ref + 0.0101), integers=False, noise_db=40) > 1


def test_what_is_not_finite_is_equal_where_the_reference_has_it() -> None:
    ref = np.array([1.0, np.nan, np.inf, -np.inf])
    assert excess((ref, ref, ref)) == 0
    assert excess((ref, ref, np.array([1.0, 0.0, np.inf, -np.inf]))) == math.inf
    assert excess((ref, ref, np.array([np.nan, np.nan, np.inf, -np.inf]))) == math.inf


def test_labels_may_differ_as_quantization_or_chance_lets_them() -> None:
    ref = np.arange(100)
    plain, out = ref.copy(), ref.copy()
    out[:20] = -1
    assert excess((ref, plain, out)) > 1
    plain[50:80] = -1
    assert excess((ref, plain, out)) < 1
    assert excess((ref[:1], ref[:1], np.array([7]))) < 1  # one row tells little
