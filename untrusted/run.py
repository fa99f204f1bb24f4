"""Carry out a verb in a process of its own, watch it, and say what became of it.

Memory is what only the watched processes have (Linux: proc(5)): anonymous and shared pages (`RssAnon`,
`RssShmem`) and what was swapped out. Pages of mapped files do not count, as the system can drop them. Limits
on address space (RLIMIT_AS) serve badly: thread stacks, CUDA and mapped weights reserve much, touch little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..bench.workers.process import worker_command
from ..errors import EngineUnavailable, WorkerError
from ..files import remove_stale, temporary_folder
from ..files.temporary import PLACES
from .child import Limits, watched_by_this

_EVERY_S = 0.05
_TREE_EVERY = 10
_GRACE_S = 15.0
_OWN_CODES = (0, 1, 2, 129, 130, 143)
"""Exit codes with which a verb ends by itself."""
_PROC = Path("/proc")
_HELD = ("RssAnon:", "RssShmem:", "VmSwap:")
_GONE_S = 5.0
_HARM = "the file may be damaged, or made to do harm; no unfinished file was left"


@dataclass(frozen=True)
class Finished:
    """A verb that came to its end.

    Attributes:
        code: Its exit code: 0 done, 1 failed or mismatch, 2 usage, 130 interrupted.
        output: What it wrote to standard output, where that was captured.
    """

    code: int
    output: str = ""


def run_untrusted(
    arguments: Sequence[str], limits: Limits | None = None, *, capture: bool = True
) -> Finished:
    """Carry out a verb as the command line does, in a process of its own, with limits.

    The processes that it starts count too. Temporary files of all of them are removed at the end, however
    they end. The process may read and write all that this one may: limits are no sandbox.

    Args:
        arguments: As typed after `qcompile`, such as `["simplify", "model.onnx", "-o", "simple.onnx"]`.
        limits: 8 GB and half an hour by default.
        capture: Whether standard output is returned, and shown only where the verb comes to its end.

    Returns:
        How it ended. An error of the verb itself is its exit code, and was written to standard error.

    Raises:
        WorkerError: If it crashed, or was ended because it exceeded a limit.
        EngineUnavailable: If the system cannot watch processes.
    """
    limits = limits or Limits()
    if "RssAnon:" not in _read(os.getpid(), "status"):
        reason = "/proc does not tell the memory of processes"
        if not sys.platform.startswith("linux"):
            reason = f"Linux is required, this is {sys.platform}"
        raise EngineUnavailable(f"`untrusted` cannot work here: {reason}", reason=reason)
    verb = arguments[0] if arguments else "qcompile"
    with temporary_folder("untrusted") as folder, tempfile.TemporaryFile() as output:
        places = folder / "places"
        temporary = folder / "files"
        temporary.mkdir()
        process = subprocess.Popen(
            worker_command("qcompile.__main__", *arguments),
            stdout=output if capture else None,
            env=os.environ | watched_by_this(limits) | {"TMPDIR": str(temporary), PLACES: str(places)},
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
        )
        tree = Tree(process.pid)
        try:
            problem = _watch(process, tree, limits)
        except BaseException as stop:
            _pass_on(process, stop)
            if process.returncode in _OWN_CODES:
                return Finished(process.returncode, _text(output))  # it has said so itself
            raise
        finally:
            tree.kill()
            process.wait()
            _sweep(places)
        if problem:
            raise WorkerError(f"{verb}: {problem[0]}", hint=problem[1], output="")
        return Finished(process.returncode, _text(output))


def _watch(process: subprocess.Popen[bytes], tree: Tree, limits: Limits) -> tuple[str, str] | None:
    """Wait for the end; returns what went wrong, and the way out."""
    began, looks = time.monotonic(), 0
    too_long = (
        f"ended: it took more than {limits.time_s:g} s",
        "raise `time_limit_s` where you know why it needs longer",
    )
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_EVERY_S)
            return too_long if code == -signal.SIGXCPU else _crash(code)
        if looks % _TREE_EVERY == 0:
            tree.refresh()
        looks += 1
        held_gb = tree.bytes() / 1e9
        if held_gb > limits.memory_gb:
            return (
                f"ended: its processes held {held_gb:.3g} GB of memory; at most {limits.memory_gb:g} GB are "
                "allowed",
                "raise `memory_limit_gb` where you know why it needs more",
            )
        if time.monotonic() - began > limits.time_s:
            return too_long


def _crash(code: int) -> tuple[str, str] | None:
    if code in _OWN_CODES:
        return None
    if code >= 0:
        return f"its process ended with exit code {code}", _HARM
    name = signal.Signals(-code).name
    if code == -signal.SIGKILL:
        return f"its process was killed ({name}): the system has no memory left, or somebody did it", _HARM
    return f"its process crashed ({name}) in native code that read the files", _HARM


def _pass_on(process: subprocess.Popen[bytes], stop: BaseException) -> None:
    """Have the process end as this one does, and give it time to write what it has."""
    number = signal.SIGINT if type(stop) is KeyboardInterrupt else signal.SIGTERM
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # pressed twice: at once
        process.wait(_GRACE_S)


def _sweep(places: Path) -> None:
    """Remove what the processes left in the folders where they made temporary files."""
    with contextlib.suppress(OSError):
        for place in set(places.read_text(encoding="utf-8", errors="surrogateescape").split("\0")):
            if place:
                remove_stale(Path(place))


def _text(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")


class Tree:
    """A process and those that it started, also those that lead sessions of their own.

    Args:
        pid: The first of them.
    """

    def __init__(self, pid: int) -> None:
        stat = _stat(pid)
        self._began = {pid: stat[19]} if stat else {}

    def refresh(self) -> None:
        """Look for new ones. One that is found stays known after its parent has ended."""
        stats = {
            int(name): stat for name in os.listdir(_PROC) if name.isdecimal() and (stat := _stat(int(name)))
        }
        found = [0]
        while found:
            living = {pid for pid in self._began if self._lives(pid)}
            found = [pid for pid, stat in stats.items() if int(stat[1]) in living and pid not in self._began]
            self._began |= {pid: stats[pid][19] for pid in found}

    def bytes(self) -> int:
        """Return the memory that they hold."""
        return sum(_held_bytes(pid) for pid in self._began if self._lives(pid))

    def kill(self) -> None:
        """End all of them by force and wait until they are gone."""
        for _ in range(2):  # what one of them started meanwhile is found the second time
            self.refresh()
            for pid in self._began:
                if self._lives(pid):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + _GONE_S
        while any(map(self._lives, self._began)) and time.monotonic() < until:
            time.sleep(0.01)

    def _lives(self, pid: int) -> bool:
        """Whether the process lives, and is not another one with the same id."""
        stat = _stat(pid)
        return bool(stat) and stat[0] not in "ZX" and stat[19] == self._began[pid]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: state, parent, ...; [19] is when it began."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _held_bytes(pid: int) -> int:
    lines = _read(pid, "status").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_HELD))


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text(errors="replace")
    except OSError:
        return ""
