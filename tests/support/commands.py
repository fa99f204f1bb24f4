"""Commands and what they said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from qcompile.calibration import Ranges, save_ranges
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.ranges import Portion
from qcompile.cli import main

MakePath = Callable[..., Path]


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


@pytest.fixture
def qc(capfd: pytest.CaptureFixture[str]) -> Qc:
    """`qc("ranges", "show", ...)` runs a command; no traceback without `-v`, of a child either."""

    def call(*arguments: object) -> Said:
        with pytest.raises(SystemExit) as done:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err or "-v" in arguments
        assert "defect of qcompile" not in err
        return Said(int(done.value.code or 0), out, err)

    return call


@pytest.fixture
def printed(qc: Qc) -> Callable[..., tuple[int, str]]:
    """As `qc`: the exit code, and what was said on both streams."""

    def call(*arguments: object) -> tuple[int, str]:
        code, out, err = qc(*arguments)
        return code, out + err

    return call
