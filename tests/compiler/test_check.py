"""Outputs of a file beside those of its original: equal but for rounding, boxes in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qcompile.compiler.check import compare_outputs

NAMES = ["boxes", "scores", "labels", "features"]


def outputs(rows: list[int], count: int = 400) -> list[NDArray[Any]]:
    """Boxes of those rows of a table; features that are always the same."""
    low = np.random.default_rng(0).integers(0, 900, (count, 2))
    boxes = np.concatenate([low, low + 30], 1).astype(np.float32)
    scores, labels = np.linspace(0.9, 0.1, count, dtype=np.float32), np.arange(count) % 7
    return [boxes[rows], scores[rows], labels[rows], np.ones((1, 4), np.float32)]


@pytest.mark.parametrize(
    ("rows", "detail"),
    [
        (list(range(400)), "1 input, equal"),
        ([1, 0, *range(2, 400)], "1 input, 800 of 800 boxes with a partner"),
        (list(range(398)), "1 input, 796 of 798 boxes with a partner"),
        (list(range(380)), "output 'boxes': 380x4; 400x4 is required"),
    ],
    ids=["equal", "in another order", "two fewer", "many fewer"],
)
def test_boxes_may_change_places(rows: list[int], detail: str) -> None:
    check = compare_outputs("same", NAMES, [(outputs(list(range(400))), outputs(rows))])
    assert (check.passed, check.detail) == (detail.startswith("1 input"), detail)


def test_what_is_beside_the_boxes_is_compared_as_ever() -> None:
    second = outputs([1, 0, *range(2, 400)])
    second[3] = second[3] + 1
    check = compare_outputs("same", NAMES, [(outputs(list(range(400))), second)])
    assert not check.passed
    assert check.detail.startswith("output 'features' differs by up to 1")
