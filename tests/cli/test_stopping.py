"""SIGTERM and SIGHUP: cleaned up and told as Ctrl-C is, with the exit code of the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qcompile.cli.main import StopSignals

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

WAITING = """
import sys, time
from importlib import import_module
command = import_module("qcompile.cli.main")
from qcompile.core.files.temporary import temporary_folder
def verb():
    with temporary_folder("wait") as folder:
        (folder / "work").touch()
        exec(sys.argv[1], {"ready": lambda: print("ready", flush=True), "sys": sys, "time": time})
command.VerbGroup.get_command = lambda *_: command.click.Command("wait", callback=verb)
command.main(["wait"])
"""


@contextmanager
def waiting(
    folder: Path, work: str = "ready(); time.sleep(600)", ignored: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """A command that has begun its work."""

    def ignore() -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number == ignored else signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, work],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(folder)}, preexec_fn=ignore, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with waiting(tmp_path) as process:
        process.send_signal(number)
        process.send_signal(number)  # `timeout` of coreutils sends it twice
        _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert said.strip() == f"ended by {number.name}; finished work is kept: run it again to continue"
    assert list(tmp_path.iterdir()) == []


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """`nohup` starts a command so."""
    with waiting(tmp_path, "ready(); sys.stdin.read()", ignored=signal.SIGHUP) as process:
        process.send_signal(signal.SIGHUP)
        out, said = process.communicate("", timeout=60)
    assert (process.returncode, out, said) == (0, "", "")


def test_a_library_that_makes_another_error_of_it_does_not_hide_it(tmp_path: Path) -> None:
    work = (
        "try:\n ready()\n time.sleep(600)\nexcept BaseException:\n raise RuntimeError('callback') from None"
    )
    with waiting(tmp_path, work) as process:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "ended by SIGTERM" in said


def test_a_second_one_ends_what_does_not_come_back(tmp_path: Path) -> None:
    work = (
        "while True:\n try:\n  ready()\n  time.sleep(600)\n"
        " except BaseException:\n  print('kept', flush=True)"
    )
    with waiting(tmp_path, work) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "kept\n"
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143


def test_nothing_of_it_is_left_behind() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with StopSignals() as stop:
        assert stop.exit_code == 130
    assert {number: signal.getsignal(number) for number in before} == before
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    assert wakeup == -1
