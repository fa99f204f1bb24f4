"""What the system says of a file that it cannot write or read, as an error that names the next step.

Native libraries report it in words of their own, or write less than they were told and say nothing: the
words and the room that is left are looked at too.

Files that a user names: found, read, and refused with a sentence; their digests and side files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import (
    ArtifactError,
    InvalidOption,
    MissingFile,
    StorageError,
    UsageError,
    causes,
    first_line,
)

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


_CHUNK_BYTES = 1 << 20


def read_json(path: Path, *, what: str = "file") -> Any:
    """Return what a JSON file holds; `what` names in a message what it should be."""
    content = read_bytes(path, what=what)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ArtifactError(
            f"{path}: not {what} ({problem})", hint="make the file again", file=path
        ) from error


def read_bytes(path: Path, *, what: str = "file") -> bytes:
    require_file(path, what=what)
    with reading(path):
        return path.read_bytes()


def require_file(path: Path, *, what: str = "file") -> Path:
    """Return the path of an existing file that can be read. A pipe is refused: it may never be written to."""
    with reading(path):
        kind = kind_of(path)
        if kind == "a file":
            os.close(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)))
            return path
    if kind:
        raise MissingFile(f"{what} {path} is {kind}; a file is required", file=path)
    if path.is_symlink():
        raise MissingFile(f"{what} {path} is a link to {os.readlink(path)}, which does not exist", file=path)
    raise MissingFile(f"{what} {path} does not exist", hint=nearest_name(path), file=path)


def absolute_path(text: str, base: Path | None = None) -> Path:
    """Return the absolute path that a text names, `~` the home; links stay as they are.

    Relative paths begin at `base`, by default the working folder.
    """
    try:
        path = Path.cwd() / (base or "") / Path(text).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.lstat()
    except (ValueError, RuntimeError, OSError) as error:  # NUL, no such user, too long
        shown = text if len(text) <= 80 else f"{text[:79]}…"
        raise InvalidOption(f"{shown!r} cannot be a path ({first_line(error)})") from error
    return path


def nearest_name(path: Path) -> str:
    """Return "did you mean ...?" for a path that is not there, or an empty text."""
    import difflib

    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist either"
    try:
        present = os.listdir(path.parent)
    except OSError:  # it may be passed through, and not read
        return ""
    near = difflib.get_close_matches(path.name, present, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else ""


def kind_of(path: Path) -> str:
    """What a path leads to, in words; "" where there is nothing."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no name holds a zero byte
        return ""
    if stat.S_ISREG(mode):
        return "a file"
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def digest_files(paths: Sequence[Path]) -> str:
    """Return "sha256:..." over the contents of files, in the given order."""
    total = hashlib.sha256()
    for path in paths:
        with reading(path), path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                total.update(chunk)
    return f"sha256:{total.hexdigest()}"


def manifest_path(path: Path) -> Path:
    """Return where the manifest of an artifact lies."""
    return path.with_name(path.name + ".json")


def side_files(path: Path) -> list[Path]:
    """Return the files that belong to an artifact beside its main file."""
    data = path.with_name(path.name + ".data")
    return [data] if data.is_file() else []
