"""The difference batch by batch, against `judge`, which has all batches at once and asks Polygraphy."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qcompile.bench.measure.artifacts import pair_outputs
from qcompile.bench.metrics.output_verdict import RunningDifference, judge
from qcompile.core.figures import finite
from qcompile.errors import InvalidOption

Batches = list[dict[str, NDArray[Any]]]


def running(reference: Batches, found: Batches, precision: str) -> dict[str, Any]:
    """The difference, batch by batch."""
    difference = RunningDifference(precision)
    for expected, outputs in zip(reference, found, strict=True):
        difference.add(expected, outputs)
    value: dict[str, Any] = finite(msgspec.to_builtins(difference.result()))
    return value


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 1e-5, 1e-4, 3e-3, 0.05, 0.15, 0.4]))
@example(seed=1, noise=1e-4)  # within the sum of the tolerances, beyond each
def test_it_is_what_polygraphy_says_of_all_batches(precision: str, seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    reference: Batches = [
        {"y": rng.standard_normal((size, 6)).astype(np.float32), "z": rng.standard_normal(size) * 100}
        for size in (4, 7, 1)
    ]
    found: Batches = [
        {n: a + a.dtype.type(noise) * rng.standard_normal(a.shape).astype(a.dtype) for n, a in one.items()}
        for one in reference
    ]
    judged = judge(reference, found, precision)
    worst = min(judged, key=lambda item: item.snr_db)
    result = running(reference, found, precision)
    assert result["passed"] == all(item.passed for item in judged)
    assert result["output"] == worst.output
    assert result["max_abs_error"] == pytest.approx(worst.max_abs_error)
    assert result["snr_db"] == (pytest.approx(worst.snr_db) if math.isfinite(worst.snr_db) else None)
    assert result["agreement"] == worst.agreement
    assert result["criterion"] == worst.criterion


@pytest.mark.parametrize(("relative", "passes"), [(5e-4, True), (2e-3, False)])
def test_errors_may_grow_with_what_they_are_errors_of(relative: float, passes: bool) -> None:
    reference: Batches = [{"y": np.array([[1.0, 100.0, 1000.0]])}, {"y": np.array([[2.0, 3.0, 4.0]])}]
    found: Batches = [{"y": one["y"] * (1 + relative)} for one in reference]
    [judged] = judge(reference, found, "fp32")
    assert running(reference, found, "fp32")["passed"] is judged.passed is passes


@pytest.mark.parametrize("batches", [[[0], [1], [2]], [[0, 1], [2]], [[0, 1, 2]]])
@pytest.mark.parametrize(("noise", "passed"), [(0.4, True), (20.0, False)])
def test_int8_is_judged_on_all_rows_however_they_are_batched(
    batches: list[list[int]], noise: float, passed: bool
) -> None:
    rows, error = np.array([[100.0, 0.0], [1.0, 0.0], [100.0, 0.0]]), np.array([[0.0], [noise], [0.0]])
    reference: Batches = [{"y": rows[some]} for some in batches]
    found: Batches = [{"y": (rows + error)[some]} for some in batches]
    [judged] = judge(reference, found, "int8")
    result = running(reference, found, "int8")
    expected_db = 10 * np.log10((rows**2).sum() / (2 * noise**2))
    assert result["snr_db"] == pytest.approx(expected_db) == judged.snr_db
    assert bool(expected_db >= 15) is passed
    assert result["passed"] is judged.passed is passed


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("kind", ["nan here", "nan gone", "inf here", "inf gone", "minus inf"])
def test_what_is_not_finite_passes_where_polygraphy_lets_it(precision: str, kind: str) -> None:
    expected = np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4)
    found = expected.copy()
    value = np.float32(np.nan if kind.startswith("nan") else np.inf)
    if kind == "minus inf":
        expected[1, 2], found[1, 2] = value, -value
    else:
        (found if kind.endswith("here") else expected)[1, 2] = value
    [judged] = judge([{"y": expected}], [{"y": found}], precision)
    result = running([{"y": expected}], [{"y": found}], precision)
    assert result["passed"] is judged.passed is False
    assert (result["snr_db"], result["state"], result["max_abs_error"]) == (None, "not finite", None)
    json.dumps(result, allow_nan=False)


def test_infinities_at_the_same_place_are_equal() -> None:
    masked = np.array([[1.0, -np.inf], [np.inf, 2.0]], np.float32)
    [judged] = judge([{"y": masked}], [{"y": masked}], "fp32")
    result = running([{"y": masked}], [{"y": masked.copy()}], "fp32")
    assert result["passed"] is judged.passed is True
    assert (result["snr_db"], result["state"], result["max_abs_error"]) == (None, "equal", 0.0)


def test_other_shapes_are_a_mismatch_in_words() -> None:
    result = running([{"y": np.zeros((2, 3))}], [{"y": np.zeros((2, 4))}], "fp32")
    assert result["passed"] is False
    assert result["criterion"] == "2x3 is required, 2x4 found"
    json.dumps(result, allow_nan=False)


def test_outputs_pair_by_name_or_by_position() -> None:
    a, b = np.zeros(1), np.ones(1)
    assert list(pair_outputs({"x": a, "y": a}, {"y": b, "x": a})) == ["x", "y"]
    assert pair_outputs({"x": a, "y": a}, {"y": b, "x": a})["y"] is b
    assert pair_outputs({"x": a, "y": a}, {"0": a, "1": b})["y"] is b
    with pytest.raises(InvalidOption, match="outputs z; as many as the baseline's are required: x, y"):
        pair_outputs({"x": a, "y": a}, {"z": a})


def test_the_worst_output_is_a_signal_where_enough_labels_are_equal() -> None:
    rng = np.random.default_rng(3)
    scores, labels = rng.standard_normal((4, 50)), rng.integers(0, 10, (4, 50))
    other = np.where(np.arange(50) < 1, 9 - labels, labels)
    reference: Batches = [{"features": scores, "labels": labels}]
    result = running(reference, [{"features": scores * 1.001, "labels": other}], "int8")
    assert result["passed"]
    assert result["output"] == "features"
    assert result["snr_db"] == pytest.approx(60.0)
    wrong = running(reference, [{"features": scores * 1.001, "labels": 9 - labels}], "int8")
    assert not wrong["passed"]
    assert wrong["output"] == "labels"


@pytest.mark.parametrize(("missing", "passes"), [(1, True), (8, False)])
def test_boxes_are_judged_by_what_both_sides_find(missing: int, passes: bool) -> None:
    rng = np.random.default_rng(0)
    low = rng.integers(0, 500, (30, 2))
    whole = {
        "boxes": np.concatenate([low, low + 40], 1).astype(np.float32), "scores": np.linspace(0.9, 0.3, 30),
        "labels": np.arange(30), "features": rng.standard_normal((1, 8)),
    }  # fmt: skip
    order = rng.permutation(30 - missing)
    fewer = {name: array[order] if name != "features" else array for name, array in whole.items()}
    judged = {one.output: one for one in judge([whole], [fewer], "int8")}
    share = 2 * (30 - missing) / (60 - missing)
    assert [judged[name].passed for name in ("boxes", "scores", "labels")] == [passes] * 3
    assert judged["boxes"].agreement == pytest.approx(share)
    assert judged["features"].passed
    result = running([whole], [fewer], "int8")
    assert (result["passed"], result["agreement"]) == (passes, pytest.approx(share))
    assert "partner" in result["criterion"]


def test_boxes_in_their_order_are_compared_as_numbers() -> None:
    one = {"boxes": np.ones((2, 4)), "scores": np.ones(2), "labels": np.array([1, 2])}
    assert {item.criterion for item in judge([one], [one], "int8")} == {
        "signal: SNR ≥ 15 dB", "labels: same value in ≥ 95% of elements",
    }  # fmt: skip
