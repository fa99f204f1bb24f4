"""Fixed synthetic samples for the benchmarks: as many as are asked for, the same every time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def images(side: int = 224) -> Iterator[dict[str, Any]]:
    """Yield images, float32 [1, 3, side, side]; cheap to make, so that the model decides the time."""
    generator = np.random.default_rng(0)
    base = generator.standard_normal((8, 1, 3, side, side)).astype(np.float32)
    index = 0
    while True:
        yield {"image": np.roll(base[index % 8], index, axis=3)}
        index += 1


def tokens() -> Iterator[dict[str, Any]]:
    """Yield 128 tokens of BERT's vocabulary, all attended to."""
    generator = np.random.default_rng(0)
    while True:
        yield {"tokens": generator.integers(0, 30000, (1, 128)), "mask": np.ones((1, 128), np.int64)}
