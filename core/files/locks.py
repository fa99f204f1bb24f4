"""Locks (flock(2)) on files and folders; the system releases them when the process ends in any way."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import IO

from ...errors import InvalidOption


def open_folder(folder: Path) -> int | None:
    """Return a descriptor of a folder for `flock`: None if the folder is gone, -1 on Windows."""
    if sys.platform == "win32":
        return -1
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def flock(handle: int, *, wait: bool) -> bool | None:
    """Lock a descriptor; return False if another process has the lock, None if locks are not supported."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def is_same_folder(handle: int, folder: Path) -> bool:
    """Return whether the path still refers to the open folder, or for handle -1 whether it exists."""
    if handle < 0:
        return folder.is_dir()
    try:
        return os.path.samestat(os.fstat(handle), folder.lstat())
    except FileNotFoundError:
        return False


def open_lock(path: Path) -> IO[str]:
    """Open or create a lock file; refuse links and pipes, which another user may have planted."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "is a link; a file is required, remove it", str(path))
    descriptor = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file; remove it", str(path))
    return os.fdopen(descriptor, "r+", encoding="utf-8")


def lock(file: IO[str], output: Path) -> None:
    """Lock the folder `output` by an open file until that is closed; raise `InvalidOption` if it is locked.

    On file systems without locks, the rename of whole folders still prevents partial files.
    """
    if flock(file.fileno(), wait=False) is False:
        problem = f"`output` {output}: another run is using it"
        raise InvalidOption(problem, hint="wait for it, or give another `output`")
