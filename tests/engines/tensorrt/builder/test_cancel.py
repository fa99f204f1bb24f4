"""Ctrl-C during a real TensorRT-RTX build: the build ends, nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import qcompile

pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")


def test_ctrl_c_cancels_the_build_and_leaves_nothing(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    steps: list[int] = []

    def interrupted(text: str, done: int = 0, *_: object) -> None:
        if text == "build" and done:
            steps.append(done)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qcompile.build(
            tiny_file("residual"),
            tmp_path / "m.engine",
            target="tensorrt-rtx",
            gpus=["sm86"],
            progress=interrupted,
        )
    assert len(steps) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["residual.onnx"]


def test_the_build_tells_its_progress(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    qcompile.build(
        tiny_file("residual"),
        tmp_path / "m.engine",
        target="tensorrt-rtx",
        gpus=["sm86"],
        progress=lambda text, done=0, total=None, /: told.append((text, done, total)),
    )
    steps = [(done, total) for text, done, total in told if text == "build" and done]
    assert steps
    assert all(total is None or done <= total for done, total in steps)
