"""Ranges that are written to files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcompile.calibration import Method, Ranges, save_ranges
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.ranges import Portion

Values = NDArray[np.float32]

NONE = np.zeros(0, np.float32)


def make(tensors: Mapping[str, Values], **options: Any) -> Ranges:
    options = {"model": "sha256:aa", "portions": {"sha256:dd": Portion(8)}} | options
    ranges = Ranges(**options)
    for name, values in tensors.items():
        ranges.histograms[name] = Histogram()
        ranges.histograms[name].add(values)
    return ranges


def tensors(seed: int = 0) -> dict[str, Values]:
    generator = np.random.default_rng(seed)
    return {
        "x": generator.standard_normal((8, 100)).astype(np.float32),
        "conv1/out:0": np.maximum(generator.standard_normal((8, 50)), 0).astype(np.float32),
    }


def full(seed: int = 0) -> Ranges:
    """Ranges with everything that a file can hold."""
    return make(
        tensors(seed) | {"empty": NONE, "ënde": np.zeros(3, np.float32)},
        portions={"sha256:dd": Portion(5, 4, (1, 3)), "sha256:cc": Portion(3)},
        method=Method("percentile", 99.5),
        shared={"concat": ("x", "empty"), "flat": ("x",)},
        skipped={"ids": "it is int64", "a": "its type cannot be inferred"},
    )


def saved(ranges: Ranges, path: Path) -> Path:
    save_ranges(ranges, path)
    return path
