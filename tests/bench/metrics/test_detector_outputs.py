"""Forms of detectors' outputs: each says the same boxes, and what has no form is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scoring import inputs_of, value

from qcompile.bench.metrics.accuracy import read_metric
from qcompile.bench.metrics.detection import Detections, read_detections, suppressed
from qcompile.errors import DataError
from qcompile.model.preprocessing import ImagePreprocessing
from qcompile.tensors import TensorInfo

INPUT = inputs_of(ImagePreprocessing(width=200, height=100, classes=("a", "b", "c")))
BOXES = np.array([[[20.0, 10, 60, 50], [100, 40, 180, 90]]])
LABELS, SCORES = np.array([[2, 0]]), np.array([[0.9, 0.6]])


def read(
    outputs: dict[str, NDArray[Any]], samples: int = 1, inputs: list[TensorInfo] = INPUT
) -> tuple[str, Any]:
    """The form, and the detections of the first image."""
    form, images = read_detections(outputs, samples, inputs, "data")
    return form, images[0]


def same(found: Detections, keep: int = 2) -> None:
    """Whether the best detections are those above."""
    boxes, scores, classes = found
    order = np.argsort(-scores, kind="stable")[:keep]
    assert boxes[order] == pytest.approx(BOXES[0], abs=1e-4)
    assert classes[order].tolist() == LABELS[0].tolist()
    assert scores[order] == pytest.approx(SCORES[0], abs=1e-6)


def centred(boxes: NDArray[Any]) -> NDArray[Any]:
    """x1, y1, x2, y2 to cx, cy, width, height."""
    return np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], axis=-1)


def padded(*parts: NDArray[Any], by: int, fill: float = 1) -> NDArray[np.float32]:
    """Columns of the best detections, and rows of one number behind them."""
    rows = np.concatenate(parts, axis=2)
    return np.concatenate([rows, np.full((1, by, rows.shape[2]), fill)], axis=1).astype(np.float32)


def per_class(nothing: float) -> NDArray[np.float64]:
    """The scores of each class."""
    scores = np.full((1, 2, 3), nothing, np.float64)
    scores[0, [0, 1], LABELS[0]] = SCORES[0]
    return scores


SHARES = centred(BOXES) / [200, 100, 200, 100]
SOFTMAX = np.concatenate([per_class(1e-9), 1 - SCORES[..., None]], axis=2)
SIGMOID = per_class(1e-9)


@pytest.mark.parametrize(
    ("outputs", "said", "count"),
    [
        # Of one image, without an axis of images; then by type and shape, whatever they are called.
        (
            {"boxes": BOXES[0], "labels": LABELS[0], "scores": SCORES[0]},
            "boxes 'boxes', labels 'labels', scores 'scores'",
            2,
        ),
        ({"a": SCORES[0], "b": LABELS[0], "c": BOXES[0]}, "boxes 'c', labels 'b', scores 'a'", 2),
        (  # A batch says how many count.
            {
                "num_dets": np.array([[2]], np.int32),
                "det_boxes": padded(BOXES, by=3),
                "det_scores": padded(SCORES[..., None], by=3)[..., 0],
                "det_classes": padded(LABELS[..., None], by=3)[..., 0],
            },
            "boxes 'det_boxes', labels 'det_classes', scores 'det_scores'",
            2,
        ),
        (
            {"logits": np.log(SOFTMAX), "pred_boxes": SHARES},
            "DETR: logits 'logits' (softmax, the last class is nothing), boxes 'pred_boxes' as shares of the "
            "input",
            2,
        ),
        # Its successors score the classes alone: every pair of query and class counts.
        ({"logits": np.log(SIGMOID / (1 - SIGMOID)), "boxes": SHARES}, "sigmoid", 6),
        (
            {"output0": padded(BOXES, SCORES[..., None], LABELS[..., None], by=4, fill=0)},
            "rows 'output0': x1, y1, x2, y2, score, class",
            2,
        ),
    ],
)
def test_a_form_says_its_outputs_and_the_same_boxes(
    outputs: dict[str, NDArray[Any]], said: str, count: int
) -> None:
    form, found = read(outputs)
    assert said in form
    assert len(found[0]) == count
    same(found)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("objectness", [False, True])
@pytest.mark.parametrize("classes", [3, 0])
def test_yolos_predictions_are_suppressed(transposed: bool, objectness: bool, classes: int) -> None:
    parts = [centred(BOXES), *([np.ones((1, 2, 1))] if objectness else []), per_class(0)]
    rows = np.concatenate(parts, axis=2)
    again = rows + np.array([1.0] * 2 + [0.0] * (rows.shape[2] - 2))  # overlaps, with a lower score
    again[..., -3:] *= 0.5
    rows = np.concatenate([rows, again, np.zeros((1, 60, rows.shape[2]))], axis=1).astype(np.float32)
    if objectness and not classes:
        return  # nothing tells it from a class
    outputs = {"output0": rows.transpose(0, 2, 1) if transposed else rows}
    form, found = read(outputs, inputs=INPUT if classes else [])
    first = 5 if objectness else 4
    assert f"{first} + classes" in form
    assert len(found[0]) == 2
    same(found)


def test_suppression_is_torchvisions_nms() -> None:
    """Its operator needs its own library, so this is its definition: greedy, by falling score."""
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 60, (80, 2))
    boxes = np.concatenate([low, low + rng.uniform(20, 60, (80, 2))], axis=1)
    scores, classes = rng.random(80), rng.integers(0, 2, 80)
    kept: list[int] = []
    for index in np.argsort(-scores):
        clear = True
        for other in kept:
            if classes[other] == classes[index]:
                a, b = torch.tensor(boxes[[index, other]])
                inner = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0).prod()
                union = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - inner
                clear &= bool(inner / union <= 0.5)
        if clear:
            kept.append(int(index))
    assert suppressed(boxes, scores, classes, 0.5).tolist() == kept
    assert 10 < len(kept) < 70


@pytest.mark.parametrize(
    "outputs",
    [
        {"y": np.zeros((2, 10))},
        {"boxes": np.zeros((2, 5, 4))},
        {"boxes": np.zeros((5, 4)), "labels": np.zeros(5, int), "scores": np.zeros(5)},  # of two images
        {"y": np.zeros((2, 9, 11))},  # neither 4 + 3 nor 5 + 3
    ],
)
def test_other_outputs_are_refused_with_the_way_out(outputs: dict[str, NDArray[Any]]) -> None:
    with pytest.raises(
        DataError, match=r"data: outputs .* for 2 images; boxes with labels and scores"
    ) as caught:
        read(outputs, samples=2)
    assert "file.py:function" in caught.value.hint


def test_the_size_of_the_input_is_that_of_its_preprocessing_or_its_shape() -> None:
    outputs = {"logits": np.zeros((1, 1, 4)), "pred_boxes": np.ones((1, 1, 4))}
    for inputs, corner in ((INPUT, [300, 150]), ([TensorInfo("x", "float32", ("n", 3, 32, 64))], [96, 48])):
        assert read(outputs, inputs=inputs)[1][0][0, 2:].tolist() == corner
    for unknown in ([], [TensorInfo("x", "float32", ("n", 3, "h", "w"))]):
        with pytest.raises(DataError, match=r"height and width are not known.*\n  hint: .*preprocessing"):
            read(outputs, inputs=unknown)


def test_the_metric_notes_the_form() -> None:
    metric = read_metric("map", inputs=INPUT)
    labels = np.array([[[2, 20, 10, 60, 50], [0, 100, 40, 180, 92], [-1, 0, 0, 0, 0]]], np.float32)
    assert 0.9 < value(metric, {"y": padded(centred(BOXES), per_class(0), by=0)}, labels) <= 1.0
    assert metric.note.startswith("map: YOLO")
