"""Files held by one process at a time."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from ..errors import InvalidOption


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
    """Hold an open file until it is closed.

    Args:
        file: Open for writing.
        output: The folder that it stands for, for the message.
    """
    try:
        import fcntl
    except ImportError:  # not POSIX: the rename of whole folders still keeps every file whole
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InvalidOption(
            f"`output` {output}: another run is using it", hint="wait for it, or give another `output`"
        ) from error
