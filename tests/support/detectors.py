"""A detector whose graph suppresses overlaps: how many boxes it returns depends on values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from written_models import model_of, normal

CELLS, CLASSES = 64, 3


def detector(tail: str = "", **more: NDArray[Any]) -> onnx.ModelProto:
    """Two convolutions over 32 x 32 pixels, a box and scores for each of 64 cells, NonMaxSuppression.

    `tail` goes on behind the scores of the boxes that are kept, `kept_scores`, to the output `scores`; it may
    read `more`.
    """
    rows = np.indices((8, 8)).reshape(2, CELLS)[::-1].T * 4.0
    stored: dict[str, Any] = {
        "w": normal(16, 3, 3, 3, seed=1, scale=0.3), "b": normal(16, seed=2, scale=0.1),
        "v": normal(4 + CLASSES, 16, 4, 4, seed=3, scale=0.1), "c": normal(4 + CLASSES, seed=4, scale=0.1),
        "flat": np.array([1, 4 + CLASSES, CELLS]), "parts": np.array([4, CLASSES]),
        "corners": np.array([2, 2]), "cells": rows[None].astype(np.float32), "four": np.float32(4),
        "most": np.array([CELLS]),
        "overlap": np.array([0.5], np.float32), "least": np.array([0.6], np.float32),
        "first": np.array([0]), "second": np.array([1]), "one": np.array(1), "two": np.array(2),
    }  # fmt: skip
    text = f"""(float[1, 3, 32, 32] x) => (float[n, 4] boxes, float[n] scores, int64[n] labels) {{
        h = Conv <pads = [1, 1, 1, 1]> (x, w, b) r = Relu (h) g = Conv <strides = [4, 4]> (r, v, c)
        f = Reshape (g, flat) raw, logits = Split <axis = 1> (f, parts)
        t = Transpose <perm = [0, 2, 1]> (raw) at, size = Split <axis = 2> (t, corners)
        low = Add (at, cells) wide = Softplus (size) far = Mul (wide, four) high = Add (low, far)
        all_boxes = Concat <axis = 2> (low, high) all_scores = Sigmoid (logits)
        places = NonMaxSuppression (all_boxes, all_scores, most, overlap, least)
        box = Gather <axis = 1> (places, two) labels = Gather <axis = 1> (places, one)
        image_boxes = Squeeze (all_boxes, first) boxes = Gather (image_boxes, box)
        image_scores = Squeeze (all_scores, first)
        of_box = Unsqueeze (box, second) of_class = Unsqueeze (labels, second)
        pairs = Concat <axis = 1> (of_class, of_box) kept_scores = GatherND (image_scores, pairs)
        {tail or "scores = Identity (kept_scores)"}
    }}"""
    return model_of(text, **stored, **more)


def images(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Smooth images [count, 3, 32, 32]."""
    rng = np.random.default_rng(seed)
    coarse = rng.standard_normal((count, 3, 8, 8)).repeat(4, 2).repeat(4, 3)
    return (coarse + 0.3 * rng.standard_normal((count, 3, 32, 32))).astype(np.float32)


def save_images(path: Path, count: int, seed: int = 0) -> str:
    """Write images, one a batch, and return how `data` names them."""
    path.mkdir()
    for index, image in enumerate(images(count, seed)):
        np.save(path / f"{index:02}.npy", image[None])
    return str(path)
