"""Top-k against a sort, intersection over union and F1 against scikit-learn and seqeval."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scoring import both_sums, expanded, inputs_of, scored, top_k, value
from sklearn.metrics import f1_score, jaccard_score

from qcompile.bench.metrics.accuracy import ScoreSums, read_metric
from qcompile.bench.metrics.classes import IGNORED_PIXEL
from qcompile.bench.metrics.metric import IGNORED_POSITION, Truth, join_scores
from qcompile.errors import DataError
from qcompile.model.sources.preprocessing import ImagePreprocessing, TextPreprocessing

FITS = "of the labels' height and width, are required"


def summed(metric: str, output: NDArray[Any], labels: NDArray[Any], cuts: tuple[int, ...] = ()) -> ScoreSums:
    return both_sums(metric, output, None, labels, cuts)[1]


def refused(metric: str, output: NDArray[Any], labels: NDArray[Any] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_metric(metric).score({"y": output}, {"y": output}, Truth(labels, len(output), "data"))


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
    found = summed("top5", scores, labels, (4,))
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
    found = summed("miou", output, labels, (count // 2,))
    counted = labels != IGNORED_PIXEL
    true, predicted = labels[counted], scores.argmax(1)[counted]
    present = np.unique(true)
    expected = jaccard_score(true, predicted, labels=present, average=None, zero_division=0)
    assert found.value() == pytest.approx(expected.mean())
    assert {label: value for label, (value, _) in found.by_class.items()} == pytest.approx(
        dict(zip(present.tolist(), expected, strict=True))
    )


def test_maps_of_classes_may_meet_new_classes_in_later_batches() -> None:
    output = np.array([[[0, 1]], [[4, 0]], [[4, 4]], [[0, 1]]])
    labels = np.concatenate([np.array([[[0, 0]]]), output[1:]])
    found = summed("miou", output, labels, (1, 3))
    assert found.by_class == {0: (0.75, 3), 1: (0.5, 1), 4: (1.0, 2)}
    assert found.value() == pytest.approx((0.75 + 0.5 + 1.0) / 3)


@pytest.mark.parametrize("metric", ["top1", "top5", "miou"])
def test_labels_are_required_and_must_be_classes(metric: str) -> None:
    output, maps = np.zeros((2, 3, 4, 4), np.float32), np.ones((2, 4, 4))
    for labels, said in (
        (None, f"data: has no labels; {metric} needs them"),
        (0.5 * maps, "class indices are required"),
        (np.inf * maps, "class indices are required"),
        (maps.astype(str), "label '1.0'; class indices, as the model has no class names, are required"),
        ((3 * maps).astype(int), "label 3; 0 to 2 is required"),
        ((-maps).astype(int), "label -1; 0 to 2 is required"),
    ):
        refused(metric, output, labels, said)
    output[1, 0, 0, 0] = np.nan
    refused(metric, output, np.zeros((2, 4, 4), int), "data: output 'y' holds NaN")
    assert summed(metric, output[:1], np.zeros((1, 4, 4))).value() == 1.0  # whole numbers of another type


@pytest.mark.parametrize("name", ["top1", "top5", "f1", "f1:micro"])
@pytest.mark.parametrize("form", ["one-hot", "one-hot of floats", "names", "synonyms", "numbers in texts"])
def test_labels_in_other_forms_count_as_class_indices(name: str, form: str) -> None:
    rng = np.random.default_rng(0)
    output, labels = rng.standard_normal((60, 8)).astype(np.float32), rng.integers(0, 8, 60)
    classes = [f"sea lion {number}, seal {number}" for number in range(8)]
    other = {
        "one-hot": np.eye(8, dtype=np.int64)[labels],
        "one-hot of floats": np.eye(8, dtype=np.float32)[labels],
        "names": np.array(classes)[labels],
        "synonyms": np.array([f"Seal_{number}" for number in labels], dtype=object),
        "numbers in texts": labels.astype("S"),
    }[form]
    model = inputs_of(ImagePreprocessing(height=8, width=8, classes=tuple(classes)))
    metric = read_metric(name, inputs=model)
    assert scored(metric, output, labels=other, cuts=(7,)).value == scored(name, output, labels=labels).value
    note = f"{name}: one-hot labels are read as class indices"
    assert metric.note == (note if form.startswith("one-hot") else "")


def test_a_name_that_is_no_class_of_the_model_is_refused() -> None:
    model = inputs_of(ImagePreprocessing(height=8, width=8, classes=("cat", "dog")))
    outputs, truth = {"y": np.zeros((2, 2), np.float32)}, Truth(np.array(["cat", "bird"]), 2, "data")
    message = "data: label 'bird'; an index, or one of the model's 2 classes, as 'cat', is required"
    for name in ("top1", "auto"):
        with pytest.raises(DataError, match=message):
            read_metric(name, inputs=model).resolve(outputs, truth).score(outputs, outputs, truth)


@pytest.mark.parametrize(
    ("metric", "output", "labels", "message"),
    [
        ("top1", np.zeros((3, 2)), (2,), "one label per sample"),
        ("top1", np.zeros(3), (3,), "one label per sample"),
        ("top1", np.zeros((3, 2)), (3, 2), "one label per sample"),
        ("top1", np.zeros((3, 2, 5)), (3, 4), "one label per sample"),
        ("miou", np.zeros((2, 3, 2, 2)), (2, 4, 4), FITS),  # another size
        ("miou", np.zeros((2, 1, 4, 4)), (2, 4, 4), FITS),  # one channel of scores
        ("miou", np.zeros((2, 4, 4)), (2, 4, 4), FITS),  # no whole numbers
        ("miou", np.zeros((2, 3)), (2, 4, 4), FITS),
        ("miou", np.zeros((2, 3)), (2,), r"with labels of shape \(2,\); scores \[batch, classes, height"),
        ("miou", np.full((2, 4, 4), -1), (2, 4, 4), "class -1; 0 or more"),
        ("miou", np.full((2, 4, 4), 5000), (2, 4, 4), "class 5000; below 4096"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    metric: str, output: NDArray[Any], labels: tuple[int, ...], message: str
) -> None:
    refused(metric, output, np.zeros(labels, int), message)


def test_labels_may_have_an_axis_of_one_behind_them() -> None:
    assert summed("top1", np.zeros((3, 2)), np.zeros((3, 1), int)).value() == 1.0


ZEROS = np.zeros((2, 3, 2))
AVERAGES = ("macro", "micro", "weighted")


def logits_of(predictions: NDArray[Any], classes: int) -> NDArray[np.float32]:
    """Scores whose largest is the prediction's, classes last."""
    return np.eye(classes, dtype=np.float32)[predictions]


def tagger(*tags: str) -> list[Any]:
    """Inputs of a token classifier whose classes have these names."""
    return inputs_of(
        TextPreprocessing(tokenizer="t", inputs=("x",), task="token-classification", classes=tags)
    )


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
    values = metric.values(join_scores([metric.score({"y": predicted}, {}, Truth(true, 30, "data"))]))
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
    assert found.drop.value == pytest.approx(100 * (1 - f1_score(true, worse, average="macro")))
    assert 10 < found.drop.low < found.drop.value < found.drop.high < 30
    assert found.agreement == pytest.approx((true == worse).mean())
    assert {one.label for one in found.per_class} == {0, 1, 2}


TAGS = ("O", "B-PER", "I-PER", "B-MISC", "I-MISC", "B-A", "B-B", "B-C", "I-A")


def tag_ids(rows: list[list[str]]) -> NDArray[np.int64]:
    """Rows of tags as classes, padded with the position that does not count."""
    width = max(map(len, rows))
    return np.array([[TAGS.index(tag) for tag in row] + [-100] * (width - len(row)) for row in rows])


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


@pytest.mark.parametrize(
    ("metric", "tags", "outputs", "labels", "message"),
    [
        ("f1:binary", (), np.eye(3)[[0, 1]], np.array([0, 2]), "label 2; 0 or 1 is required by f1:binary"),
        ("f1:entities", (), ZEROS, ZEROS[..., 0], "f1:entities: no classes are named; IOB2 tags"),
        ("f1:entities", ("cat", "dog"), ZEROS, ZEROS[..., 0], "the classes are named cat, dog; IOB2"),
        ("f1:entities", ("O", "B-X"), ZEROS, ZEROS[..., 0], "no entity is labelled or predicted"),
        ("f1", (), np.zeros((2, 4, 3)), np.full((2, 3), -100), "no label counts"),
        ("miou", (), np.zeros((1, 2, 2), int), np.full((1, 2, 2), IGNORED_PIXEL), "miou: no label counts"),
    ],
)
def test_what_has_no_value_is_refused(
    metric: str, tags: tuple[str, ...], outputs: NDArray[Any], labels: NDArray[Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        value(read_metric(metric, inputs=tagger(*tags) if tags else ()), outputs, labels)
