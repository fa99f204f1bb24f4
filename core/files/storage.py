"""Translate operating-system errors on files into `StorageError` with a hint.

Native libraries report these errors as text only, or write less than requested without an error. Error texts
are therefore searched, too, and the free space is checked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import StorageError, UsageError, causes, first_line

TEMPORARY = ".qcompile-tmp-"
"""Prefix of the names of unfinished files and folders; a process id follows."""
_MIN_FREE_BYTES = 1 << 16
_SPACE_HINT = "free space, or choose another disk"
_RESOURCE_HINTS = {
    errno.ENOSPC: _SPACE_HINT,
    errno.EDQUOT: "delete files, or choose a place outside the quota",
    errno.EFBIG: "raise the limit on the file size (ulimit -f), or choose another file system",
    errno.EROFS: "choose a writable place",
    errno.EIO: "the disk or its connection fails: read the system log, and choose another place",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "end other processes: the system cannot open more files",
}
"""Hints for errors that other libraries may report as text only; no qcompile message contains these texts."""
_HINTS = _RESOURCE_HINTS | {
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "it was removed during the run: restore it, and run again",
    errno.ESTALE: "its file server has lost it: run again",
    errno.ELOOP: "its links form a loop",
    errno.ENOTDIR: "a folder in its path is a file",
    errno.EISDIR: "a file is required, not a folder",
    errno.EBUSY: "another process uses it",
    errno.ETXTBSY: "another process runs it",
    errno.ENXIO: "choose a regular file",
    errno.ENODEV: "choose a regular file",
}


def storage_error(error: OSError, path: Path | None = None) -> StorageError | None:
    """Return an `OSError` on a file as `StorageError`, or None for other errors.

    The message names the error's file, else `path`. Without both, only errors in `_RESOURCE_HINTS` are
    translated.
    """
    if error.errno not in _HINTS or isinstance(error, BrokenPipeError):
        return None
    # An error of a copy has two names; the second is the target.
    target = error.filename2 if error.errno in _RESOURCE_HINTS else None
    name = target or error.filename
    file = name if isinstance(name, str | os.PathLike) else path
    if file is None and error.errno not in _RESOURCE_HINTS:
        return None
    return _new_error(error.errno, None if file is None else Path(file))


def hidden_storage_error(error: BaseException, path: Path) -> StorageError | None:
    """Return the disk error that caused another error while `path` was written, or None.

    Search the chain of causes and their texts, then check the free space of the folder and of TMPDIR.
    """
    if isinstance(error, UsageError):
        return None
    for cause in causes(error):
        if isinstance(cause, StorageError):
            return cause
        if isinstance(cause, OSError) and cause.errno in _RESOURCE_HINTS:
            return storage_error(cause, path)
        codes = [code for code in _RESOURCE_HINTS if os.strerror(code).lower() in str(cause).lower()]
        if codes:
            return _new_error(codes[0], path)
    folders = [path.parent]
    with contextlib.suppress(OSError):
        folders.append(Path(tempfile.gettempdir()))
    for folder in folders:
        if is_full(folder):
            message = f"{public_path(path)}: {os.strerror(errno.ENOSPC)} ({folder}); {first_line(error)}"
            return StorageError(message, hint=_SPACE_HINT, file=public_path(path))
    return None


def is_full(folder: Path) -> bool:
    """Return whether the disk of `folder` is full; False if the platform cannot report it."""
    try:
        status = os.statvfs(folder)
    except (OSError, AttributeError):
        return False
    free = status.f_bfree if os.geteuid() == 0 else status.f_bavail
    return status.f_blocks > 0 and free * status.f_frsize < _MIN_FREE_BYTES


@contextmanager
def translating_write_errors(path: Path) -> Iterator[None]:
    """Raise `StorageError` for a disk error in the block, which writes `path`; pass other errors on."""
    try:
        yield
    except OSError as error:
        problem = storage_error(error, path)
        if problem is None:
            raise
        raise problem from error
    except Exception as error:
        problem = hidden_storage_error(error, path)
        if problem is None or problem is error:
            raise
        raise problem from error


@contextmanager
def translating_read_errors(path: Path) -> Iterator[None]:
    """Raise `StorageError` for an `OSError` in the block, which reads `path`."""
    try:
        yield
    except OSError as error:
        problem = f"{path}: cannot be read ({error.strerror or first_line(error)})"
        fallback = StorageError(problem, hint="choose a regular file", file=path)
        raise (storage_error(error, path) or fallback) from error


def public_path(path: Path) -> Path:
    """Return a path without its temporary folders, which users cannot open."""
    return Path(*(part for part in path.parts if not part.startswith(TEMPORARY)))


def _new_error(code: int, path: Path | None) -> StorageError:
    file = None if path is None else public_path(path)
    return StorageError(f"{file or 'a file'}: {os.strerror(code)}", hint=_HINTS[code], file=file)
