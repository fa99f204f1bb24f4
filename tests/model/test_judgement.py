"""Error statistics of an output by their definitions; what an output is decides what is asked of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qcompile.bench.metrics.output_verdict import judge
from qcompile.model.judgement import (
    FLOAT_RTOL,
    Judgement,
    enough_agreement,
    flips_by_chance,
    judge_by_precision,
    judge_outputs,
    lowest_db,
    output_error,
)


def noisy(array: NDArray[np.float32], share: float, seed: int = 9) -> NDArray[np.float32]:
    noise = np.random.default_rng(seed).standard_normal(array.shape).astype(np.float32)
    return array + np.float32(share * array.std()) * noise


def normal(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


INF, NAN = math.inf, math.nan
ROWS = np.eye(5)[[2, 2, 2, 2]]


@pytest.mark.parametrize(
    ("reference", "output", "max_abs_error", "snr_db"),
    [
        ([[3.0, 4.0], [0.0, 1.0]], [[3.0, 3.5], [1.0, 0.0]], 1.0, 10 * math.log10(26 / 2.25)),
        ([ROWS, ROWS], [np.eye(5)[[4, 4, 4, 2]], ROWS], 1.0, 10 * math.log10(8 / 6)),
        ([1.0, NAN, INF, -INF], [1.0, NAN, INF, -INF], 0.0, INF),
        ([1.0, 2.0], [1.0, NAN], INF, -INF),
        ([1.0, NAN], [1.0, 2.0], INF, -INF),
        ([1.0, 2.0], [1.0, -INF], INF, -INF),
        ([1.0, INF], [1.0, 2.0], INF, -INF),
        ([INF], [-INF], INF, -INF),
        ([[0.0] * 3] * 2, [[0.5] * 3] * 2, 0.5, -INF),  # noise on silence
        (2.0, 2.0, 0.0, INF),
        (np.zeros((0, 5)), np.zeros((0, 5)), 0.0, INF),
        (np.zeros((3, 0)), np.zeros((3, 0)), 0.0, INF),
        (np.uint8([[0]]), np.uint8([[1]]), 1.0, -INF),  # unsigned values do not wrap
        (np.array([[0, 1], [1, 0]], bool), np.array([[0, 1], [1, 1]], bool), 1.0, 10 * math.log10(2)),
        (["cat", "dog", "owl", "cow"], ["cat", "dog", "owl", "cat"], 1.0, 10 * math.log10(4)),
        (["cat"], ["cat"], 0.0, INF),
    ],
)
def test_the_measures_are_those_of_their_definitions(
    reference: object, output: object, max_abs_error: float, snr_db: float
) -> None:
    found = output_error(np.asarray(reference), np.asarray(output))
    assert found.max_abs_error == max_abs_error
    assert found.snr_db == pytest.approx(snr_db)
    assert found.close is (max_abs_error == 0)


@pytest.mark.parametrize("decibels", [10.0, 40.0, 80.0])
def test_noise_of_a_known_power_has_that_ratio(decibels: float) -> None:
    reference, noise = normal(1000).astype(np.float64), normal(1000, seed=2).astype(np.float64)
    noise *= np.sqrt((reference**2).sum() / (noise**2).sum()) * 10 ** (-decibels / 20)
    assert output_error(reference, reference + noise).snr_db == pytest.approx(decibels)


@pytest.mark.parametrize(("share", "close"), [(0.5, True), (2.0, False)])
def test_close_is_relative_to_the_largest_magnitude(share: float, close: bool) -> None:
    for scale in (1.0, 1e4):
        reference = normal(3, 5) * scale
        limit = FLOAT_RTOL * float(np.abs(reference).max())
        output = reference.copy()
        output[1, 2] += share * limit
        assert output_error(reference, output).close is close


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes differ: \(1, 3\) and \(3,\)"):
        output_error(np.zeros((1, 3)), np.zeros(3))


def judged(reference: NDArray[Any], output: NDArray[Any], name: str = "y") -> Judgement:
    """The verdict on one output, in two batches."""
    (verdict,) = judge_outputs({name: np.array_split(reference, 2)}, {name: np.array_split(output, 2)})
    return verdict


def test_a_feature_map_has_no_argmax() -> None:
    image = np.zeros((4, 2, 32, 32), np.float32) + normal(4, 2, 32, 1)  # every row of it is a tie
    verdict = judged(image, noisy(image, 0.02))
    assert (verdict.passed, verdict.agreement) == (True, None)
    assert verdict.criterion == "signal: SNR ≥ 15 dB"


def test_logits_need_the_same_argmax() -> None:
    logits = normal(400, 10)
    flipped = logits.copy()
    for row in flipped[::10]:
        first, second = np.argsort(row)[-2:]
        row[[first, second]] = row[[second, first]]
    verdict = judged(logits, flipped, "logits")
    assert (verdict.passed, verdict.agreement) == (False, pytest.approx(0.9))
    assert judged(logits, flipped, "pooled").passed  # its name says that it holds features


def test_rows_of_length_one_are_an_embedding() -> None:
    rows = normal(50, 16)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    output = noisy(rows, 0.5)
    good, bad = judged(rows, noisy(rows, 0.1)), judged(rows, output)
    assert (good.passed, bad.passed) == (True, False)
    cosines = (rows * output).sum(1) / np.linalg.norm(output, axis=1) / np.linalg.norm(rows, axis=1)
    assert bad.cosine == pytest.approx(cosines.mean(), abs=1e-6)


def test_one_hot_rows_are_classes_although_their_length_is_one() -> None:
    rows = np.eye(4, dtype=np.float32)[[0, 1, 2, 3] * 30]
    verdict = judged(rows, np.roll(rows, 1, axis=1))
    assert (verdict.passed, verdict.agreement) == (False, 0.0)


def test_one_flip_in_sixteen_rows_is_within_chance_and_five_are_not() -> None:
    assert enough_agreement(15, 16)[0]
    assert not enough_agreement(11, 16)[0]
    assert not enough_agreement(900, 1000)[0]
    assert enough_agreement(950, 1000) == (True, "same argmax in ≥ 95% of rows")


@pytest.mark.parametrize(("flips", "rows"), [(1, 16), (0, 5), (3, 20), (5, 5), (40, 400)])
def test_chance_is_the_upper_tail_of_the_binomial_distribution(flips: int, rows: int) -> None:
    drawn = np.random.default_rng(3).binomial(rows, 0.05, 400_000)
    assert flips_by_chance(flips, rows) == pytest.approx((drawn >= flips).mean(), abs=4e-3)


@pytest.mark.parametrize(("precision", "decibels"), [("fp32", 60), ("tf32", 40), ("fp16", 40), ("int8", 15)])
def test_each_precision_has_a_ratio_below_which_most_is_wrong(precision: str, decibels: float) -> None:
    assert lowest_db(precision) == pytest.approx(decibels)
    assert lowest_db("fp32") > lowest_db("fp16") > lowest_db("bf16") > lowest_db("fp8")


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("share", [1e-5, 1e-3, 1e-2, 0.1, 0.5])
def test_the_rule_of_a_precision_is_that_of_diff(precision: str, share: float) -> None:
    expected, actual = normal(4, 32, 8), noisy(normal(4, 32, 8), share)
    (verdict,) = judge_by_precision({"y": [expected]}, {"y": [actual]}, precision)
    (other,) = judge([{"y": expected}], [{"y": actual}], precision)
    assert (verdict.passed, verdict.criterion) == (other.passed, other.criterion)
    assert verdict.snr_db == pytest.approx(other.snr_db)


def test_whole_numbers_are_labels_and_no_signal() -> None:
    classes = np.random.default_rng(2).integers(-1, 10, (8, 100))
    few, many = classes.copy(), classes.copy()
    few[:, :3] = 9 - classes[:, :3]  # never equal: 9 is odd
    many[:, :10] = 9 - classes[:, :10]
    verdict = judged(classes, few)
    assert (verdict.passed, verdict.agreement) == (True, pytest.approx(0.97))
    assert verdict.criterion == "labels: same value in ≥ 95% of elements"
    verdict = judged(classes, many)
    assert (verdict.passed, verdict.agreement) == (False, pytest.approx(0.9))
