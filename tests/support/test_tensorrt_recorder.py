"""The real TensorRT-RTX is recorded, and builds the same engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import qcompile

pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
SUPPORT = Path(__file__).parent
BUILD = """
import sys, qcompile
shapes = dict(min_shapes={"x": (1, 16)}, opt_shapes={"x": (2, 16)}, max_shapes={"x": (4, 16)})
qcompile.build(sys.argv[1], sys.argv[2], target="tensorrt-rtx", gpus=["sm86"], **shapes)
"""


def test_a_recorded_build_makes_the_same_engine(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    folders = [str(SUPPORT / "recording"), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    recording = tmp_path / "recording.jsonl"
    for name, more in (("plain", {}), ("recorded", {"QCOMPILE_TENSORRT_RECORD": str(recording)})):
        command = [sys.executable, "-c", BUILD, str(tiny_file("mlp")), str(tmp_path / f"{name}.engine")]
        subprocess.run(command, check=True, timeout=120, env={**os.environ, **variables, **more})
    assert (tmp_path / "plain.engine").read_bytes() == (tmp_path / "recorded.engine").read_bytes()
    header, *events = map(json.loads, recording.read_text().splitlines())
    assert (header["module"], header["qcompile"]) == ("tensorrt_rtx", qcompile.__version__)
    assert "progress_monitor" in header["names"]["IBuilderConfig"]
    calls = [event["call"] for event in events if "call" in event]
    assert {"OnnxParser.parse_from_file", "Builder.build_serialized_network"} <= set(calls)
    assert {event["n"] for event in events if "call" in event} == {
        event["n"] for event in events if "gives" in event
    }
    assert any(event.get("callback") == "ILogger.log" for event in events)
