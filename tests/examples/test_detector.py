"""examples/detector: three outputs, boxes decoded in the model, COCO's mAP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_examples import built, copied, modules, trains, value

EXAMPLE = Path(__file__).parents[2] / "examples/detector"


def test_the_digits_are_found_in_float_and_int8(tmp_path: Path) -> None:
    folder = copied("detector", tmp_path)
    made = built(folder, "onnx-int8-static", "rtx-fp16", samples=48).artifacts
    assert made["rtx-fp16"].is_file()
    assert value(folder, made["onnx-int8-static"], "map:50", most=80) > 0.9


def test_a_perfect_grid_is_decoded_to_the_boxes_it_was_made_of() -> None:
    torch = pytest.importorskip("torch")
    with modules(EXAMPLE, "train", "scenes", "model") as (train, scenes, model):
        boxes = scenes.compose(6, held_out=True, seed=5).boxes
        heat, distances, _ = train.targets(boxes, 16)
        detector = model.Detector()
        # softplus and sigmoid are undone, so that forward() decodes the targets themselves
        detector.raw = lambda _: (torch.logit(heat, 1e-6), distances)
        found, scores, classes = (one.numpy() for one in detector(torch.zeros(6, 1, 64, 64)))
    for scene in range(6):
        real = boxes[scene][boxes[scene, :, 0] >= 0]
        best = np.argsort(-scores[scene])[: len(real)]
        got = np.column_stack([classes[scene, best], found[scene, best]])
        np.testing.assert_allclose(got[np.lexsort(got.T)], real[np.lexsort(real.T)], atol=1e-3)


def test_training_runs(tmp_path: Path) -> None:
    trains(copied("detector", tmp_path), tmp_path / "w.safetensors")
