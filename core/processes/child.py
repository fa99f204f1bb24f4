"""Start a child process in a new session, limit time and memory of its process tree, and end the tree.

Memory is the sum of anonymous and shared pages (`RssAnon`, `RssShmem`) and swap of the processes (Linux:
proc(5)). Pages of mapped files do not count, because the system can drop them. Limits on address space
(RLIMIT_AS) are unsuitable: thread stacks, CUDA and mapped weights reserve far more than they use.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from ...errors import InvalidOption

_POLL_S = 0.05
_REFRESH_EVERY = 10
_GRACE_S = 2.0
_KILL_WAIT_S = 5.0
_LAST_LINES = 5
_LAST_BYTES = 1 << 16
_PROC = Path("/proc")
KILL = signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM
_MEMORY_FIELDS = ("RssAnon:", "RssShmem:", "VmSwap:")

# `python -c` puts the current folder first in `sys.path`, where a `random.py` would shadow the standard
# library (`-P` prevents this from Python 3.11 on). Other interpreters need not have qcompile installed.
_START = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
folder, module = sys.argv[1:3]
del sys.argv[1:3]
import importlib.util, runpy
spec = importlib.util.spec_from_file_location(
    "qcompile", folder + "/__init__.py", submodule_search_locations=[folder]
)
package = importlib.util.module_from_spec(spec)
sys.modules["qcompile"] = package
spec.loader.exec_module(package)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""

T = TypeVar("T")


def module_command(module: str, *arguments: str, python: str = "") -> list[str]:
    """Return the command that runs a module of this package as `__main__`, in any folder.

    `python` is an interpreter (by default this one), or a script that passes its arguments to an interpreter.
    """
    folder = Path(__file__).resolve().parents[2]
    return [python or sys.executable, "-c", _START, str(folder), module, *arguments]


class TimeExceeded(Exception):
    """A child took longer than its limit."""


class MemoryExceeded(Exception):
    """The processes of a child exceeded their memory limit; the argument is their memory in GB."""


class Child:
    """A process in a new session. As a context manager it ends the process and its descendants on exit.

    Ctrl-C reaches only the caller, which then ends its children in order.

    Args:
        variables: Environment variables to add to those of this process; None removes a variable.
        folder: Working folder, by default that of this process.
        stdin: As in `subprocess.Popen`; `stdout`, too.
        stderr: File for standard error, read by `last_output`; by default this process's standard error.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        variables: Mapping[str, str | None] | None = None,
        folder: Path | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        variables = variables or {}
        environment = {name: text for name, text in os.environ.items() if name not in variables}
        environment |= {name: text for name, text in variables.items() if text is not None}
        self._log, self._frozen = stderr, False
        try:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN):
                raise  # a limit of the system, not a wrong interpreter
            raise InvalidOption(
                f"`python` {command[0]}: cannot be run ({error.strerror})", option="python"
            ) from error
        self.pid = self.process.pid  # if `python` is a script, the interpreter may be its child
        self._tree = Tree(self.pid)

    def watch(
        self,
        poll: Callable[[float], T | None],
        *,
        time_s: float = math.inf,
        memory_gb: float = math.inf,
        check: Callable[[], None] | None = None,
    ) -> T:
        """Wait for an answer; raise `TimeExceeded` or `MemoryExceeded` at the limits.

        Args:
            poll: Waits at most the given seconds for the answer and returns it, or None.
            time_s: Maximum wait.
            memory_gb: Maximum memory of all processes together, in 10**9 bytes.
            check: Called twenty times a second; raises if the answer is not needed any more.
        """
        deadline, polls = time.monotonic() + time_s, 0
        wait_s = min(time_s, _POLL_S if check or memory_gb < math.inf else threading.TIMEOUT_MAX)
        while (answer := poll(wait_s)) is None:
            if check is not None:
                check()
            if memory_gb < math.inf:
                if polls % _REFRESH_EVERY == 0:
                    self._tree.refresh()
                polls += 1
                used_gb = self._tree.bytes() / 1e9
                if used_gb > memory_gb:
                    raise MemoryExceeded(used_gb)
            if time.monotonic() >= deadline:
                raise TimeExceeded
        return answer

    def wait(self, **limits: Any) -> int:
        """Wait for the end of the process and return its exit code; `limits` are those of `watch`."""

        def poll(wait_s: float) -> int | None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(wait_s)
            return None

        return self.watch(poll, **limits)

    def last_output(self) -> str:
        """Return the last lines of the process in its log."""
        if self._log is None or self._log.closed:
            return ""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log.tell() - _LAST_BYTES, 0))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-_LAST_LINES:])

    def cause(self) -> str:
        """Return how the process ended, such as "exit code 1"."""
        try:
            code = self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{name}, out of memory?" if name == "SIGKILL" else name

    def freeze(self) -> None:
        """Stop the process until `thaw`, so that spinning threads use no processor time."""
        if hasattr(signal, "SIGSTOP"):
            self.signal_session(signal.SIGSTOP)
            self._frozen = True

    def thaw(self) -> None:
        """Continue the process."""
        if self._frozen:
            self.signal_session(signal.SIGCONT)
            self._frozen = False

    def kill(self) -> None:
        """Kill the process and its descendants, and wait until they are gone."""
        self._tree.refresh()
        self.signal_session(KILL)
        self._tree.kill()

    def close(self) -> None:
        self.kill()
        self.process.wait()

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.kill()
        self.close()

    def signal_session(self, number: int) -> None:
        """Send a signal to the whole session, which includes processes that a script or library started."""
        send = os.killpg if hasattr(os, "killpg") else os.kill
        with contextlib.suppress(ProcessLookupError):
            send(self.pid, number)


class Tree:
    """A process and its descendants, also in other sessions; empty without /proc."""

    def __init__(self, pid: int) -> None:
        stat = _stat(pid)
        self._ticks = {pid: stat[19]} if stat else {}

    def refresh(self) -> None:
        """Add new descendants. A process remains in the tree after its parent ends."""
        living = {pid for pid in self._ticks if self._lives(pid)}
        if not living:
            return
        stats = {
            int(name): stat for name in os.listdir(_PROC) if name.isdecimal() and (stat := _stat(int(name)))
        }
        while living:
            living = {pid for pid, stat in stats.items() if int(stat[1]) in living and pid not in self._ticks}
            self._ticks |= {pid: stats[pid][19] for pid in living}

    def bytes(self) -> int:
        lines = [
            line for pid in self._ticks if self._lives(pid) for line in read_proc(pid, "status").splitlines()
        ]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_MEMORY_FIELDS))

    def kill(self) -> None:
        """Kill all processes and wait until they are gone."""
        for _ in range(2):  # the second pass kills processes that were started during the first
            self.refresh()
            for pid in self._ticks:
                if self._lives(pid):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_WAIT_S
        while any(map(self._lives, self._ticks)) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _lives(self, pid: int) -> bool:
        """Return whether the process is alive, and not another process with a reused id."""
        stat = _stat(pid)
        return bool(stat) and stat[0] not in "ZX" and stat[19] == self._ticks[pid]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: state, parent, ...; [19] is the start time."""
    return read_proc(pid, "stat").rpartition(")")[2].split()


def read_proc(pid: int, name: str) -> str:
    """Return the text of a file in /proc/PID; empty if it does not exist."""
    try:
        return (_PROC / str(pid) / name).read_text(errors="replace")
    except OSError:
        return ""
