"""The programs of docs/deploy_cpu.md run what `build` writes, with nothing of qcompile."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import qcompile

GUIDE = (Path(__file__).parents[2] / "docs/deploy_cpu.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("target", "file"), [("onnxruntime", "run_onnx.py"), ("openvino", "run_openvino.py")]
)
def test_the_program_runs_what_build_writes(
    tiny_file: Callable[..., Path], tmp_path: Path, target: str, file: str
) -> None:
    if target == "openvino":
        pytest.importorskip("openvino", reason="pip install 'qcompile[openvino]'")
    found = re.search(rf"<!-- {file} -->\n```python\n(.*?)```", GUIDE, re.S)
    assert found
    (tmp_path / file).write_text(found[1], encoding="utf-8")
    built = qcompile.build(
        str(tiny_file("residual")), tmp_path / "built.onnx", target=target, precision="fp32"
    )
    said = subprocess.run(
        [sys.executable, "-P", file, Path(built.path).name], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False, env={"PATH": "", "ORT_DISABLE_TELEMETRY": "1"},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert re.fullmatch(r"(\w+ \([\d, ]+\) float32\n)+", said.stdout), said.stdout
