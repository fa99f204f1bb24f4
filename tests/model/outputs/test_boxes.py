"""Boxes of two detectors that are partners, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qcompile.model.outputs.boxes import BoxAgreement


def found(*rows: tuple[float, ...]) -> dict[str, NDArray[Any]]:
    """Outputs of a detector of one image: x1, y1, x2, y2, score, class each."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return {"boxes": table[:, :4], "scores": table[:, 4], "labels": table[:, 5].astype(np.int64)}


A, B, C = (0, 0, 10, 10, 0.9, 1), (20, 20, 30, 40, 0.8, 1), (50, 0, 60, 10, 0.7, 2)


@pytest.mark.parametrize(
    ("other", "same", "rows"),
    [
        ((A, B, C), 6, 6),
        ((C, A, B), 6, 6),  # in another order
        ((A, B), 4, 5),
        ((A, B, C, (80, 80, 90, 90, 0.3, 1)), 6, 7),
        (((0, 0, 10, 6, 0.9, 1), B, C), 6, 6),  # IoU 0.6
        (((0, 0, 10, 4.9, 0.9, 1), B, C), 4, 6),  # 0.49
        (((0, 0, 10, 10, 0.9, 2), B, C), 4, 6),  # of another class
        ((A, A, B, C), 6, 7),  # a box has one partner
        ((A, B, C, (0, 0, 0, 0, 0.0, 0)), 6, 6),  # it pads
        ((), 0, 3),
    ],
)
def test_boxes_have_partners(other: tuple[tuple[float, ...], ...], same: int, rows: int) -> None:
    boxes = BoxAgreement()
    boxes.add(found(A, B, C), found(*other))
    assert (boxes.names, boxes.same, boxes.rows) == (("boxes", "labels", "scores"), same, rows)
    boxes.add(found(A), found(A))
    assert (boxes.same, boxes.rows) == (same + 2, rows + 2)


def test_batches_of_images_with_counts_have_partners() -> None:
    table = np.array([[A, B], [C, A]], np.float32)
    outputs = {
        "num": np.array([[2], [1]], np.int32), "boxes": table[..., :4], "scores": table[..., 4],
        "classes": table[..., 5].astype(np.int32),
    }  # fmt: skip
    boxes = BoxAgreement()
    boxes.add(outputs, {**outputs, "num": np.array([[1], [1]], np.int32)})
    assert (boxes.same, boxes.rows) == (4, 5)


def test_what_is_no_boxes_has_no_partners() -> None:
    boxes = BoxAgreement()
    boxes.add({"y": np.ones((2, 10), np.float32)}, {"y": np.ones((2, 10), np.float32)})
    boxes.add(found(A), found(A))
    assert (boxes.names, boxes.rows) == ((), 0)
