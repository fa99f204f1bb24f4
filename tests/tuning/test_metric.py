"""Accuracy by name or by the user's function, against numbers computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qcompile.errors import DataError, InvalidOption, ModelError, QCompileError
from qcompile.tuning.metric import read_metric

SCORES = np.array(
    [[9, 1, 0, 0, 0, 0, 0], [7, 6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 0, 0, 0, 0]], np.float32
)
LABELS = np.array([0, 4, 1, 2])  # right; within five; sixth; right


def value(metric: str, *batches: NDArray[np.float32], labels: list[NDArray[np.int64]] | None = None) -> float:
    """A metric of batches of one output, against itself."""
    outputs = [{"y": batch} for batch in batches]
    return read_metric(metric).value(outputs, labels or [], outputs)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_top_k_is_percent_of_all_samples_however_they_are_batched(cut: int) -> None:
    batches, labels = np.split(SCORES, [cut]), np.split(LABELS, [cut])
    assert value("top1", *batches, labels=labels) == 50.0
    assert value("top5", *batches, labels=labels) == 75.0
    assert read_metric("top1").needs_labels
    assert read_metric("top5").unit == "points"


def test_cosine_is_the_mean_over_samples_and_outputs() -> None:
    metric = read_metric("cosine")
    expected = [{"y": np.array([[1, 0], [0, 2], [0, 0]], np.float32), "z": np.ones((3, 1, 2), np.float32)}]
    found = [{"y": np.array([[3, 0], [1, 1], [0, 0]], np.float32), "z": -np.ones((3, 1, 2), np.float32)}]
    # y: the same direction, 45 degrees, nothing both times; z: the opposite.
    assert metric.value(found, [], expected) == pytest.approx(100 * (1 + np.sqrt(0.5) + 1 - 3) / 6)
    assert metric.value(expected, [], expected) == pytest.approx(100)
    assert not metric.needs_labels


def test_cosine_of_something_and_nothing_is_zero() -> None:
    zero, one = {"y": np.zeros((1, 3), np.float32)}, {"y": np.ones((1, 3), np.float32)}
    assert read_metric("cosine").value([zero], [], [one]) == 0
    assert read_metric("cosine").value([one], [], [zero]) == 0


def test_cosine_of_a_large_output_does_not_overflow() -> None:
    huge = np.full((2, 4), 3e38, np.float32)
    assert value("cosine", huge) == pytest.approx(100)
    assert read_metric("cosine").value([{"y": huge}], [], [{"y": huge / 2}]) == pytest.approx(100)


OWN = """
import numpy as np

def error(outputs, labels):
    return -float(np.abs(outputs["y"][:, 0] - labels).mean())

def shapes(outputs, labels):
    assert labels is None, labels
    return np.float32(len(outputs["y"]))

def nothing(outputs, labels):
    return None

def nan(outputs, labels):
    return float("nan")

def fails(outputs, labels):
    return outputs["logits"]
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "metric.py"
    path.write_text(OWN)
    return str(path)


def test_a_function_of_ones_own_gets_all_samples_together(own: str) -> None:
    batches, labels = np.split(SCORES, [3]), np.split(LABELS, [3])
    assert value(f"{own}:error", *batches, labels=labels) == -np.mean([9, 3, 0, 2])
    assert value(f"{own}:shapes", *batches) == 4.0
    assert not read_metric(f"{own}:error").needs_labels


@pytest.mark.parametrize(("name", "said"), [("nothing", "returned None"), ("nan", "returned nan")])
def test_what_it_returns_must_be_a_finite_number(own: str, name: str, said: str) -> None:
    with pytest.raises(DataError, match=rf"metric\.py:{name}: {said}; a finite number is required"):
        value(f"{own}:{name}", SCORES)


def test_what_it_raises_is_told_with_its_line(own: str) -> None:
    with pytest.raises(ModelError, match=r"KeyError: 'logits' \(metric.py, line 18\)"):
        value(f"{own}:fails", SCORES)


@pytest.mark.parametrize("name", ["top2", "accuracy", "", "Top1"])
def test_an_unknown_metric_names_those_known(name: str) -> None:
    with pytest.raises(InvalidOption, match=r"known are top1, top5, cosine and file\.py:function"):
        read_metric(name)


def test_a_function_that_is_not_there_is_named(own: str, tmp_path: Path) -> None:
    with pytest.raises(QCompileError, match="metrics"):
        read_metric(f"{tmp_path}/metrics.py:error")
    with pytest.raises(QCompileError, match="accuracy"):
        read_metric(f"{own}:accuracy")


def test_outputs_without_samples_are_refused_in_words(own: str) -> None:
    number, other = np.float32(1).reshape(()), np.ones((1, 3), np.float32)
    for metric in ("cosine", f"{own}:shapes"):
        with pytest.raises(DataError, match="'y' is one number for a whole batch"):
            value(metric, number)
    with pytest.raises(DataError, match=r"'y' is of shapes \(1, 3\), \(4, 7\)"):
        value(f"{own}:shapes", SCORES, other)
    with pytest.raises(DataError, match=r"\[batch, classes\] and one label per sample"):
        value("top1", SCORES, labels=[LABELS[:2]])
