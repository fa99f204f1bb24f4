"""Temporary folders, each locked by the process that made it; later processes remove abandoned folders.

    .qcompile-tmp-PID-PURPOSE-xxxxxxxx

The system releases the lock (flock(2)) when the process ends. A folder is removed if no process that may own
it lives and its lock is free; the lock protects folders of other containers that share the parent folder.
Files have no lock and remain while their process may live; without locks, a folder must also be a day old.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import QCompileError, StorageError
from .locks import flock, is_same_folder, open_folder
from .storage import TEMPORARY, hidden_storage_error, public_path, storage_error

PLACES = "QCOMPILE_TEMPORARY_PLACES"
"""Environment variable: file that lists the parents of temporary folders, for a supervising process."""
_ABANDONED_AFTER_S = 86400.0
"""Age at which a folder on a file system without locks counts as abandoned."""
_CLOCK_STEP_S = 2.0


@contextmanager
def temporary_folder(purpose: str, shown: str | Path = "") -> Iterator[Path]:
    """Yield a new folder among the system's temporary files, named for its `purpose`; remove it at the end.

    A QCompileError of the `with` block names `shown` (the user's argument) in place of paths in the folder,
    or only file names if `shown` is empty. Abandoned folders of the same parent are removed first, once.
    """
    with contextlib.ExitStack() as stack:
        try:
            place = Path(tempfile.gettempdir())
            remove_stale_once(place)
            folder = stack.enter_context(locked_folder(place, purpose))
        except OSError as error:
            raise _temporary_error(error, error.filename or "folder") from error
        stack.enter_context(public_names(folder, lambda name: str(shown) or name or "a temporary file"))
        try:
            yield folder
        except OSError as error:
            if not _is_disk_error(error, folder):
                raise
            raise _temporary_error(error, place) from error
        except Exception as error:
            problem = hidden_storage_error(error, folder)
            if problem is None or problem is error:
                raise
            problem.hint = f"{problem.hint}, or set TMPDIR"
            raise problem from error


@contextmanager
def locked_folder(parent: Path, purpose: str = "") -> Iterator[Path]:
    """Yield a folder that `remove_stale` skips while this process lives; finally remove it unless moved."""
    _report_parent(parent)
    prefix = f"{TEMPORARY}{os.getpid()}-{purpose}{'-' if purpose else ''}"
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            handle = open_folder(folder)
        except OSError:  # the limit on open files is reached
            folder.rmdir()
            raise
        if handle is None:  # another process removed the folder before it was locked
            continue
        flock(handle, wait=True)
        if is_same_folder(handle, folder):
            break
        os.close(handle)
    try:
        yield folder
    finally:
        if is_same_folder(handle, folder):
            shutil.rmtree(folder, ignore_errors=True)
        if handle >= 0:
            os.close(handle)


@contextmanager
def public_names(folder: Path, public: Callable[[str], str]) -> Iterator[None]:
    """Replace each path below `folder` in a QCompileError of the `with` block by `public(file name)`."""
    try:
        yield
    except QCompileError as error:
        names = "|".join(re.escape(file.name) for file in sorted(folder.glob("*"), reverse=True))
        places = "|".join(
            map(re.escape, dict.fromkeys(map(str, (folder.resolve(), folder.absolute(), folder))))
        )
        path = re.compile(rf"(?:{places})/?({names or '(?!)'}|[\w.+-]*)(?:/[\w./+-]*)?")

        rename_paths(error, lambda text: path.sub(lambda match: public(match[1]), text))
        raise


def rename_paths(error: QCompileError, rename: Callable[[str], str]) -> None:
    """Apply `rename` to all texts and paths of an error, in place."""

    def rename_value(value: Any) -> Any:
        if isinstance(value, str):
            return rename(value)
        if isinstance(value, list | tuple):
            return type(value)(map(rename_value, value))
        return Path(rename(str(value))) if isinstance(value, Path) else value

    error.message, error.hint = rename(error.message), rename(error.hint)
    error.data = {key: rename_value(value) for key, value in error.data.items()}


def _report_parent(parent: Path) -> None:
    """Append `parent` to the file that PLACES names, if a supervising process set it."""
    if places := os.environ.get(PLACES):
        with contextlib.suppress(OSError), open(places, "ab") as file:
            file.write(os.fsencode(parent.absolute()) + b"\0")


def remove_stale_once(folder: Path) -> None:
    """Call `remove_stale` once per process, unless the folder is in a temporary folder."""
    place = folder.absolute()
    if public_path(place) == place:
        _sweep(place)


def remove_stale(folder: Path) -> None:
    """Remove files and folders named `.qcompile-tmp-PID-...` that killed processes of this user left.

    Links are not followed; files that cannot be removed remain.
    """
    _report_parent(folder)  # callers also make temporary folders in it
    with contextlib.suppress(OSError):
        for path in list(folder.glob(f"{TEMPORARY}*")):
            pid = path.name.removeprefix(TEMPORARY).split("-")[0]
            if pid.isdecimal() and pid.isascii() and len(pid) < 10:
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(path, int(pid))


_sweep = functools.lru_cache(1024)(remove_stale)


def _remove_if_abandoned(path: Path, pid: int) -> None:
    status = path.lstat()
    foreign = hasattr(os, "geteuid") and status.st_uid != os.geteuid()
    if foreign or _owner_may_live(pid, status.st_ctime):
        return
    if not stat.S_ISDIR(status.st_mode):
        path.unlink()
        return
    handle = open_folder(path)
    if handle is None:
        return
    try:
        locked = flock(handle, wait=False)
        if locked or (locked is None and time.time() - status.st_mtime > _ABANDONED_AFTER_S):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        if handle >= 0:
            os.close(handle)


def _owner_may_live(pid: int, changed_s: float) -> bool:
    """Return whether process `pid` lives and started before `changed_s`, or its start is unknown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process, and the file is this user's
        return False
    started_s = _start_time_s(pid)
    return started_s is None or started_s <= changed_s + _CLOCK_STEP_S


def _start_time_s(pid: int) -> float | None:
    """Return the start of a process in wall-clock time, or None if unknown (proc(5), field 22)."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _is_disk_error(error: OSError, folder: Path) -> bool:
    """Return whether an error concerns the disk of a folder; of errors without a file, only a full disk."""
    if error.filename is None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return storage_error(error) is not None and str(error.filename).startswith(str(folder))


def _temporary_error(error: OSError, place: object) -> StorageError:
    problem = f"temporary files {place}: {error.strerror}"
    return StorageError(problem, hint="free space, or set TMPDIR", file=str(place))
