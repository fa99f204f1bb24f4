"""Ranges and files of TensorRT's caches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

HEADER = "TRT-8503-EntropyCalibration2"

CACHE = Path("model.cache")


def float_of(digits: str) -> float:
    """The float32 that hexadecimal digits spell, most significant first."""
    return float(np.array([int(digits, 16)], np.uint32).view(np.float32)[0])
