"""Detectors of torchvision: the boxes of all anchors, among which are those that torchvision chooses."""

from __future__ import annotations

import pytest
import torch

from qcompile.errors import InvalidOption
from qcompile.model.named.torchvision_import import suppress
from qcompile.model.pytorch import load_torch
from qcompile.model.source import parse_source


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "torchvision:ssdlite320_mobilenet_v3_large?weights=random&classes=4",
        "torchvision:retinanet_resnet50_fpn?weights=random&classes=4&size=128",
        "torchvision:fcos_resnet50_fpn?weights=random&classes=4&size=128",
    ],
)
def test_what_torchvision_chooses_is_among_the_boxes(spec: str) -> None:
    loaded = load_torch(parse_source(spec))
    detector = loaded.module.module
    side = int(loaded.inputs[0].shape[2])
    detector.transform.min_size, detector.transform.max_size = (side,), side
    detector.score_thresh, detector.topk_candidates, detector.detections_per_img = -1.0, 10, 10
    image = torch.rand(3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = detector([image])[0]
        ours = loaded.module(detector.transform([image])[0].tensors)
    boxes, scores = ours["boxes"][0], ours["scores"][0]
    for box, score, label in zip(theirs["boxes"], theirs["scores"], theirs["labels"], strict=True):
        near = (boxes - box).abs().amax(1) + 100 * (scores[:, label] - score).abs()
        assert near.min() < 1e-2


def test_detectors_of_two_stages_are_refused() -> None:
    with pytest.raises(InvalidOption, match="between two stages") as caught:
        load_torch(parse_source("torchvision:fasterrcnn_resnet50_fpn?weights=random"))
    assert "retinanet_resnet50_fpn" in caught.value.message


def test_suppression_keeps_the_best_of_boxes_that_overlap() -> None:
    boxes = torch.tensor([[0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 5], [20, 20, 30, 30.0]])
    scores = torch.tensor([0.5, 0.9, 0.4, 0.1])
    assert suppress(boxes, scores, 0.5).tolist() == [1, 3], "overlaps of 0.9 and of 5/9 with the best"
    assert suppress(boxes, scores, 0.6).tolist() == [1, 2, 3]
    assert suppress(boxes[:0], scores[:0], 0.5).tolist() == []
