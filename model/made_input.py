"""Input made up for a model: for checks and benchmarks where the user gave no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DataError
from ..shapes import Feeds, TensorInfo, fill_dynamic


def made_feeds(
    inputs: Sequence[TensorInfo],
    *,
    seed: int = 0,
    extent: int = 1,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Feeds:
    """Return made input: standard normal floats, integers and booleans of 0 and 1 (safe as indices).

    Args:
        inputs: What to make.
        seed: Equal seeds make equal input.
        extent: For every dynamic axis.
        shapes: Shapes to use for some inputs instead.

    Raises:
        DataError: If an input is of strings, which cannot be made up.
    """
    generator = np.random.default_rng(seed)
    feeds: Feeds = {}
    for tensor in inputs:
        shape = (shapes or {}).get(tensor.name) or fill_dynamic(tensor, extent)
        if tensor.dtype in ("string", "undefined"):
            raise DataError(
                f"input {tensor.name!r} is of {tensor.dtype}; no input can be made for it",
                hint="give data",
                tensor=tensor.name,
            )
        if "float" in tensor.dtype:
            feeds[tensor.name] = generator.standard_normal(shape).astype(_numpy_dtype(tensor.dtype))
        else:
            feeds[tensor.name] = generator.integers(0, 2, shape).astype(tensor.dtype)
    return feeds


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)
