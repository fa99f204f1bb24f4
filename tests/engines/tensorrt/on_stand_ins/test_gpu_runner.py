"""`tests/engines/gpu/test_runner_on_gpu.py` on stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_whole import gpu_tests

globals().update(gpu_tests("test_runner_on_gpu"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Engines of one version serve no other."""
    return tmp_path
