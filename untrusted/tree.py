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
    return "RssAnon:" in _read(os.getpid(), "status")


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
