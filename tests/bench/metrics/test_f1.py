"""F1 against scikit-learn's `f1_score` and seqeval's, with their own test vectors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scoring import expanded, inputs_of, scored, value
from sklearn.metrics import f1_score

from qcompile.bench.metrics.accuracy import read_metric
from qcompile.bench.metrics.metric import Truth, joined
from qcompile.errors import DataError
from qcompile.model.preprocessing import TextPreprocessing

AVERAGES = ("macro", "micro", "weighted")


def logits_of(predictions: NDArray[Any], classes: int) -> NDArray[np.float32]:
    """Scores whose largest is the prediction's, classes last."""
    return np.eye(classes, dtype=np.float32)[predictions]


def tagger(*tags: str) -> list[Any]:
    """Inputs of a token classifier whose classes have these names."""
    return inputs_of(
        TextPreprocessing(tokenizer="t", inputs=("x",), task="token-classification", classes=tags)
    )


def test_the_examples_of_scikit_learn() -> None:
    """Source: the docstring of `sklearn.metrics.f1_score`, 1.9.1."""
    true, predicted = np.array([0, 1, 2, 0, 1, 2]), np.array([0, 2, 1, 0, 0, 1])
    for average, expected in (("macro", 0.8 / 3), ("micro", 1 / 3), ("weighted", 0.8 / 3)):
        assert value(f"f1:{average}", logits_of(predicted, 3), true) == pytest.approx(expected)
    metric = read_metric("f1")
    each = metric.classes(metric.score({"y": logits_of(predicted, 3)}, {}, Truth(true, 6, "data")))
    assert each == {0: (0.8, 2), 1: (0.0, 2), 2: (0.0, 2)}


def test_the_confusion_matrix_of_scikit_learns_tests() -> None:
    """Source: `sklearn/metrics/tests/test_classification.py`, test_precision_recall_f1_score_multiclass.

    Supports 24, 31, 20 and F1 of each class 0.81, 0.15, 0.57; averages 0.53 (micro) and 0.51 (macro). Its
    confusion matrix (test_confusion_matrix_multiclass): 19 4 1, 4 3 24, 0 2 18.
    """
    matrix = np.array([[19, 4, 1], [4, 3, 24], [0, 2, 18]])
    true, predicted = (np.repeat(one.ravel(), matrix.ravel()) for one in np.indices(matrix.shape))
    scores = logits_of(predicted, 3)
    assert value("f1:micro", scores, true) == pytest.approx(0.53, abs=0.005)
    assert value("f1:macro", scores, true) == pytest.approx(0.51, abs=0.005)
    assert value("f1", scores, true) == value("f1:macro", scores, true)
    metric = read_metric("f1")
    each = metric.classes(metric.score({"y": scores}, {}, Truth(true, len(true), "data")))
    assert [round(one, 2) for one, _ in each.values()] == [0.81, 0.15, 0.57]
    assert [samples for _, samples in each.values()] == [24, 31, 20]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 40), classes=st.integers(2, 6))
def test_averages_are_those_of_scikit_learn(seed: int, count: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    true, predicted = rng.integers(0, classes, (2, count))
    scores = logits_of(predicted, classes)
    cuts = [count // 3, count // 2]
    for average in AVERAGES:
        expected = f1_score(true, predicted, average=average, zero_division=0.0)
        assert value(f"f1:{average}", scores, true, cuts) == pytest.approx(expected, abs=1e-12)
        assert value(f"f1:{average}", predicted, true, cuts) == pytest.approx(expected, abs=1e-12)
    true, predicted = true % 2, predicted % 2
    expected = f1_score(true, predicted, zero_division=0.0)
    assert value("f1:binary", logits_of(predicted, 2), true) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 12), length=st.integers(2, 7))
def test_ignored_positions_do_not_count_and_classes_may_be_last(seed: int, count: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    true, predicted = rng.integers(0, 4, (2, count, length))
    true[rng.random((count, length)) < 0.3] = -100
    true[0, 0] = 1
    kept = true != -100
    metric = read_metric("f1", inputs=tagger(*"abcd"))
    expected = f1_score(true[kept], predicted[kept], average="macro", zero_division=0.0)
    last = logits_of(predicted, 4)
    assert value(metric, last, true) == pytest.approx(expected, abs=1e-12)
    assert value(read_metric("f1"), np.moveaxis(last, 2, 1), true) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("average", [*AVERAGES, "binary"])
def test_weights_are_repeated_samples(average: str) -> None:
    rng = np.random.default_rng(4)
    true, predicted = rng.integers(0, 2 if average == "binary" else 5, (2, 30))
    metric = read_metric(f"f1:{average}")
    values = metric.values(joined([metric.score({"y": predicted}, {}, Truth(true, 30, "data"))]))
    for weights in rng.integers(0, 3, (20, 30)).astype(np.float64):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = f1_score(
                expanded(true, weights), expanded(predicted, weights), average=average, zero_division=0.0
            )
        assert values(weights[None])[0] == pytest.approx(expected, abs=1e-12)


def test_a_drop_has_an_interval_and_agreement() -> None:
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 200)
    worse = np.where(rng.random(200) < 0.2, (true + 1) % 3, true)
    found = scored("f1", logits_of(true, 3), logits_of(worse, 3), true)
    assert found.drop is not None
    assert found.drop.value == pytest.approx(100 * (1 - f1_score(true, worse, average="macro")))
    assert found.drop.low is not None
    assert found.drop.high is not None
    assert 10 < found.drop.low < found.drop.value < found.drop.high < 30
    assert found.agreement == pytest.approx((true == worse).mean())
    assert {one.label for one in found.per_class} == {0, 1, 2}


TAGS = ("O", "B-PER", "I-PER", "B-MISC", "I-MISC", "B-A", "B-B", "B-C", "I-A")


def tag_ids(rows: list[list[str]]) -> NDArray[np.int64]:
    """Rows of tags as classes, padded with the position that does not count."""
    width = max(map(len, rows))
    return np.array([[TAGS.index(tag) for tag in row] + [-100] * (width - len(row)) for row in rows])


@pytest.mark.parametrize(
    ("true", "predicted", "expected"),
    [
        # Source: seqeval's README, "Default mode".
        (
            [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]],
            [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]],
            0.5,
        ),
        # Source: seqeval's tests/test_v1.py, test_average_scores: micro 0.67, 0.67, 0.67.
        ([["B-A", "B-B", "O", "B-A"]], [["O", "B-B", "B-C", "B-A"]], 2 / 3),
    ],
)
def test_the_vectors_of_seqeval(true: list[list[str]], predicted: list[list[str]], expected: float) -> None:
    labels, found = tag_ids(true), tag_ids(predicted)
    metric = read_metric("f1:entities", inputs=tagger(*TAGS))
    outputs = logits_of(np.where(found < 0, 0, found), len(TAGS))
    assert value(metric, outputs, labels) == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=9), min_size=2
    )
)
def test_entities_of_any_tags_are_those_of_seqevals_f1(rows: list[list[tuple[str, str]]]) -> None:
    from seqeval.metrics import f1_score as entity_f1

    true, predicted = ([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    if all(tag == "O" for row in (*true, *predicted) for tag in row):
        return
    labels, found = tag_ids(true), tag_ids(predicted)
    outputs = logits_of(np.where(found < 0, 0, found), len(TAGS))
    actual = value(read_metric("f1:entities", inputs=tagger(*TAGS)), outputs, labels)
    assert actual == pytest.approx(entity_f1(true, predicted, zero_division=0))


def test_what_has_no_f1_is_refused() -> None:
    zeros, labels = np.zeros((2, 3, 2)), np.zeros((2, 3), int)
    with pytest.raises(DataError, match="label 2; 0 or 1 is required by f1:binary"):
        value("f1:binary", logits_of(np.array([0, 1]), 3), np.array([0, 2]))
    with pytest.raises(DataError, match=r"f1:entities: no classes are named; IOB2 tags"):
        value("f1:entities", np.zeros((2, 3, 4)), np.zeros((2, 3), int))
    with pytest.raises(DataError, match="the classes are named cat, dog; IOB2"):
        value(read_metric("f1:entities", inputs=tagger("cat", "dog")), zeros, labels)
    with pytest.raises(DataError, match="no entity is labelled or predicted"):
        value(read_metric("f1:entities", inputs=tagger("O", "B-X")), zeros, labels)
    with pytest.raises(DataError, match="no label counts"):
        value("f1", np.zeros((2, 4, 3)), np.full((2, 3), -100))
