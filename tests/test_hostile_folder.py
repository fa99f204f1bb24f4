"""A folder with files named like the standard library's does nothing to the verbs started in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qcompile.cli import main
from qcompile.processes.child import module_command

NAMES = ("random", "json", "numpy", "types", "typing", "runpy", "qcompile", "sitecustomize", "onnxruntime")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; a file `ran` appears in it when something of it is imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"open({str(folder / 'ran')!r}, 'a').write('{name} ')\nraise SystemExit(7)\n"
        )
    monkeypatch.chdir(folder)
    return folder


def test_workers_import_nothing_from_the_current_folder(
    hostile: Path, tiny_file: Callable[..., Path], samples: Callable[..., Path]
) -> None:
    model, data = str(tiny_file("residual")), str(samples("residual", 8))
    for words in (
        ["bench", model, "--baseline", model, "--max-time", "0.01", "--threads", "1"],
        ["diff", model, model],
        ["diff", "--layers", model, model, "--data", data, "--samples", "2"],
        ["calibrate", model, "--data", data, "-o", "x.ranges"],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words, "-q"])
        assert ended.value.code == 0, words
    assert not (hostile / "ran").exists(), (hostile / "ran").read_text()


@pytest.mark.parametrize("variable", ["", "PYTHONSAFEPATH"])
def test_a_folder_that_is_named_in_pythonpath_is_still_looked_in(
    hostile: Path, tmp_path: Path, variable: str
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "named.py").write_text("print('found')\n")
    program = packages / "program.py"
    program.write_text("import named, random, sys\nprint(sys.argv[1:])\n")
    environment = {**os.environ, "PYTHONPATH": str(packages)} | ({variable: "1"} if variable else {})
    command = module_command("program", "a b")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "found\n['a b']\n"
    assert not (hostile / "ran").exists()


def test_the_module_run_by_python_m_leaves_the_current_folder_out_of_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "qcompile", "doctor", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "random" not in done.stderr
