"""Workers in another interpreter: a script that runs one stands for another environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import qcompile
from qcompile.bench.workers.process import Worker, parse_interpreters, worker_command
from qcompile.errors import InvalidOption, MissingFile


def script(path: Path, *lines: str) -> str:
    """A shell script that runs this Python."""
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def test_a_worker_runs_these_files_where_qcompile_is_not_installed(tmp_path: Path) -> None:
    command = worker_command("qcompile.progress")
    command.insert(1, "-S")  # without installed packages, and without an installed qcompile
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(command[-2]) == Path(qcompile.__file__).parent.resolve()


def test_a_script_that_sets_a_path_is_an_interpreter(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/openvino.py").write_text("raise ImportError('this openvino is broken')\n")
    line = f'PYTHONPATH={tmp_path}/packages exec {sys.executable} "$@"'
    python = script(tmp_path / "python", line)
    pythons = parse_interpreters([f"openvino={python}", f"onnxruntime={python}"])
    assert "this openvino is broken" in pythons.why_not_run("openvino")
    assert pythons.why_not_run("onnxruntime") == ""
    assert pythons.python("pytorch") == ""


def test_another_interpreter_runs_these_files_and_needs_no_installation(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f'cd / && {sys.executable} -I "$@"')  # no exec, no PYTHONPATH
    with Worker("there", threads=1, python=python) as worker:
        answer = worker.hello()
        assert answer["python"] == sys.version.split()[0]
        assert answer["started_ms"] > 0
        assert worker.ask("memory")["peak_bytes"] > 1e6


def test_what_is_no_interpreter_is_refused_with_what_it_said(tmp_path: Path) -> None:
    silent = script(tmp_path / "silent", "echo no python here >&2; exit 3")
    with pytest.raises(InvalidOption, match="no python here"):
        parse_interpreters([f"openvino={silent}"]).why_not_run("openvino")
    text = tmp_path / "text"
    text.write_text("not a program")
    text.chmod(0o755)
    with pytest.raises(InvalidOption, match="cannot be run"):
        Worker("text", threads=1, python=str(text))


@pytest.mark.parametrize("text", ["openvino", "=python", "openvino="])
def test_a_wrong_spelling_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="ENGINE=INTERPRETER"):
        parse_interpreters([text])


def test_engines_and_executables_must_be_there() -> None:
    with pytest.raises(InvalidOption, match="did you mean 'openvino'"):
        parse_interpreters([f"openvin={sys.executable}"])
    with pytest.raises(MissingFile, match="/no/python"):
        parse_interpreters(["openvino=/no/python"])
    with pytest.raises(InvalidOption, match="twice"):
        parse_interpreters([f"openvino={sys.executable}"] * 2)
