"""The scenes of examples/detector with a class for each pixel, in several heights and widths.

The scenes are that example's own, loaded from its file: a copy would drift. By path, because the examples are
folders to copy from, not an installed package.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

Batch = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

_SCENES = Path(__file__).resolve().parent.parent / "detector" / "scenes.py"
_SIZES = ((96, 96), (64, 64), (48, 80), (96, 64), (64, 48))
"""Heights and widths, each a multiple of 8; the first is timed."""


def _load_scenes() -> ModuleType:
    """Run examples/detector/scenes.py and return it as a module under a name of its own."""
    name = "examples_detector_scenes"
    spec = importlib.util.spec_from_file_location(name, _SCENES)
    if spec is None or spec.loader is None:
        raise ImportError(f"{_SCENES}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


_compose = _load_scenes().compose


def scenes(count: int, *, held_out: bool, seed: int, height: int = 64, width: int = 64) -> Batch:
    """Return images [count,1,height,width] float32 and their class maps [count,height,width] int64."""
    made = _compose(count, held_out=held_out, seed=seed, height=height, width=width)
    return made.images, made.maps


def calibration() -> Iterator[Batch]:
    """Yield a batch of 16 scenes of training digits for each size."""
    for height, width in _SIZES:
        yield scenes(16, held_out=False, seed=100, height=height, width=width)


def evaluation() -> Iterator[Batch]:
    """Yield 24 scenes of held-out digits for each size."""
    for height, width in _SIZES:
        yield scenes(24, held_out=True, seed=200, height=height, width=width)


def small() -> Iterator[Batch]:
    """Yield 8 scenes of 32x32, to be timed."""
    yield scenes(8, held_out=True, seed=300, height=32, width=32)


def wide() -> Iterator[Batch]:
    """Yield 8 scenes of 64x128, to be timed."""
    yield scenes(8, held_out=True, seed=300, height=64, width=128)
