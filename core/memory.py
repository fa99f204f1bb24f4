"""How much memory the machine, or the container, has; what is told where there is none left.

Runtimes tell it in words of their own, or by an error that says nothing of memory: a library that cannot be
mapped, a thread that cannot be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path

from ..errors import OutOfMemory, QCompileError, UsageError, causes, first_line

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_SAYS = (
    "bad allocation", "bad_alloc", "can't allocate memory", "cannot allocate memory", "failed to allocate",
    "unable to allocate", "can't start new thread", "cannot start new thread", "not enough memory",
    "out of memory",
)  # fmt: skip
"""What errors say, in lower case, where no memory is left."""
_SAYS_UNDER_A_LIMIT = (
    "failed to map segment from shared object",
    "cannot load library",
    "could not find/load shared object file 'libllvmlite",
    "resource temporarily unavailable",
    "thread creation failed",
)
"""What they say where a limit on address space is in the way; other faults may have the same words."""


def machine_bytes() -> int | None:
    """Return the memory of the machine or of the container, the smaller one; None where nothing tells."""
    limits = []
    with contextlib.suppress(AttributeError, ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            limits.append(int(Path(path).read_text()))
    return min((value for value in limits if value > 0), default=None)


def address_space_limit() -> int | None:
    """Return the limit on address space (`ulimit -v`) in bytes; None where there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def require_address_space(needed_bytes: int, step: str) -> None:
    """Refuse a step that a limit on address space leaves too little room for.

    The OpenBLAS that scipy 1.17.1 loads (0.3.30) tries again for ever where it gets no memory: it is not
    loaded where that could happen.
    """
    limit = address_space_limit()
    if limit is None:
        return
    pages = 0
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)
    if room < needed_bytes:
        raise _made(step, f"{room:,} bytes of address space are left, {needed_bytes:,} are required")


def out_of_memory(error: BaseException, step: str) -> OutOfMemory | None:
    """Return an error that tells of memory, where that is what is behind another one; else None.

    The other one may be of any library, or of ours. The message names the `step` that was done.
    """
    for seen in causes(error):
        if isinstance(seen, UsageError):
            return None
        if isinstance(seen, OutOfMemory):
            return seen
        if _is_about_memory(seen):
            return _made(step, f"no memory is left ({type(seen).__name__}: {first_line(seen)})")
    return None


def _is_about_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    words = (error.message if isinstance(error, QCompileError) else str(error)).lower()
    if "cuda" in words:  # the device's own memory: whoever uses it says so
        return False
    return any(word in words for word in _SAYS) or (
        address_space_limit() is not None and any(word in words for word in _SAYS_UNDER_A_LIMIT)
    )


def _made(step: str, problem: str) -> OutOfMemory:
    limit = address_space_limit()
    subject = f"{step}: {problem}" if step else problem
    hint = "end other programs, give a smaller batch or model, or use a machine with more memory"
    if limit is not None:
        hint = f"raise the limit on address space, which is {limit:,} bytes (ulimit -v)"
    return OutOfMemory(subject, hint=hint, step=step, address_space_bytes=limit)


def give_back() -> None:
    """Return memory that was freed to the system.

    glibc keeps what lies below anything in use: a search over BERT-base grew by 650 MB with each candidate.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
