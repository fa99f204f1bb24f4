"""Masks do not count, whatever their constant and what a runtime makes of it; other large values do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from written_models import noisy, normal

from qcompile.bench.metrics.output_verdict import judge
from qcompile.model.outputs.judgement import judge_by_precision, judge_outputs, output_error
from qcompile.model.outputs.masks import not_finite

INF, NAN = math.inf, math.nan


FLOATS = tuple(float(np.finfo(kind).min) for kind in (np.float32, np.float16))
MASKS = (-INF, INF, -1e9, -1e4, -2e9, -5e4, *FLOATS)


@given(
    mask=st.sampled_from(MASKS),
    other=st.sampled_from([None, INF, 65504.0, 1e4]),  # what a half, or a converter, makes of it
    share=st.floats(0.01, 0.99),
    added=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_masks_do_not_change_the_ratio_of_the_other_values(
    mask: float, other: float | None, share: float, added: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(0, 5, (6, 40)).astype(np.float32)
    y, is_masked = noisy(x, 0.02), random.random(x.shape) < (min(share, 0.5) if added else share)
    is_masked[0, :2] = True, False
    reference, output = (np.where(is_masked, value * added, value) for value in (x, y))
    theirs = mask if other is None else math.copysign(other, mask)
    with np.errstate(over="ignore"):
        reference = reference + np.where(is_masked, np.float32(mask), np.float32(0))
        output = output + np.where(is_masked, np.float32(theirs), np.float32(0))
    found = output_error(reference, output)
    assert (found.masked, found.unmasked) == (is_masked.sum(), 0)
    plain = output_error(x[~is_masked], y[~is_masked])
    assert (found.snr_db, found.max_abs) == (pytest.approx(plain.snr_db), plain.max_abs)
    assert found.mean_abs_error == pytest.approx(plain.mean_abs_error)
    for precision in ("fp32", "fp16", "int8"):
        (verdict,) = judge_by_precision({"y": [reference]}, {"y": [output]}, precision)
        (other_verdict,) = judge([{"y": reference}], [{"y": output}], precision)
        rows = {"hidden": [x[~is_masked]]}, {"hidden": [y[~is_masked]]}
        (unmasked,) = judge_by_precision(*rows, precision)
        assert verdict.passed is other_verdict.passed
        assert precision == "int8" or verdict.passed is unmasked.passed
        assert verdict.agreement is None or verdict.agreement > 0.5
        assert other_verdict.criterion == f"{verdict.criterion}; {is_masked.sum()} masked values left out"


@given(hnp.arrays(np.float32, (3, 7), elements=st.floats(-8000, 2.0**125, width=32)), st.floats(1e-6, 1.0))
@settings(deadline=None)
def test_without_masks_every_bit_is_as_it_was(reference: NDArray[np.float32], share: float) -> None:
    output = reference * np.float32(1 + share)
    found, a = output_error(reference, output), reference.astype(np.float64).ravel()
    error = np.abs(a - output.astype(np.float64).ravel())
    assert (found.signal, found.noise) == (float(a @ a), float(error @ error))
    assert (found.masked, found.masks) == (0, "")


@pytest.mark.parametrize(
    "values",
    [[12000.0, 3.2], [-12000.0, 3.2], [-10012.5, 0.0], [-499000.0],
     [-10012.5, 3.0], [10000.0, 2.0], [1e9, 0.5], [-3e4, -1e4, 500.0], [-1e4, -9000.0, 1.0],
     [65504.0, 1.0], [-1e9, -2.5e7, 3.0]],
)  # fmt: skip
def test_large_values_are_no_masks(values: list[float]) -> None:
    reference = np.array([values], np.float32)
    assert output_error(reference, reference * np.float32(0.5)).masked == 0


@pytest.mark.parametrize("value", [3.0, 1e9, -4000.0, NAN, INF])
def test_a_masked_value_that_is_masked_no_more_fails_and_is_counted(value: float) -> None:
    reference = np.tile(np.array([1.0, -1e9, 2.0, -INF, 3.0], np.float32), (20, 1))
    output = reference.copy()
    output[3, 1] = value
    for precision in ("fp32", "fp16", "int8"):
        (verdict,) = judge_by_precision({"y": [reference]}, {"y": [output]}, precision)
        (other,) = judge([{"y": reference}], [{"y": output}], precision)
        assert verdict.passed is other.passed is False
        assert verdict.masks == "1 of 40 masked values masked no more"
        assert other.criterion.endswith(f"; {verdict.masks}")
        assert verdict.snr_db == other.snr_db == -INF


def test_what_becomes_infinite_is_found_beside_masks() -> None:
    reference = np.array([1.0, 1.0, -1e9, -1e9, -1e9, -INF, NAN, INF, INF, 0.0])
    output = np.array([1.0, -INF, -INF, NAN, INF, -65504.0, INF, INF, NAN, NAN])
    expected = [False, True, False, True, True, False, False, False, True, True]
    assert not_finite(reference, output).tolist() == expected
    assert not_finite(reference[:2], np.array([NAN, 1.0])).tolist() == [True, False]


def test_rows_that_are_masked_as_a_whole_have_no_argmax() -> None:
    logits = normal(40, 10)
    logits[:, 7:] = -1e9
    logits[::2] = -1e9 + 64 * (np.arange(10) % 2)  # a mask that was added
    output = np.where(logits < -1e4, np.float32(-INF), logits)
    (verdict,) = judge_outputs({"logits": [logits]}, {"logits": [output]})
    assert (verdict.passed, verdict.agreement, verdict.snr_db) == (True, 1.0, INF)
