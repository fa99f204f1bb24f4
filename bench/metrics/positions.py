"""Class scores and labels in one shape: the axis of classes found, labels laid over the positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...model.preprocessing import Task, preprocessing_of
from ...tensors import TensorInfo

IGNORED_POSITION = -100
"""Label of a position that does not count: PyTorch's default `ignore_index`."""

_CLASSES_LAST: tuple[Task, ...] = ("token-classification", "language-model", "speech-recognition")


def has_classes_last(inputs: Sequence[TensorInfo]) -> bool:
    """Return whether the task's scores are [batch, positions, classes], as those of transformers are."""
    preprocessing = preprocessing_of(inputs)
    return preprocessing is not None and preprocessing.task in _CLASSES_LAST


def scores_over_labels(
    scores: NDArray[Any], labels: NDArray[np.int64], where: str, *, classes_last: bool = False
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return scores as [batch, classes, positions...], and labels as [batch, positions...].

    Args:
        scores: [batch, classes], [batch, classes, positions...] or [batch, positions..., classes].
        labels: One per sample, or one per position; an axis of extent 1 behind them is left out.
        where: Where they come from, for messages.
        classes_last: Which of the two it is where both fit.

    Raises:
        DataError: If they do not fit.
    """
    if scores.ndim >= 2:
        first, last = (scores.shape[0], *scores.shape[2:]), scores.shape[:-1]
        for shape, is_last in sorted(((first, False), (last, True)), key=lambda one: one[1] != classes_last):
            if labels.shape == shape or labels.shape == (*shape, 1):
                return np.moveaxis(scores, -1, 1) if is_last else scores, labels.reshape(shape)
    raise DataError(
        f"{where}: an output of shape {scores.shape} with labels of shape {labels.shape}; [batch, classes] "
        "and one label per sample, or [batch, classes, positions...] or [batch, positions..., classes] and "
        "one per position, are required",
        hint="give `metric` file.py:function for outputs of another kind",
    )


def require_classes(labels: NDArray[np.int64], classes: int, where: str) -> None:
    """Refuse labels that are no index of a class.

    Raises:
        DataError: Naming the first of them.
    """
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        raise DataError(
            f"{where}: label {wrong[0]}; 0 to {classes - 1} is required: there are {classes} classes"
        )
