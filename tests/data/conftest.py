"""Functions of batches, written for a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from batches_to_read import Script
from PIL import Image

from qcompile.data import images


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """`script("yield x")` returns the spelling of a function with this body."""

    def make(body: str, *, head: str = "") -> str:
        lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
        (tmp_path / "data.py").write_text(f"import numpy as np\n{head}\ndef samples():\n{lines}\n")
        return f"{tmp_path / 'data.py'}:samples"

    return make


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images that were decoded so far, by their paths."""
    paths: list[str] = []
    decode = images.decode

    def noting(path: Path, mode: str, where: str) -> Image.Image:
        paths.append(where)
        return decode(path, mode, where)

    monkeypatch.setattr(images, "decode", noting)
    return paths
