"""Take from a process what a trial lacks: room on a disk, open files, root's permissions."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def mounted(place: Path, kilobytes: int) -> Iterator[Path]:
    """A disk of some kilobytes (Linux, as root)."""
    place.mkdir(parents=True, exist_ok=True)
    options = f"size={kilobytes}k,mode=1777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def set_temporary(folder: Path) -> None:
    """Have this process keep its temporary files in a folder."""
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None


def limit(kind: int, most: int) -> None:
    """Lower a limit of this process."""
    resource.setrlimit(kind, (most, most))


def drop_capabilities(*numbers: int) -> None:
    """Have root's permissions checked as another user's (capabilities(7)), here and in children."""
    libc = ctypes.CDLL(None, use_errno=True)
    for number in numbers:
        libc.prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    for index in range(3):
        sets[index] &= ~sum(1 << number for number in numbers)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")
