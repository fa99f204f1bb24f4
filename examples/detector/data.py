"""Scenes with boxes: to train, to calibrate, and of digits that the network has never seen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scenes import compose

Batch = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

_CALIBRATION_BATCHES = 8
_EVALUATION_BATCHES = 10


def calibration() -> Iterator[Batch]:
    """Yield 8 batches of 16 scenes [16,1,64,64] of training digits, and their boxes [16,4,5]."""
    for seed in range(_CALIBRATION_BATCHES):
        scenes = compose(16, held_out=False, seed=100 + seed)
        yield scenes.images, scenes.boxes


def evaluation() -> Iterator[Batch]:
    """Yield 10 batches of 20 scenes [20,1,64,64] of held-out digits, and their boxes [20,4,5].

    A box is class, x1, y1, x2, y2 in pixels; rows of class -1 are padding.
    """
    for seed in range(_EVALUATION_BATCHES):
        scenes = compose(20, held_out=True, seed=200 + seed)
        yield scenes.images, scenes.boxes
