"""`qcompile reproduce`: what is said of a fault, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from commands import Qc


def test_the_command_says_what_is_left(qc: Qc, tmp_path: Path) -> None:
    """ONNX Runtime's own optimizer takes zeros in front of a MaxPool for nothing (1.31.1)."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if not onnxruntime.__version__.startswith("1.31"):
        pytest.skip("the fault was seen with ONNX Runtime 1.31.1")
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[2,3,8,8] x) => (float[2,3,9,9] y)
        <int64[8] pads = {0,0,1,1,0,0,1,1}> {
            a = Abs (x) n = Neg (a) e = Exp (a) f = Add (e, n) m = Neg (f) p = Pad (m, pads)
            q = MaxPool <kernel_shape = [2, 2]> (p) y = Neg (q) }"""
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    folder = tmp_path / "fault"
    code, out, _ = qc("reproduce", path, "--target", "onnxruntime", "-o", folder)
    assert code == 0
    assert "onnxruntime wrong, with the default options: output" in out
    assert "2 of 8 nodes show it" in out
    shown = subprocess.run([sys.executable, "run.py"], cwd=folder, capture_output=True, check=False)
    assert (shown.returncode, b"AssertionError" in shown.stderr) == (1, True)
    code, _, err = qc("reproduce", path, "--target", "torchscript", "-o", tmp_path / "other")
    assert (code != 0, "torchscript" in err) == (True, True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    code, _, err = qc("reproduce", path, "--target", "onnxruntime", "-o", tmp_path / "mine")
    assert (code, "exists and is no reproducer" in err) == (2, True)
