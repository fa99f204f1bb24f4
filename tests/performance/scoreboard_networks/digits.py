"""The network of examples/digits, trained on scikit-learn's digits."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .base import Array, Counted, Sample, shares


def example(name: str) -> Any:
    """Import a file of the example."""
    folder = str(Path(__file__).resolve().parents[3] / "examples/digits")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def images() -> Iterator[Sample]:
    """Yield float32 [1, 3, 32, 32]: 64 images of the training half, and the other half."""
    for image in example("data").training()[0][:64]:
        yield {"image": image[None]}
    for batch, _ in example("data").evaluation():
        for image in batch:
            yield {"image": image[None]}


@Counted
def accuracy(_: list[Array], found: list[Array], numbers: Array) -> Array:
    """Count the evaluation's images named right."""
    labels = np.concatenate([labels for _, labels in example("data").evaluation()])
    return shares(list(np.concatenate(found).argmax(-1) == labels[numbers]))
