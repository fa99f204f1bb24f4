"""Memory limits of the machine or container, and detection of errors that lack of memory caused.

Some errors of runtimes do not mention memory: a library cannot be mapped, a thread cannot be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path

from ..errors import OutOfMemory, QCompileError, UsageError, causes, first_line

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_MEMORY_PHRASES = (
    "bad allocation", "bad_alloc", "can't allocate memory", "cannot allocate memory", "failed to allocate",
    "unable to allocate", "can't start new thread", "cannot start new thread", "not enough memory",
    "out of memory",
)  # fmt: skip
"""Phrases of errors that lack of memory causes, in lower case."""
_LIMIT_PHRASES = (
    "failed to map segment from shared object",
    "cannot load library",
    "could not find/load shared object file 'libllvmlite",
    "resource temporarily unavailable",
    "thread creation failed",
)
"""Phrases that count only under a limit on address space, because they also have other causes."""


def machine_bytes() -> int | None:
    """Return the memory of the machine or the container, whichever is smaller, or None if unknown."""
    limits = []
    with contextlib.suppress(AttributeError, ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            limits.append(int(Path(path).read_text()))
    return min((value for value in limits if value > 0), default=None)


def address_space_limit() -> int | None:
    """Return the limit on address space (`ulimit -v`) in bytes, or None."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def require_address_space(needed_bytes: int, step: str) -> None:
    """Raise `OutOfMemory` if a limit on address space leaves less than `needed_bytes` for a step.

    The OpenBLAS that scipy 1.17.1 loads (0.3.30) retries forever without memory: check before the import.
    """
    limit = address_space_limit()
    if limit is None:
        return
    pages = 0
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    free = max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)
    if free < needed_bytes:
        raise _new_error(step, f"{free:,} bytes of address space are left, {needed_bytes:,} are required")


def out_of_memory(error: BaseException, step: str) -> OutOfMemory | None:
    """Return an `OutOfMemory` for `step` if lack of memory caused `error`, else None."""
    for cause in causes(error):
        if isinstance(cause, UsageError):
            return None
        if isinstance(cause, OutOfMemory):
            return cause
        if _is_about_memory(cause):
            return _new_error(step, f"no memory is left ({type(cause).__name__}: {first_line(cause)})")
    return None


def _is_about_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    text = (error.message if isinstance(error, QCompileError) else str(error)).lower()
    if "cuda" in text:  # memory of the GPU, which the callers report
        return False
    return any(phrase in text for phrase in _MEMORY_PHRASES) or (
        address_space_limit() is not None and any(phrase in text for phrase in _LIMIT_PHRASES)
    )


def _new_error(step: str, problem: str) -> OutOfMemory:
    limit = address_space_limit()
    subject = f"{step}: {problem}" if step else problem
    hint = "end other programs, give a smaller batch or model, or use a machine with more memory"
    if limit is not None:
        hint = f"raise the limit on address space, which is {limit:,} bytes (ulimit -v)"
    return OutOfMemory(subject, hint=hint, step=step, address_space_bytes=limit)


def trim_heap() -> None:
    """Return freed memory to the system.

    glibc retains freed memory below blocks in use. A search over BERT-base thus grew by 650 MB with each
    candidate.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
