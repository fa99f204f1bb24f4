"""Commands and what they said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from qcompile.calibration import Ranges, save_ranges
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.ranges import Portion

MakePath = Callable[..., Path]
MakeModel = Callable[..., onnx.ModelProto]


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Qc = Callable[..., Said]


def handmade(path: Path, tensors: int) -> Path:
    """A ranges file of so many tensors, each ten times as large as the one before."""
    generator = np.random.default_rng(0)
    ranges = Ranges("sha256:aa", {"sha256:dd": Portion(1)})
    for number in range(tensors):
        histogram = ranges.histograms[f"/block.{number}/Conv_output_0"] = Histogram()
        histogram.add((generator.standard_normal(999) * 10.0**number).astype(np.float32))
    save_ranges(ranges, path)
    return path
