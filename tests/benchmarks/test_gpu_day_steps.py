"""Steps of the GPU day: they are ended in time, and what they saw is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

HARNESS = Path(__file__).resolve().parents[2] / "benchmarks/gpu_day_harness"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`steps` of `gpu_day_harness`, which is no package."""
    monkeypatch.syspath_prepend(str(HARNESS))
    monkeypatch.delitem(sys.modules, "steps", raising=False)
    return __import__("steps")


def test_steps_that_hang_or_crash_are_ended_and_what_they_saw_is_kept(
    steps: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "recordings").mkdir()
    notes = "import json, sys; json.dump({'saw': 1}, open(sys.argv[1], 'w')); print('said', flush=True); "
    ways = {
        "hangs": ("import time; time.sleep(600)", 3.0),
        "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 60.0),
        "fails": ("raise SystemExit(1)", 60.0),
    }
    found = {}
    for name, (text, limit) in ways.items():
        command = [sys.executable, "-c", notes + text, str(tmp_path / f"{name}.json")]
        found[name] = steps.ended(name, command, limit, tmp_path, record=name == "crashes")
    assert [one["result"] for one in found.values()] == ["timed out", "crashed", "failed"]
    assert found["crashes"]["signal"] == "SIGSEGV"
    assert all(one["saw"] == 1 and one["output"].startswith("said\n") for one in found.values())
    assert "Segmentation fault" in found["crashes"]["output"]


def test_a_recording_that_ends_in_a_call_says_in_which(steps: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "recordings").mkdir()
    log = {
        "callback": "ILogger.log",
        "on": 1,
        "args": [{"enum": "Severity.ERROR"}, "out of memory"],
        "gives": None,
    }
    lines = [{"recording": 1}, {"n": 1, "call": "Builder.create_network"}, {"n": 1, "gives": 3},
             {"n": 2, "call": "Builder.build_serialized_network"}, {"n": 3, "in": 2, **log}]  # fmt: skip
    (tmp_path / "recordings/bert.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"n": 4, "cal')
    found = steps.recorded(tmp_path, "bert")
    assert found["tensorrt_said"] == ["ERROR: out of memory"]
    assert found["died_in"] == "Builder.build_serialized_network"
