"""What the system says of a file that it cannot write or read, as an error that names the next step.

Native libraries report it in words of their own, or write less than they were told and say nothing: the
words and the room that is left are looked at too.
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
"""Beginning of the names of what is not finished; a process id follows."""
_FULL_BYTES = 1 << 16
_ROOM = "free space, or give a place on another disk"
_NO_ROOM = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: "remove files of yours, or give a place outside of the quota",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or give a place on another file system",
    errno.EROFS: "give a place that can be written to",
    errno.EIO: "the disk or its connection fails: look into the system's log, and give another place",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "end other processes: the system has no open file left",
}
"""Problems that another error may hide: no message of ours says them."""
_HINTS = _NO_ROOM | {
    errno.EACCES: "change its permissions, or give another place",
    errno.EPERM: "change its permissions, or give another place",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOENT: "it was removed meanwhile: put it back, and run it again",
    errno.ESTALE: "its file server has lost it: run it again",
    errno.ELOOP: "its links lead in a circle",
    errno.ENOTDIR: "a file is in the place of a folder",
    errno.EISDIR: "a folder is in the place of a file",
    errno.EBUSY: "another process holds it",
    errno.ETXTBSY: "another process runs it",
    errno.ENXIO: "give a regular file",
    errno.ENODEV: "give a regular file",
}


def storage_error(error: OSError, path: Path | None = None) -> StorageError | None:
    """Return what the system says of a file as an error of ours, or None where it says nothing of a file.

    The file is the one that the error names, else `path`.
    """
    if error.errno not in _HINTS or isinstance(error, BrokenPipeError):
        return None
    # Of a copy, the second is the target.
    copied = error.filename2 if error.errno in _NO_ROOM else None
    name = copied or error.filename
    named = name if isinstance(name, str | os.PathLike) else path
    if named is None and error.errno not in _NO_ROOM:
        return None
    return _made(error.errno, None if named is None else Path(named))


def hidden_storage_error(error: BaseException, path: Path) -> StorageError | None:
    """Return the problem of a disk behind another error that was raised while `path` was written, or None.

    Its disk and that of temporary files are asked for the room that they have.
    """
    if isinstance(error, UsageError):
        return None
    for seen in causes(error):
        if isinstance(seen, StorageError):
            return seen
        if isinstance(seen, OSError) and seen.errno in _NO_ROOM:
            return storage_error(seen, path)
        reason = [number for number in _NO_ROOM if os.strerror(number).lower() in str(seen).lower()]
        if reason:
            return _made(reason[0], path)
    places = [path.parent]
    with contextlib.suppress(OSError):
        places.append(Path(tempfile.gettempdir()))
    for place in places:
        if is_full(place):
            why = f"{public(path)}: {os.strerror(errno.ENOSPC)} ({place}); {first_line(error)}"
            return StorageError(why, hint=_ROOM, file=public(path))
    return None


def is_full(folder: Path) -> bool:
    """Whether the disk of a folder has no room left; false where the system does not tell."""
    try:
        status = os.statvfs(folder)
    except (OSError, AttributeError):
        return False
    free = status.f_bfree if os.geteuid() == 0 else status.f_bavail
    return status.f_blocks > 0 and free * status.f_frsize < _FULL_BYTES


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Raise what goes wrong with the disk in the block as StorageError, and other errors as they are."""
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
def reading(path: Path) -> Iterator[None]:
    """Raise what the system says in the block, which reads a file, as StorageError."""
    try:
        yield
    except OSError as error:
        problem = f"{path}: cannot be read ({error.strerror or first_line(error)})"
        unknown = StorageError(problem, hint="give a regular file", file=path)
        raise (storage_error(error, path) or unknown) from error


def public(path: Path) -> Path:
    """Return a path without the folders in which unfinished files lie: no user can go there."""
    return Path(*(part for part in path.parts if not part.startswith(TEMPORARY)))


def _made(number: int, path: Path | None) -> StorageError:
    file = None if path is None else public(path)
    return StorageError(f"{file or 'a file'}: {os.strerror(number)}", hint=_HINTS[number], file=file)
