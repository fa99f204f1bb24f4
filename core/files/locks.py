"""Locks (flock(2)) on files and folders, which the system gives back however their process ends."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import IO

from ...errors import InvalidOption


def open_folder(folder: Path) -> int | None:
    """A handle that a lock can be held on; None where it is gone or a link, -1 where there are no locks."""
    if sys.platform == "win32":
        return -1
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def flock(handle: int, *, wait: bool) -> bool | None:
    """Lock it; False where another process holds it, None where the file system has no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def is_still(handle: int, folder: Path) -> bool:
    """Whether the path leads to what the handle holds."""
    if handle < 0:
        return folder.is_dir()
    try:
        return os.path.samestat(os.fstat(handle), folder.lstat())
    except FileNotFoundError:
        return False


def open_lock(path: Path) -> IO[str]:
    """Open a file to be locked, made if it is not there; nothing is written to it.

    Others may write to the folder and have planted a link or a pipe under this well-known name.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "is a link; a file is required, remove it", str(path))
    number = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "is no regular file; remove it", str(path))
    return os.fdopen(number, "r+", encoding="utf-8")


def lock(file: IO[str], output: Path) -> None:
    """Hold a file that is open for writing until it is closed; it stands for the folder `output`.

    Without locks, the rename of whole folders still keeps every file whole.
    """
    if flock(file.fileno(), wait=False) is False:
        problem = f"`output` {output}: another run is using it"
        raise InvalidOption(problem, hint="wait for it, or give another `output`")
