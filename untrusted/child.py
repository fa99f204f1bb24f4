"""How much a verb on a stranger's files may take, and how the process that carries it out limits itself.

The process that started it is told apart by its id in a variable of the environment, so that a variable that
was left over, or was inherited by a further process, means nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidOption

MEMORY_GB = 8.0
"""Default of the memory that the processes of a verb may hold together, in 10**9 bytes."""
TIME_S = 1800.0
"""Default of the time that a verb may take."""
_LEAST_MEMORY_GB = 0.1
WATCHED = "QCOMPILE_UNTRUSTED"
"""Variable with the id of the process that watches this one and the seconds that it grants: PID:SECONDS."""
OPEN_FILES = 4096
_PR_SET_PDEATHSIG = 1
_CPU_SLACK_S = 60


@dataclass(frozen=True)
class Limits:
    """Limits of one verb with all processes that it starts.

    Attributes:
        memory_gb: Memory of their own that they may hold together, in 10**9 bytes. Mapped files, as weights
            are, do not count: the system can drop their pages.
        time_s: Seconds by the clock.

    Raises:
        InvalidOption: If one is no number above the least.
    """

    memory_gb: float = MEMORY_GB
    time_s: float = TIME_S

    def __post_init__(self) -> None:
        memory, time = (f"a number from {_LEAST_MEMORY_GB} on", "a positive number")
        for name, value, suits, required in (
            ("memory_limit_gb", self.memory_gb, self.memory_gb >= _LEAST_MEMORY_GB, memory),
            ("time_limit_s", self.time_s, self.time_s > 0, time),
        ):
            if not suits or value == math.inf:
                raise InvalidOption(f"`{name}` {value}: {required} is required", option=name)


def is_child() -> bool:
    """Whether this process is watched by the one that started it."""
    return os.environ.get(WATCHED, "").partition(":")[0] == str(os.getppid())


def watched_by_this(limits: Limits) -> dict[str, str]:
    """Return the environment of a process that this one watches."""
    return {WATCHED: f"{os.getpid()}:{limits.time_s}"}


def limit_self() -> None:
    """Take away from this process what it does not need; those that it starts inherit it.

    No core dump, few open files, a backstop for the time of the processor, the first place where the system
    runs out of memory, and an end with the process that watches. Whatever the system refuses is left out.
    """
    import resource

    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the system was told
        os.kill(os.getpid(), signal.SIGKILL)
    granted_s = float(os.environ[WATCHED].partition(":")[2])
    from ..model.session import usable_cores  # which loads numpy, and `--help` comes by this file

    processor_s = int(granted_s * usable_cores()) + _CPU_SLACK_S
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CPU, processor_s),
    ):
        with contextlib.suppress(OSError, ValueError):
            soft, hard = resource.getrlimit(kind)
            allowed = [value for value in (soft, hard, most) if value != resource.RLIM_INFINITY]
            resource.setrlimit(kind, (min(allowed), hard if kind != resource.RLIMIT_CORE else 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
