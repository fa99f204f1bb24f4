"""The made sounds of examples/mixed_precision: a quiet tone beside a loud hum.

The functions are that example's own, loaded from its file by path, as `import data` means this file.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

Samples = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

_NEIGHBOUR = Path(__file__).resolve().parent.parent / "mixed_precision"


def load_neighbour(name: str) -> ModuleType:
    """Run examples/mixed_precision/`name`.py and return it as a module under a name of its own."""
    path = _NEIGHBOUR / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"examples_mixed_precision_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_data = load_neighbour("data")

# A number of waveforms [N,1,1024] float32 and their labels [N] int64, from a seed.
sounds: Callable[[int, int], Samples] = _data.sounds
# 8 batches of waveforms [50,1,1024] and labels [50].
calibration: Callable[[], Iterator[Samples]] = _data.calibration
# 20 batches of waveforms [50,1,1024] and labels [50].
evaluation: Callable[[], Iterator[Samples]] = _data.evaluation
