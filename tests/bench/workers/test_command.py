from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import qcompile
from qcompile.bench.workers.process import worker_command


def test_a_worker_runs_the_files_of_this_package() -> None:
    """Not those of a qcompile that its interpreter has installed."""
    assert str(Path(qcompile.__file__).parent) in worker_command("qcompile.bench.worker")


def test_an_interpreter_without_qcompile_runs_a_module_of_it(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    command = worker_command("qcompile.progress", python=str(bare))
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
