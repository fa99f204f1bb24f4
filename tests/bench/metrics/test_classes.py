"""Top-k against a sort, intersection over union against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scoring import top_k
from sklearn.metrics import confusion_matrix, jaccard_score

from qcompile.bench.metrics.accuracy import ScoreSums, read_metric
from qcompile.bench.metrics.classes import IGNORED_PIXEL
from qcompile.bench.metrics.metric import IGNORED_POSITION, Truth, joined
from qcompile.errors import DataError


def summed(metric: str, batches: list[tuple[NDArray[Any], NDArray[Any]]]) -> ScoreSums:
    """A metric of outputs and labels, batch by batch."""
    found = read_metric(metric)
    total = ScoreSums(found)
    for index, (output, labels) in enumerate(batches):
        scored = found.score({"y": output}, {"y": output}, Truth(labels, len(output), f"data batch {index}"))
        total.add(scored, scored, len(output))
    return total


def by_sorting(scores: NDArray[Any], labels: NDArray[Any], k: int) -> list[bool]:
    """Sort each row by score, then by index, and look."""
    return [
        int(label) in sorted(range(len(row)), key=lambda index: (-row[index], index))[:k]
        for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 20), classes=st.integers(1, 9), k=st.integers(1, 5))
def test_top_k_is_what_sorting_gives(seed: int, count: int, classes: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, 4, (count, classes)).astype(np.float32)  # with ties
    labels = rng.integers(0, classes, count)
    right = by_sorting(scores, labels, k)
    assert top_k([scores], [labels], k) == sum(right) / count


def test_positions_count_alike_and_some_do_not() -> None:
    rng = np.random.default_rng(2)
    scores = rng.integers(0, 5, (6, 7, 2, 3)).astype(np.float32)
    labels = rng.integers(0, 7, (6, 2, 3))
    labels[0, 0] = labels[3, 1, 1] = IGNORED_POSITION
    rows = np.moveaxis(scores, 1, -1).reshape(-1, 7)
    counted = labels.ravel() != IGNORED_POSITION
    right = by_sorting(rows[counted], labels.ravel()[counted], 5)
    found = summed("top5", [(scores[:4], labels[:4]), (scores[4:], labels[4:])])
    assert found.value() == pytest.approx(np.mean(right))
    classes = found.by_class
    for label in range(7):
        chosen = [ok for ok, one in zip(right, labels.ravel()[counted], strict=True) if one == label]
        samples = sum(label in sample for sample in labels)
        assert classes[label] == (pytest.approx(np.mean(chosen)), samples)


def test_minus_infinity_is_a_score() -> None:
    assert top_k([np.array([[-np.inf, 0.0]])], [np.array([1])], 1) == 1.0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), count=st.integers(1, 6), classes=st.integers(2, 5), with_scores=st.booleans()
)
def test_the_mean_iou_is_scikit_learns(seed: int, count: int, classes: int, with_scores: bool) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, (count, 4, 5))
    labels[rng.random(labels.shape) < 0.2] = IGNORED_PIXEL
    labels[0, 0, 0] = 0  # one counts
    scores = rng.standard_normal((count, classes, 4, 5)).astype(np.float32)
    output = scores if with_scores else scores.argmax(1)
    cut = count // 2
    batches = [(output[:cut], labels[:cut]), (output[cut:], labels[cut:])]
    found = summed("miou", [batch for batch in batches if len(batch[0])])
    counted = labels != IGNORED_PIXEL
    true, predicted = labels[counted], scores.argmax(1)[counted]
    present = np.unique(true)
    expected = jaccard_score(true, predicted, labels=present, average=None, zero_division=0)
    assert found.value() == pytest.approx(expected.mean())
    assert {label: value for label, (value, _) in found.by_class.items()} == pytest.approx(
        dict(zip(present.tolist(), expected, strict=True))
    )
    matrix = confusion_matrix(true, predicted, labels=range(classes))
    table = joined(found.scored).table
    for label in range(classes):
        sums = table[table[:, 0] == label, 1:].sum(axis=0)
        assert sums.tolist() == [matrix[label, label], matrix[:, label].sum(), matrix[label].sum()]


def test_a_class_that_is_only_predicted_costs_those_it_was_taken_for() -> None:
    labels = np.zeros((1, 2, 2), int)
    found = summed("miou", [(np.array([[[0, 0], [0, 3]]]), labels)])
    assert found.value() == 0.75
    assert found.by_class == {0: (0.75, 1)}


def test_pixels_predicted_where_a_class_is_absent_count_against_it_all_the_same() -> None:
    """Class 1 is in the first image alone, and predicted in both."""
    labels = np.array([[[1, 0]], [[0, 0]]])
    output = np.array([[[1, 0]], [[1, 0]]])
    for batches in ([(output, labels)], [(output[:1], labels[:1]), (output[1:], labels[1:])]):
        found = summed("miou", batches)
        assert found.by_class == {0: (pytest.approx(2 / 3), 2), 1: (0.5, 1)}


def test_maps_of_classes_may_meet_new_classes_in_later_batches() -> None:
    one, two = np.array([[[0, 1]]]), np.array([[[4, 0]], [[4, 4]]])
    found = summed("miou", [(one, np.array([[[0, 0]]])), (two, two), (one, one)])
    assert found.by_class == {0: (0.75, 3), 1: (0.5, 1), 4: (1.0, 2)}
    assert found.value() == pytest.approx((0.75 + 0.5 + 1.0) / 3)


@pytest.mark.parametrize("metric", ["top1", "top5", "miou"])
def test_labels_are_required_and_must_be_classes(metric: str) -> None:
    output = np.zeros((2, 3, 4, 4), np.float32)
    for labels, said in (
        (None, f"batch 0: has no labels; {metric} needs them"),
        (np.full((2, 4, 4), 0.5), "class indices are required"),
        (np.full((2, 4, 4), np.inf), "class indices are required"),
        (np.array([["a"] * 4] * 2), "class indices are required"),
        (np.full((2, 4, 4), 3), "label 3; 0 to 2 is required"),
        (np.full((2, 4, 4), -1), "label -1; 0 to 2 is required"),
    ):
        with pytest.raises(DataError, match=said):
            summed(metric, [(output, labels)])  # type: ignore[list-item]
    output[1, 0, 0, 0] = np.nan
    with pytest.raises(DataError, match="batch 0: output 'y' holds NaN"):
        summed(metric, [(output, np.zeros((2, 4, 4), int))])
    assert summed(metric, [(output[:1], np.zeros((1, 4, 4)))]).value() == 1.0  # whole numbers of another type


def test_shapes_that_do_not_fit_are_refused() -> None:
    for output, labels in (
        (np.zeros((3, 2)), np.zeros(2, int)),
        (np.zeros(3), np.zeros(3, int)),
        (np.zeros((3, 2)), np.zeros((3, 2), int)),
        (np.zeros((3, 2, 5)), np.zeros((3, 4), int)),
    ):
        with pytest.raises(DataError, match="one label per sample"):
            summed("top1", [(output, labels)])
    assert summed("top1", [(np.zeros((3, 2)), np.zeros((3, 1), int))]).value() == 1.0
    for output in (
        np.zeros((2, 3, 2, 2)),  # another size
        np.zeros((2, 1, 4, 4)),  # one channel of scores
        np.zeros((2, 4, 4)),  # no whole numbers
        np.zeros((2, 3)),
    ):
        with pytest.raises(DataError, match="of the labels' height and width, are required"):
            summed("miou", [(output, np.zeros((2, 4, 4), int))])
    with pytest.raises(DataError, match=r"with labels of shape \(2,\); scores \[batch, classes, height"):
        summed("miou", [(np.zeros((2, 3)), np.zeros(2, int))])
    for wrong, said in ((-1, "class -1; 0 or more"), (5000, "class 5000; below 4096")):
        with pytest.raises(DataError, match=said):
            summed("miou", [(np.full((2, 4, 4), wrong), np.zeros((2, 4, 4), int))])


def test_data_in_which_nothing_counts_has_no_accuracy() -> None:
    with pytest.raises(DataError, match="miou: no label counts"):
        summed("miou", [(np.zeros((1, 2, 2), int), np.full((1, 2, 2), IGNORED_PIXEL))]).value()
