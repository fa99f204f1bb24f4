"""Distributions, and their histograms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcompile.calibration.histogram import Histogram

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda generator, size: generator.standard_normal(size),
    "laplace": lambda generator, size: generator.laplace(size=size),
    "uniform": lambda generator, size: generator.uniform(-3, 3, size),
    "relu": lambda generator, size: np.maximum(generator.standard_normal(size), 0),
    "sparse": lambda generator, size: generator.standard_normal(size) * (generator.random(size) < 0.05),
    "outlier": lambda generator, size: np.append(generator.standard_normal(size - 1), 40.0),
}


def draw(name: str, size: int, seed: int = 0) -> NDArray[np.float32]:
    return DISTRIBUTIONS[name](np.random.default_rng(seed), size).astype(np.float32)


def histogram(*batches: NDArray[np.floating[Any]]) -> Histogram:
    found = Histogram()
    for batch in batches:
        found.add(batch)
    return found
