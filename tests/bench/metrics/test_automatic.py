"""Which metric follows from task, labels and outputs, and that it says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scoring import inputs_of

from qcompile.bench.metrics.accuracy import read_metric
from qcompile.bench.metrics.metric import Truth
from qcompile.errors import DataError
from qcompile.model.preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    Preprocessing,
    Task,
    TextPreprocessing,
)

IDS, CLASSES = np.zeros((4, 6), int), np.array([0, 1, 2, 0])


def text(task: Task, *classes: str) -> TextPreprocessing:
    """A model of texts."""
    return TextPreprocessing(tokenizer="t", inputs=("x",), task=task, classes=classes)


def image(task: Task) -> ImagePreprocessing:
    """A model of images."""
    return ImagePreprocessing(height=8, width=8, task=task)


@pytest.mark.parametrize(
    ("labels", "output", "preprocessing", "expected"),
    [
        (CLASSES, (4, 3), None, "top1"),
        (CLASSES, (4, 3), image("image-classification"), "top1"),
        (CLASSES[:, None], (4, 3), text("text-classification"), "top1"),
        (CLASSES.astype(np.float32), (4, 3), None, "top1"),  # as `top1` alone takes them
        (IDS, (4, 3, 6), None, "top1"),
        (np.zeros((4, 8, 8), int), (4, 3, 8, 8), None, "miou"),
        (np.zeros((4, 8, 8), np.uint8), (4, 3, 8, 8), image("semantic-segmentation"), "miou"),
        (np.zeros((4, 2, 5), np.float32), (4, 9, 7), None, "map"),
        (np.zeros((4, 2, 6), np.float32), (4, 9, 7), image("object-detection"), "map"),
        (np.array(["a", "b", "c", "d"]), (4, 9, 5), None, "wer"),
        (np.array(["a", "b", "c", "d"]), (4, 9, 5), AudioPreprocessing(inputs=("x",)), "wer"),
        (IDS, (4, 6, 9), text("language-model"), "perplexity"),
        (IDS, (4, 6, 3), text("token-classification", "O", "B-PER", "I-PER"), "f1:entities"),
        (IDS, (4, 6, 3), text("token-classification", "noun", "verb"), "f1"),
        (np.zeros((4, 6), int), (4, 6), None, "ndcg"),
        (np.linspace(0, 1, 4), (4, 1), None, "mse"),
        (CLASSES, (4, 1), None, "mse"),
        (np.linspace(0, 1, 4), (4,), text("embedding"), "spearman"),
        (np.full((4, 6), 0.5), (4, 6), None, "mse"),
        (CLASSES, (4, 6), text("embedding"), "cosine"),
        (np.linspace(0, 1, 4), (4, 6), text("embedding"), "neighbours"),
        (None, (4, 6), None, "cosine"),
        (None, (4, 6), text("embedding"), "cosine"),
        (None, (4, 6, 9), text("language-model"), "kl"),
    ],
)
def test_the_metric_follows_from_task_labels_and_outputs(
    labels: NDArray[Any] | None,
    output: tuple[int, ...],
    preprocessing: Preprocessing | None,
    expected: str,
) -> None:
    inputs = inputs_of(preprocessing) if preprocessing else []
    metric = read_metric("auto", inputs=inputs)
    chosen = metric.resolved({"y": np.zeros(output, np.float32)}, Truth(labels, 4, "data"))
    assert chosen.name == expected
    assert chosen.note.startswith(f"{expected}: ")
    assert not metric.needs_labels


def test_another_metric_stays_itself() -> None:
    metric = read_metric("top5")
    assert metric.resolved({"y": np.zeros((4, 3))}, Truth(CLASSES, 4, "data")) is metric


def test_labels_of_no_known_type_are_refused() -> None:
    with pytest.raises(DataError, match="labels of type complex128; numbers or texts"):
        read_metric("auto").resolved({"y": np.zeros((4, 3))}, Truth(CLASSES * 1j, 4, "data"))
