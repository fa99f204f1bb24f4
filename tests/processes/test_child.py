"""One watch for every child: limits, an answer that nobody wants any more, and the end of the whole tree."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from qcompile.errors import InvalidOption, ModelError
from qcompile.model.tensorflow import tensorflow_versions
from qcompile.processes.child import Child, MemoryExceeded, TimeExceeded
from qcompile.processes.worker import Worker

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
LEADER = """
import subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(inner.pid, flush=True)
time.sleep(600)
"""


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def test_a_child_that_only_ends_gives_its_exit_code_and_its_last_output() -> None:
    program = "import sys; print('first\\nlast', file=sys.stderr); sys.exit(7)"
    with tempfile.TemporaryFile() as log, Child([sys.executable, "-c", program], stderr=log) as child:
        assert child.wait() == 7
        assert child.cause() == "exit code 7"
        assert child.last_output() == "first\nlast"


def test_a_child_is_waited_for_no_longer_than_its_limits() -> None:
    with Child(SLEEPS) as child:
        with pytest.raises(TimeExceeded):
            child.wait(time_s=0.2)
        with pytest.raises(MemoryExceeded) as caught:
            child.wait(memory_gb=1e-4, time_s=30)
        assert 1e-4 < caught.value.args[0] < 1
    wait_until_gone(child.pid)


def test_what_nobody_wants_any_more_ends_the_wait_and_the_process(tmp_path: Path) -> None:
    class NotWanted(Exception):
        pass

    def check() -> None:
        raise NotWanted

    child = Child(SLEEPS)
    with child, pytest.raises(NotWanted):
        child.wait(check=check, time_s=30)
    wait_until_gone(child.pid)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    worker = Worker("tiny", threads=1, python=str(python), timeout_s=30)
    with worker, pytest.raises(NotWanted):
        worker.ask("hello", check=check)
    wait_until_gone(worker.pid)


def test_the_whole_tree_ends_also_what_leads_another_session() -> None:
    with tempfile.TemporaryFile() as output, Child([sys.executable, "-c", LEADER], stdout=output):
        deadline = time.monotonic() + 30
        text = b""
        while not text.endswith(b"\n"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
            output.seek(0)
            text = output.read()
    wait_until_gone(int(text))


def test_variables_are_added_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QC_TEST_GONE", "1")
    program = "import os; print(sorted(name for name in os.environ if name.startswith('QC_TEST')))"
    variables = {"QC_TEST_GONE": None, "QC_TEST_NEW": "1"}
    with (
        tempfile.TemporaryFile() as output,
        Child([sys.executable, "-c", program], variables=variables, stdout=output) as child,
    ):
        assert child.wait() == 0
        output.seek(0)
        assert output.read() == b"['QC_TEST_NEW']\n"


def test_another_interpreter_says_why_it_ended(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no tensorflow here >&2; exit 3\n")
    python.chmod(0o755)
    with pytest.raises(ModelError, match="ended with exit code 3: no tensorflow here"):
        tensorflow_versions(str(python))
    python.write_text("no program")
    with pytest.raises(InvalidOption, match="cannot be run"):
        tensorflow_versions(str(python))
