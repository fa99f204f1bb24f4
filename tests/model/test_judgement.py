"""What an output is decides what is asked of it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from qcompile.model.judgement import (
    enough_agreement,
    flips_by_chance,
    judge_by_precision,
    judge_outputs,
    lowest_db,
)


def noisy(array: NDArray[np.float32], share: float, seed: int = 9) -> NDArray[np.float32]:
    noise = np.random.default_rng(seed).standard_normal(array.shape).astype(np.float32)
    return array + np.float32(share * array.std()) * noise


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def test_a_feature_map_has_no_argmax() -> None:
    image = np.zeros((4, 2, 32, 32), np.float32) + normal(4, 2, 32, 1)  # every row of it is a tie
    (one,) = judge_outputs({"y": [image]}, {"y": [noisy(image, 0.02)]})
    assert one.passed
    assert one.agreement is None
    assert one.criterion == "signal: SNR ≥ 15 dB"


def test_logits_need_the_same_argmax() -> None:
    logits = normal(400, 10)
    flipped = logits.copy()
    for row in flipped[::10]:
        first, second = np.argsort(row)[-2:]
        row[[first, second]] = row[[second, first]]
    (one,) = judge_outputs({"logits": [logits]}, {"logits": [flipped]})
    assert not one.passed
    assert one.agreement == pytest.approx(0.9)
    (one,) = judge_outputs({"pooled": [logits]}, {"pooled": [flipped]})
    assert one.passed  # its name says that it holds features


def test_rows_of_length_one_are_an_embedding() -> None:
    rows = normal(50, 16)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    (good,) = judge_outputs(
        {"y": [rows[:25], rows[25:]]}, {"y": [noisy(rows[:25], 0.1), noisy(rows[25:], 0.1)]}
    )
    (bad,) = judge_outputs({"y": [rows]}, {"y": [noisy(rows, 0.5)]})
    assert (good.passed, bad.passed) == (True, False)
    expected = noisy(rows, 0.5)
    cosines = (rows * expected).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(rows, axis=1)
    assert bad.cosine == pytest.approx(cosines.mean(), abs=1e-6)


def test_one_hot_rows_are_classes_although_their_length_is_one() -> None:
    rows = np.eye(4, dtype=np.float32)[[0, 1, 2, 3] * 30]
    (one,) = judge_outputs({"y": [rows]}, {"y": [np.roll(rows, 1, axis=1)]})
    assert one.agreement == 0.0
    assert not one.passed


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
    from qcompile.bench.metrics.output_verdict import judge

    expected, actual = normal(4, 32, 8), noisy(normal(4, 32, 8), share)
    (one,) = judge_by_precision({"y": [expected]}, {"y": [actual]}, precision)
    (other,) = judge([{"y": expected}], [{"y": actual}], precision)
    assert (one.passed, one.criterion) == (other.passed, other.criterion)
    assert one.snr_db == pytest.approx(other.snr_db)


def test_whole_numbers_are_labels_and_no_signal() -> None:
    classes = np.random.default_rng(2).integers(-1, 10, (8, 100))
    few, many = classes.copy(), classes.copy()
    few[:, :3] = 9 - classes[:, :3]  # never equal: 9 is odd
    many[:, :10] = 9 - classes[:, :10]
    (one,) = judge_outputs({"classes": [classes]}, {"classes": [few]})
    assert one.passed
    assert one.agreement == pytest.approx(0.97)
    assert one.criterion == "labels: same value in ≥ 95% of elements"
    (one,) = judge_outputs({"classes": [classes]}, {"classes": [many]})
    assert not one.passed
    assert one.agreement == pytest.approx(0.9)
