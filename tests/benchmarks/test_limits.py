"""The campaign of verbs under limits, small: how a run's end is named, and a few runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/reliability/limits.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (0, "", "done"),
        (1, "error: no memory is left", "message"),
        (1, "", "silent"),
        (1, "Traceback (most recent call last):", "traceback"),
        (1, "  hint: this is a defect of qcompile", "traceback"),
        (-11, "", "crash (-11)"),
        (137, "", "crash (137)"),
    ],
)
def test_an_end_is_named(
    code: int, said: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("limits", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    limits = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(limits)
    assert limits.outcome(code, said, tmp_path, []) == expected
    (tmp_path / "half.json").write_text("{")
    if expected in limits.GOOD:
        assert limits.outcome(code, said, tmp_path, []) == "partial"


@pytest.mark.parametrize(("by", "least", "most"), [("address-space", "0.25", "0.4"), ("time", "0.1", "0.3")])
def test_verbs_end_with_a_message(by: str, least: str, most: str) -> None:
    words = ["--by", by, "--verbs", "inspect,simplify", "--runs", "2", "--least", least, "--most", most]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout
    assert f"{by}: 2 runs" in done.stdout
