"""The emulated processors themselves: what a failure says, and what is missing."""

from __future__ import annotations

import ast
from pathlib import Path

import emulated
import numpy as np
import pytest
from emulated import PROCESSORS, require_emulated, run_emulated, why_not_emulated
from written_models import one_node

MODEL = one_node("MatMulInteger", {"a": 2, "b": 3}, {"y": 6})
FEEDS = {"a": np.full((1, 2), 255, np.uint8), "b": np.full((2, 1), 127, np.int8)}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_emulated_processor_decides_the_kernel_not_the_host(name: str, tmp_path: Path) -> None:
    require_emulated(name)
    (result,) = run_emulated(name, [(MODEL, FEEDS)], tmp_path)
    assert result["y"] == (32767 if name == "haswell" else 2 * 255 * 127)


@pytest.mark.parametrize("name", PROCESSORS)
def test_what_is_missing_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("shutil.which", lambda _program: None)
    program = PROCESSORS[name].emulator
    assert why_not_emulated(name) == f"no {program} here: apt-get install qemu-user"
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"CI: no {program} here: apt-get install qemu-user"):
        require_emulated(name)
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match=f"no {program} here"):
        require_emulated(name)


def test_the_child_imports_numpy_and_onnxruntime_alone() -> None:
    tree = ast.parse((Path(emulated.__file__).parent / "emulated_child.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names == {"json", "os", "sys", "numpy", "onnxruntime"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
