"""The tests for a GPU (tests/engines/gpu) on stand-ins.

A test that fails here would fail on the first GPU for a reason of its own: a list compared with a tuple, a
name that is gone, a message that reads otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_whole import install


@pytest.fixture(autouse=True, params=["8.5.3", "10.16", "11.4"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each version of TensorRT in turn."""
    install(monkeypatch, tmp_path, request.param)
