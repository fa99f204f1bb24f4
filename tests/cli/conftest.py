"""Commands as a user gives them, and a ranges file of the residual model."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import MakePath, Qc, Said


@pytest.fixture
def done(qc: Qc) -> Qc:
    """As `qc`, of a command that must succeed."""

    def call(*arguments: object) -> Said:
        said = qc(*arguments)
        assert said.code == 0, said
        return said

    return call


@pytest.fixture
def model(tiny_file: MakePath) -> Path:
    """The residual model."""
    return tiny_file("residual")


@pytest.fixture
def data(samples: MakePath) -> Path:
    """16 samples of it."""
    return samples("residual", 16)


@pytest.fixture
def file(done: Qc, model: Path, data: Path, tmp_path: Path) -> Path:
    """A ranges file of the residual model."""
    output = tmp_path / "model.ranges"
    done("calibrate", model, "--data", data, "-o", output, "--method", "entropy", "--threads", 1)
    return output
