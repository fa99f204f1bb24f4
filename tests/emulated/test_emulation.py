"""The emulated processors themselves: what a failure says, and what is missing."""

from __future__ import annotations

import ast
from pathlib import Path

import arm64_root
import emulated
import numpy as np
import pytest
from emulated import PROCESSORS, EmulationError, require_emulated, run_emulated, why_not_emulated
from one_node import one_node

MODEL = one_node("MatMulInteger", {"a": 2, "b": 3}, {"y": 6})
FEEDS = {"a": np.full((1, 2), 255, np.uint8), "b": np.full((2, 1), 127, np.int8)}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_emulated_processor_decides_the_kernel_not_the_host(name: str, tmp_path: Path) -> None:
    require_emulated(name)
    (result,) = run_emulated(name, [(MODEL, FEEDS)], tmp_path)
    assert result["y"] == (32767 if name == "haswell" else 2 * 255 * 127)


def test_a_file_is_run_as_a_model_is(tmp_path: Path) -> None:
    require_emulated("haswell")
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL.SerializeToString())
    results = run_emulated("haswell", [(path, FEEDS), (MODEL, FEEDS)], tmp_path / "run")
    assert [list(result) for result in results] == [["y"], ["y"]]
    assert results[0]["y"] == results[1]["y"]


def test_an_error_names_the_processor_and_the_model_and_says_why(tmp_path: Path) -> None:
    require_emulated("haswell")
    with pytest.raises(
        EmulationError, match=r"haswell: exit status 1\n.*haswell-1.onnx: .*\['b'\]"
    ) as caught:
        run_emulated("haswell", [(MODEL, FEEDS), (MODEL, {"a": FEEDS["a"]})], tmp_path)
    assert "TCG" not in str(caught.value), "QEMU's warnings about the processor are no cause"


def test_a_run_without_end_is_ended(tmp_path: Path) -> None:
    require_emulated("haswell")
    with pytest.raises(EmulationError, match=r"haswell: no end after 0\.1 s"):
        run_emulated("haswell", [(MODEL, FEEDS)], tmp_path, timeout_s=0.1)


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


def test_arm_needs_its_folder_and_x86_needs_an_x86_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(arm64_root, "READY", tmp_path / "ready")
    assert why_not_emulated("cortex-a57") == (
        "build/arm64 is not prepared: python tests/support/arm64_root.py"
    )
    (tmp_path / "ready").write_text(arm64_root.contents())
    assert why_not_emulated("cortex-a57") is None
    (tmp_path / "ready").write_text("onnxruntime==1.0.0")
    assert why_not_emulated("cortex-a57") is not None
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(
        pytest.skip.Exception, match="haswell runs the Python of the tests, which is of aarch64"
    ):
        require_emulated("haswell")


def test_the_child_imports_numpy_and_onnxruntime_alone() -> None:
    tree = ast.parse((Path(emulated.__file__).parent / "emulated_child.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names == {"json", "os", "sys", "numpy", "onnxruntime"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def test_the_folder_has_the_versions_of_constraints() -> None:
    assert [line.split("==")[0] for line in arm64_root.requirements()] == ["numpy", "onnxruntime"]
