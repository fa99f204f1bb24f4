"""Accuracy over labelled data: the share of samples whose largest output is the label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, InvalidOption

METRICS = ("top1", "top5")


def top_k(outputs: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]], k: int) -> float:
    """Return the share of samples whose label is among the `k` largest outputs.

    Args:
        outputs: Scores [batch, classes] of each batch.
        labels: Class indices [batch] of each batch.
        k: How many guesses count.

    Raises:
        DataError: If an output is not [batch, classes], or labels and samples differ in number.
    """
    right, total = 0, 0
    for scores, truth in zip(outputs, labels, strict=True):
        if scores.ndim != 2 or len(scores) != len(truth):
            raise DataError(
                f"accuracy: an output of shape {scores.shape} with {len(truth)} labels; "
                "[batch, classes] and one label per sample are required"
            )
        # Of equal scores the first wins, as with argmax.
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        right += int((best == truth.reshape(-1, 1)).any(axis=1).sum())
        total += len(truth)
    return right / total


def parse_metric(text: str) -> int:
    """Return `k` of "top1" or "top5".

    Raises:
        InvalidOption: If the metric is unknown.
    """
    if text not in METRICS:
        raise InvalidOption(f"metric {text!r} is unknown; known are {', '.join(METRICS)}")
    return int(text.removeprefix("top"))
