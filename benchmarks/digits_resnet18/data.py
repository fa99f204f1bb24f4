"""The digits of examples/digits, split and prepared alike, for a larger network.

The functions are that example's own, loaded from its file: a copy would drift, and then the two
networks' accuracies could not be compared.  By path, because `import data` here means this very
file, and the examples are folders to copy from, not an installed package.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

Samples = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

_DIGITS = Path(__file__).resolve().parents[2] / "examples/digits"


def load_from_digits(name: str) -> ModuleType:
    """Run examples/digits/`name`.py and return it as a module under a name of its own."""
    path = _DIGITS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"examples_digits_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_data = load_from_digits("data")

# Images [1297,3,32,32] float32, labels [1297] int64.
training: Callable[[], Samples] = _data.training
# 16 batches of images [16,3,32,32] float32, labels [16] int64, from the training half.
calibration: Callable[[], Iterator[Samples]] = _data.calibration
# 10 batches of images [50,3,32,32] float32, labels [50] int64: the 500 held-out samples.
evaluation: Callable[[], Iterator[Samples]] = _data.evaluation
