"""How much memory the machine, or the container, has, and how much address space is left to this process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def machine_bytes() -> int | None:
    """Return the memory of the machine or of the container, the smaller one; None where nothing tells."""
    known = []
    with contextlib.suppress(AttributeError, ValueError, OSError):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            known.append(int(path.read_text()))
    return min((value for value in known if value > 0), default=None)


def address_space_limit() -> int | None:
    """Return the limit on address space (`ulimit -v`) in bytes; None where there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def address_space_left() -> int | None:
    """Return the bytes of address space that this process may still take; None without a limit."""
    limit = address_space_limit()
    if limit is None:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return limit
    return max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)
