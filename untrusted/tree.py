"""The processes that a process has started, and the memory that they hold (Linux: proc(5)).

Memory is what only these processes have: anonymous and shared pages (`RssAnon`, `RssShmem`) and what was
swapped out. Pages of mapped files do not count, as the system can drop them. Limits on address space
(RLIMIT_AS) serve badly: thread stacks, CUDA and mapped weights reserve much and touch little of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_PROC = Path("/proc")
_HELD = ("RssAnon:", "RssShmem:", "VmSwap:")
_GONE_S = 5.0


def available() -> bool:
    """Whether the system tells what is needed here."""
    try:
        return "RssAnon:" in (_PROC / "self/status").read_text()
    except OSError:
        return False


class Tree:
    """A process and those that it started, also those that lead sessions of their own.

    Args:
        pid: The first of them.
    """

    def __init__(self, pid: int) -> None:
        self._began: dict[int, str] = {}
        self._add(pid, _stat(pid))

    def refresh(self) -> None:
        """Look for new ones. One that is found stays known after its parent has ended."""
        started: dict[int, list[int]] = {}
        stats: dict[int, list[str]] = {}
        for name in os.listdir(_PROC):
            if name.isdecimal() and (stat := _stat(int(name))):
                stats[int(name)] = stat
                started.setdefault(int(stat[1]), []).append(int(name))
        pending = [pid for pid in self._began if self._is_still(pid)]
        while pending:
            for pid in started.get(pending.pop(), ()):
                if pid not in self._began:
                    self._add(pid, stats[pid])
                    pending.append(pid)

    def bytes(self) -> int:
        """Return the memory that they hold."""
        return sum(_held_bytes(pid) for pid in self._began if self._is_still(pid))

    def kill(self) -> None:
        """End all of them by force and wait until they are gone."""
        for _ in range(2):  # what one of them started meanwhile is found the second time
            self.refresh()
            for pid in self._began:
                if self._is_still(pid):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + _GONE_S
        while any(map(self._is_still, self._began)) and time.monotonic() < until:
            time.sleep(0.01)

    def _add(self, pid: int, stat: list[str]) -> None:
        if stat:
            self._began[pid] = stat[19]

    def _is_still(self, pid: int) -> bool:
        """Whether the process lives, and is not another one with the same id."""
        stat = _stat(pid)
        return bool(stat) and stat[0] not in "ZX" and stat[19] == self._began[pid]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: state, parent, ...; [19] is when it began."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _held_bytes(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_HELD))
