"""A calibration whose data does what a hostile file would make native code do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MakePath = Callable[..., Path]
_DATA = """
import os, signal, subprocess, sys, time
import numpy as np


def sample():
    return {{"x": np.zeros((1, 16), np.float32)}}


def harm():
{body}
    return [sample(), sample()]
"""


@pytest.fixture
def calibration(tiny_file: MakePath, tmp_path: Path) -> Callable[[str], list[str]]:
    """`calibration("os.abort()")` is the command line of a calibration during which that is run."""

    def words(body: str) -> list[str]:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (tmp_path / "data.py").write_text(_DATA.format(body=lines))
        data, output = f"{tmp_path / 'data.py'}:harm", str(tmp_path / "m.ranges")
        return ["calibrate", str(tiny_file("mlp")), "--data", data, "-o", output]

    return words


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The names of what a command has left beside its output and among the temporary files."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    given = {"mlp.onnx", "data.py", "temporary", "__pycache__"}

    def names() -> list[str]:
        found = [*tmp_path.iterdir(), *place.iterdir()]
        return sorted(path.name for path in found if path.name not in given)

    return names
