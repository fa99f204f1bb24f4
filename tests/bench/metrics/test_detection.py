"""COCO's average precision against pycocotools and its published figures; forms of detectors' outputs."""

from __future__ import annotations

import contextlib
import io
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scoring import inputs_of, scored, value

from qcompile.bench.metrics.accuracy import read_metric
from qcompile.bench.metrics.detection import MeanAveragePrecision, match, read_detections, suppress_overlaps
from qcompile.bench.metrics.metric import Scored
from qcompile.errors import DataError
from qcompile.model.sources.preprocessing import ImagePreprocessing
from qcompile.spec.tensors import TensorInfo

Floats = NDArray[np.float64]


class Detections(NamedTuple):
    boxes: Floats
    scores: Floats
    classes: NDArray[np.int64]


Images = list[tuple[Detections, Floats]]

FIGURES = {  # of `COCOeval.stats`
    "map": 0, "map:50": 1, "map:75": 2, "map:small": 3, "map:medium": 4, "map:large": 5,
}  # fmt: skip


def by_pycocotools(images: Images) -> list[float]:
    """The 12 figures of COCO's own evaluation; -1 where there is none."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def corner(box: Floats) -> list[float]:
        return [float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])]

    annotations, results = [], []
    for image, (found, boxes) in enumerate(images, 1):
        for row in boxes:
            place = corner(row[1:5])
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": image, "category_id": int(row[0]), "bbox": place,
                    "iscrowd": int(row[5]) if len(row) > 5 else 0,
                    "area": float(row[6]) if len(row) > 6 else place[2] * place[3],
                }
            )  # fmt: skip
        results += [
            {"image_id": image, "category_id": int(c), "bbox": corner(box), "score": float(score)}
            for box, score, c in zip(found.boxes, found.scores, found.classes, strict=True)
        ]
    categories = sorted({one["category_id"] for one in (*annotations, *results)})
    truth = COCO()
    truth.dataset = {
        "info": {}, "annotations": annotations, "images": [{"id": i + 1} for i in range(len(images))],
        "categories": [{"id": one} for one in categories],
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(one) for one in evaluation.stats]


def matched(images: Images, mean: MeanAveragePrecision) -> Scored:
    """What is kept of the images."""
    return match([found for found, _ in images], [boxes for _, boxes in images], mean.thresholds, mean.area)


def ours(images: Images, metric: str = "map", weights: Floats | None = None) -> float:
    """The same figure of ours; -1 where there is none."""
    mean = read_metric(metric)
    assert isinstance(mean, MeanAveragePrecision)
    values = mean.values(matched(images, mean))
    [value] = values(np.ones((1, len(images))) if weights is None else weights[None])
    return -1.0 if np.isnan(value) else float(value)


def made(seed: int, count: int, *, crowds: bool = True, ties: bool = True) -> Images:
    """Images with boxes of three classes and sizes, detections near them and elsewhere, some of neither."""
    rng = np.random.default_rng(seed)
    images = []
    for _ in range(count):
        boxes = int(rng.choice([0, 1, 2, 6]))
        low = rng.uniform(0, 300, (boxes, 2))
        size = rng.choice([8.0, 50.0, 200.0], (boxes, 1)) * rng.uniform(0.7, 1.3, (boxes, 2))
        columns = [rng.integers(1, 4, (boxes, 1)), low, low + size]
        if crowds:
            columns += [rng.random((boxes, 1)) < 0.2, size.prod(axis=1, keepdims=True) * 0.8]
        labels = np.concatenate(columns, axis=1).astype(np.float64)
        near = np.repeat(labels[:, 1:5], rng.integers(0, 4, boxes), axis=0)
        near = near + rng.normal(0, 0.06, near.shape) * (near[:, 2:3] - near[:, :1])
        far = rng.uniform(0, 300, (int(rng.integers(0, 4)), 2))
        near = np.concatenate([near, np.concatenate([far, far + 40], axis=1)])
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1e-3)
        score = rng.integers(1, 6, len(near)) / 5.0 if ties else rng.random(len(near))
        images.append((Detections(near, score, rng.integers(1, 4, len(near))), labels))
    if not any(len(boxes) for _, boxes in images) or not any(len(found.boxes) for found, _ in images):
        return made(seed + 1000, count, crowds=crowds, ties=ties)
    return images


@pytest.mark.parametrize("seed", range(40))
def test_figures_equal_those_of_pycocotools(seed: int) -> None:
    images = made(seed, 12, crowds=seed % 2 == 0, ties=seed % 4 < 2)
    expected = by_pycocotools(images)
    for metric, index in FIGURES.items():
        assert ours(images, metric) == pytest.approx(expected[index], abs=1e-9), metric


def test_more_detections_of_a_class_than_count() -> None:
    rng = np.random.default_rng(0)
    images = made(3, 6)
    many = np.concatenate([np.zeros((150, 2)), np.full((150, 2), 30.0)], axis=1) + rng.uniform(0, 9, (150, 4))
    images[0] = (Detections(many, rng.random(150), np.ones(150, int)), np.array([[1.0, 2, 2, 33, 33]]))
    images = [(found, boxes[:, :5]) for found, boxes in images]
    assert ours(images) == pytest.approx(by_pycocotools(images)[0], abs=1e-9)


# Four images of COCO's val2014 (42, 73, 74, 133) with detections of the toolkit's own example,
# results/instances_val2014_fakebbox100_results.json, and the figures of pycocotools for them.
# Source: torchmetrics, tests/unittests/detection/test_map.py, _inputs4 and _compare_fn.
# Rows of detections are x1, y1, x2, y2, score, class; of labels class, x1, y1, x2, y2.
PUBLISHED = [
    ([[258.15, 41.29, 606.41, 285.07, 0.236, 4]], [[4, 214.15, 41.29, 562.41, 285.07]]),
    (
        [[61.00, 22.75, 565.00, 632.42, 0.318, 3], [12.66, 3.32, 281.26, 275.23, 0.726, 2]],
        [[2, 13.00, 22.75, 548.98, 632.42], [2, 1.66, 3.32, 270.26, 275.23]],
    ),
    (
        [
            [87.87, 276.25, 384.29, 379.43, 0.546, 4],
            [0.00, 3.66, 142.15, 316.06, 0.3, 1],
            [296.55, 93.96, 314.97, 152.79, 0.407, 0],
            [328.94, 97.05, 342.49, 122.98, 0.611, 0],
            [356.62, 95.47, 372.33, 147.55, 0.335, 0],
            [464.08, 105.09, 495.74, 146.99, 0.805, 0],
            [276.11, 103.84, 291.44, 150.72, 0.953, 0],
        ],
        [
            [4, 61.87, 276.25, 358.29, 379.43],
            [1, 2.75, 3.66, 162.15, 316.06],
            [0, 295.55, 93.96, 313.97, 152.79],
            [0, 326.94, 97.05, 340.49, 122.98],
            [0, 356.62, 95.47, 372.33, 147.55],
            [0, 462.08, 105.09, 493.74, 146.99],
            [0, 277.11, 103.84, 292.44, 150.72],
        ],
    ),
    ([[0.00, 2.87, 601.00, 421.52, 0.423, 5]], [[5, 13.99, 2.87, 640.00, 421.52]]),
]
PUBLISHED_FIGURES = {
    "map": 0.706, "map:50": 0.901, "map:75": 0.846, "map:small": 0.689, "map:medium": 0.800,
    "map:large": 0.701,
}  # fmt: skip
PUBLISHED_CLASSES = {0: 0.725, 1: 0.800, 2: 0.454, 4: 0.650, 5: 0.900}


def test_the_figures_that_were_published_for_cocos_own_example() -> None:
    images = [
        (Detections(found[:, :4], found[:, 4], found[:, 5].astype(int)), labels)
        for found, labels in (map(np.array, pair) for pair in PUBLISHED)
    ]
    for metric, expected in PUBLISHED_FIGURES.items():
        assert ours(images, metric) == pytest.approx(expected, abs=6e-4), metric
    assert ours(images) == pytest.approx(by_pycocotools(images)[0], abs=1e-9)
    metric = MeanAveragePrecision("map")
    each = metric.classes(matched(images, metric))
    assert {label: value for label, (value, _) in each.items()} == pytest.approx(PUBLISHED_CLASSES, abs=6e-4)
    assert [samples for _, samples in each.values()] == [1, 1, 1, 2, 1]


@pytest.mark.parametrize("seed", range(12))
def test_weights_are_repeated_images(seed: int) -> None:
    images = made(seed, 10, crowds=seed % 2 == 0, ties=False)
    rng = np.random.default_rng(seed)
    for weights in rng.integers(0, 3, (3, 10)).astype(np.float64):
        repeated = [images[i] for i in np.repeat(np.arange(10), weights.astype(int))]
        if sum(len(boxes) for _, boxes in repeated) and sum(len(found.boxes) for found, _ in repeated):
            assert ours(images, weights=weights) == pytest.approx(by_pycocotools(repeated)[0], abs=1e-9)


def outputs_of(images: Images) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """Outputs of a detector, padded, and padded labels."""
    most = max(len(found.boxes) for found, _ in images)
    count = len(images)
    boxes, scores = np.zeros((count, most, 4), np.float32), np.zeros((count, most), np.float32)
    classes = np.full((count, most), -1)
    labels = np.full((count, max(len(one) for _, one in images), images[0][1].shape[1]), -1.0, np.float32)
    for index, (found, labelled) in enumerate(images):
        boxes[index, : len(found.boxes)] = found.boxes
        scores[index, : len(found.boxes)] = found.scores
        classes[index, : len(found.boxes)] = found.classes
        labels[index, : len(labelled)] = labelled
    return {"boxes": boxes, "scores": scores, "labels": classes}, labels


def test_a_drop_has_an_interval_over_images_and_classes() -> None:
    images = made(7, 60)
    outputs, labels = outputs_of(images)
    worse = {**outputs, "boxes": outputs["boxes"] + np.float32(3.0)}
    found = scored("map", outputs, worse, labels, cuts=[10, 33])
    moved = [(Detections(one.boxes + 3.0, one.scores, one.classes), boxes) for one, boxes in images]
    assert found.value == pytest.approx(by_pycocotools(moved)[0], abs=1e-6)
    assert found.drop.value == pytest.approx(100 * (ours(images) - found.value), abs=1e-4)
    assert 0 < found.drop.low < found.drop.value < found.drop.high < 60
    assert {one.label for one in found.per_class} == {1, 2, 3}
    assert scored("map", outputs, worse, labels) == found  # neither batches nor the run change it


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.zeros((2, 3)), r"labels of shape \(2, 3\) for 2 images; map needs boxes"),
        (np.zeros((2, 3, 4)), r"labels of shape \(2, 3, 4\) for 2 images"),
        (np.full((2, 3, 5), -1.0), "map: the labels hold no box that counts"),
        (None, "has no labels for 2 images; map needs boxes"),
    ],
)
def test_labels_that_are_no_boxes_are_refused(labels: Any, said: str) -> None:
    outputs: dict[str, Any] = {
        "boxes": np.zeros((2, 3, 4)), "labels": np.zeros((2, 3), int), "scores": np.ones((2, 3)),
    }  # fmt: skip
    with pytest.raises(DataError, match=said):
        scored("map", outputs, outputs, labels)


def test_made_images_hold_empty_ones_crowds_and_ties() -> None:
    every = [made(seed, 12) for seed in range(8)]
    assert any(len(boxes) == 0 for images in every for _, boxes in images)
    assert any((boxes[:, 5] > 0).any() for images in every for _, boxes in images)
    assert any(len(set(found.scores)) < len(found.scores) for images in every for found, _ in images)


INPUT = inputs_of(ImagePreprocessing(width=200, height=100, classes=("a", "b", "c")))
BOXES = np.array([[[20.0, 10, 60, 50], [100, 40, 180, 90]]])
LABELS, SCORES = np.array([[2, 0]]), np.array([[0.9, 0.6]])


def read(
    outputs: dict[str, NDArray[Any]], samples: int = 1, inputs: list[TensorInfo] = INPUT
) -> tuple[str, Any]:
    """The form, and the detections of the first image."""
    form, images = read_detections(outputs, samples, inputs, "data")
    return form, images[0]


def same(found: Any, keep: int = 2) -> None:
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


BATCH = {  # it says how many count
    "num_dets": np.array([[2]], np.int32), "det_boxes": padded(BOXES, by=3),
    "det_scores": padded(SCORES[..., None], by=3)[..., 0],
    "det_classes": padded(LABELS[..., None], by=3)[..., 0],
}  # fmt: skip
ROWS = padded(BOXES, SCORES[..., None], LABELS[..., None], by=4, fill=0)
DETR = "DETR: logits 'logits' (softmax, the last class is nothing), boxes 'pred_boxes' as shares of the input"


@pytest.mark.parametrize(
    ("outputs", "said", "count"),
    [
        # Of one image, without an axis of images; then by type and shape, whatever they are called.
        ({"boxes": BOXES[0], "labels": LABELS[0], "scores": SCORES[0]},
         "boxes 'boxes', labels 'labels', scores 'scores'", 2),
        ({"a": SCORES[0], "b": LABELS[0], "c": BOXES[0]}, "boxes 'c', labels 'b', scores 'a'", 2),
        (BATCH, "boxes 'det_boxes', labels 'det_classes', scores 'det_scores'", 2),
        ({"logits": np.log(SOFTMAX), "pred_boxes": SHARES}, DETR, 2),
        # Its successors score the classes alone: every pair of query and class counts.
        ({"logits": np.log(SIGMOID / (1 - SIGMOID)), "boxes": SHARES}, "sigmoid", 6),
        ({"output0": ROWS}, "rows 'output0': x1, y1, x2, y2, score, class", 2),
    ],
)  # fmt: skip
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
    assert suppress_overlaps(boxes, scores, classes, 0.5).tolist() == kept
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
        with pytest.raises(DataError, match=r"unknown height and width.*\n  hint: .*preprocessing"):
            read(outputs, inputs=unknown)


def test_the_metric_notes_the_form() -> None:
    metric = read_metric("map", inputs=INPUT)
    labels = np.array([[[2, 20, 10, 60, 50], [0, 100, 40, 180, 92], [-1, 0, 0, 0, 0]]], np.float32)
    assert 0.9 < value(metric, {"y": padded(centred(BOXES), per_class(0), by=0)}, labels) <= 1.0
    assert metric.note.startswith("map: YOLO")
