"""Completion by click: a real bash completes verbs, options and files, and nothing heavy is imported."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")

ASK = """
source {script}
complete -p qcompile >&2
compopt() {{ echo "compopt $2"; }}
COMP_WORDS=({words})
COMP_CWORD={last}
_qcompile_completion qcompile
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script of bash, and a `qcompile` in the path of the tests."""
    path = tmp_path / "completion.bash"
    program = tmp_path / "bin" / "qcompile"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m qcompile "$@"\n')
    program.chmod(0o755)
    asked = {**os.environ, "_QCOMPILE_COMPLETE": "bash_source"}
    said = subprocess.run([program], capture_output=True, text=True, check=True, env=asked)
    path.write_text(said.stdout)
    return path


def completed(script: Path, line: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    assert BASH is not None
    environment = {**os.environ, "PATH": f"{script.parent / 'bin'}:{os.environ['PATH']}"}
    code = ASK.format(script=script, words=" ".join(map(shlex.quote, words)), last=len(words) - 1)
    said = subprocess.run(
        [BASH, "--norc", "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert "complete -o nosort -F _qcompile_completion qcompile" in said.stderr
    return [one for one in said.stdout.split("\n") if one]


@needs_bash
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("qcompile cal", ["calibrate"]),
        ("qcompile build --tar", ["--target"]),
        ("qcompile build m.onnx --target tensorrt", ["tensorrt-rtx", "tensorrt"]),
        ("qcompile tune m.onnx --target onnxruntime,o", ["onnxruntime,openvino"]),
        ("qcompile tune m.onnx --metric cos", ["cosine"]),
        ("qcompile run re", ["compopt default"]),  # bash's own names of files
        ("qcompile tune m.onnx --data x", ["compopt default"]),
    ],
)
def test_bash_completes(script: Path, line: str, offered: list[str]) -> None:
    assert completed(script, line) == offered


def test_completing_imports_nothing_heavy() -> None:
    code = (
        "import sys, atexit\n"
        "heavy = 'torch onnx onnxruntime numpy rich'.split()\n"
        "atexit.register(lambda: print([one for one in heavy if one in sys.modules]))\n"
        "from qcompile.cli import main\nmain([])"
    )
    asked = {"_QCOMPILE_COMPLETE": "bash_complete", "COMP_WORDS": "qcompile tune --ta", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **asked}
    )
    assert done.stdout.split("\n")[:2] == ["plain,--target", "[]"]
