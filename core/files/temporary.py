"""What a process holds: folders for what is not finished, and an output.

The next process removes the folders of killed ones.

    .qcompile-tmp-PID-PURPOSE-xxxxxxxx

The process holds a lock on its folder (flock(2)), which the system gives back when the process ends, however
it ends. So a folder without its lock is nobody's: also where ids of processes are used again, or mean nothing
because containers share the folder. The id in the name protects what has no lock: files, and folders of a
file system without locks.

Files written whole or not at all.

Files appear under their final names only when they are whole: everything is written into a hidden folder
beside the target and moved in at the end, side files first, the manifest last.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ...errors import InvalidOption, QCompileError, StorageError
from .storage import (
    TEMPORARY,
    hidden_storage_error,
    kind_of,
    manifest_path,
    public,
    reading,
    storage_error,
    storing,
)

PLACES = "QCOMPILE_TEMPORARY_PLACES"
"""Variable with a file that gets the folders where temporary ones are made: for who ends this process."""
_OLD_S = 86400.0
"""Age from which a folder that cannot be locked is taken for abandoned."""
_CLOCK_STEP_S = 2.0


@contextmanager
def temporary_folder(purpose: str, shown: str | Path = "") -> Iterator[Path]:
    """Yield a new folder among the system's temporary files, with a word in its name; removed at the end.

    Errors that leave it name `shown`, what the user gave, in place of its files; without it, their names
    alone. What killed processes left there is removed, once for each process and place.
    """
    with contextlib.ExitStack() as stack:
        try:
            place = Path(tempfile.gettempdir())
            sweep(place)
            folder = stack.enter_context(held_folder(place, purpose))
        except OSError as error:
            raise _no_temporary(error, error.filename or "folder") from error
        stack.enter_context(public_names(folder, lambda name: str(shown) or name or "a temporary file"))
        try:
            yield folder
        except OSError as error:
            if not _is_about(error, folder):
                raise
            raise _no_temporary(error, place) from error
        except Exception as error:
            problem = hidden_storage_error(error, folder)
            if problem is None or problem is error:
                raise
            problem.hint = f"{problem.hint}, or set TMPDIR"
            raise problem from error


@contextmanager
def held_folder(parent: Path, purpose: str = "") -> Iterator[Path]:
    """Yield a new folder that `remove_stale` leaves alone while this process lives; removed at the end.

    It may be renamed meanwhile: nothing is removed then.
    """
    _tell(parent)
    prefix = f"{TEMPORARY}{os.getpid()}-{purpose}{'-' if purpose else ''}"
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            handle = _open_folder(folder)
        except OSError:  # no descriptor is left
            folder.rmdir()
            raise
        if handle is None:  # another process took it for abandoned before the lock was held
            continue
        _lock(handle, wait=True)
        if _is_still(handle, folder):
            break
        os.close(handle)
    try:
        yield folder
    finally:
        if _is_still(handle, folder):
            shutil.rmtree(folder, ignore_errors=True)
        if handle >= 0:
            os.close(handle)


@contextmanager
def public_names(folder: Path, public: Callable[[str], str]) -> Iterator[None]:
    """Let errors name what users can go to in place of a folder's files; `public` takes a file's name."""
    try:
        yield
    except QCompileError as error:
        names = "|".join(re.escape(file.name) for file in sorted(folder.glob("*"), reverse=True))
        places = "|".join(
            map(re.escape, dict.fromkeys(map(str, (folder.resolve(), folder.absolute(), folder))))
        )
        path = re.compile(rf"(?:{places})/?({names or '(?!)'}|[\w.+-]*)(?:/[\w./+-]*)?")

        def renamed(value: Any) -> Any:
            if isinstance(value, str):
                return path.sub(lambda match: public(match[1]), value)
            if isinstance(value, list | tuple):
                return type(value)(map(renamed, value))
            return Path(renamed(str(value))) if isinstance(value, Path) else value

        error.message, error.hint = renamed(error.message), renamed(error.hint)
        error.data = {key: renamed(value) for key, value in error.data.items()}
        raise


def _tell(parent: Path) -> None:
    """Tell the process that watches this one where a temporary folder is made."""
    if places := os.environ.get(PLACES):
        with contextlib.suppress(OSError), open(places, "ab") as file:
            file.write(os.fsencode(parent.absolute()) + b"\0")


def sweep(folder: Path) -> None:
    """Remove what killed processes left in a folder, once for each process; again after a thousand others."""
    place = folder.absolute()
    if public(place) == place:
        _sweep(place)


@functools.lru_cache(1024)
def _sweep(place: Path) -> None:
    remove_stale(place)


def remove_stale(folder: Path) -> None:
    """Remove files and folders named TEMPORARY, pid, "-..." that processes of this user left when killed.

    Links are never followed, and what cannot be removed stays.
    """
    _tell(folder)  # who looks for them here makes some here
    with contextlib.suppress(OSError):
        for path in list(folder.glob(f"{TEMPORARY}*")):
            pid = path.name.removeprefix(TEMPORARY).split("-")[0]
            if pid.isdecimal() and pid.isascii() and len(pid) < 10:
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(path, int(pid))


def _remove_if_abandoned(path: Path, pid: int) -> None:
    status = path.lstat()
    foreign = hasattr(os, "geteuid") and status.st_uid != os.geteuid()
    if foreign or _owner_lives(pid, status.st_ctime):
        return
    if not stat.S_ISDIR(status.st_mode):
        path.unlink()
        return
    handle = _open_folder(path)
    if handle is None:
        return
    try:
        locked = _lock(handle, wait=False)
        if locked or (locked is None and time.time() - status.st_mtime > _OLD_S):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        if handle >= 0:
            os.close(handle)


def _open_folder(folder: Path) -> int | None:
    """A handle that a lock can be held on; None where it is gone or a link, -1 where there are no locks."""
    if sys.platform == "win32":
        return -1
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def _lock(handle: int, *, wait: bool) -> bool | None:
    """Lock it; False where another process holds it, None where the file system has no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _is_still(handle: int, folder: Path) -> bool:
    """Whether the path leads to what the handle holds."""
    if handle < 0:
        return folder.is_dir()
    try:
        return os.path.samestat(os.fstat(handle), folder.lstat())
    except FileNotFoundError:
        return False


def _owner_lives(pid: int, changed_s: float) -> bool:
    """Whether a process may be the one that made something which was changed then: it began before."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user, and what it made would be too
        return False
    began_s = _began_s(pid)
    return began_s is None or began_s <= changed_s + _CLOCK_STEP_S


def _began_s(pid: int) -> float | None:
    """When a process began, by the wall clock; None where the system does not tell (proc(5), field 22)."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _is_about(error: OSError, folder: Path) -> bool:
    """Whether an error is one of the disk of a folder; where none is named, only writing fails like that."""
    if error.filename is None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return storage_error(error) is not None and str(error.filename).startswith(str(folder))


def _no_temporary(error: OSError, place: object) -> StorageError:
    problem = f"temporary files {place}: {error.strerror}"
    return StorageError(problem, hint="free space, or set TMPDIR", file=str(place))


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
    if _lock(file.fileno(), wait=False) is False:
        problem = f"`output` {output}: another run is using it"
        raise InvalidOption(problem, hint="wait for it, or give another `output`")


@contextmanager
def writing(final: Path) -> Iterator[Path]:
    """Yield a path to write to; on success move it, and what was written beside it, into place.

    The path has the final name inside a temporary folder on the same file system, so that formats with
    side files (external data) can name them. On an error nothing appears under a final name.
    """
    check_output(final)
    with contextlib.ExitStack() as stack:
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            sweep(final.parent)
            temporary = stack.enter_context(held_folder(final.parent))
        except (FileExistsError, NotADirectoryError) as error:
            raise InvalidOption(f"output {final}: {error.strerror} ({error.filename})") from error
        except OSError as error:
            problem = storage_error(error, final)
            if problem is None:
                raise
            raise problem from error
        with public_names(temporary, lambda name: str(final.parent / name)), storing(final):
            yield temporary / final.name
            _move_in(temporary, final)


_READ_ALONE = (".py", ".ipynb", ".npz", ".npy", ".jsonl", ".parquet", ".pt2", ".ckpt")
"""Endings of files that no command writes, and people have: a slip of `-o` would cost them."""
_MODELS = (".onnx", ".engine", ".plan", ".pt", ".pth", ".safetensors", ".keras", ".h5", ".tflite")


def check_output(final: Path, *, is_model: bool = True) -> None:
    """Refuse an output that could not be written, before any work, or would cost a user's file."""
    with reading(final):
        kind = kind_of(final)
    if kind not in ("", "a file"):
        raise InvalidOption(f"output {final} is {kind}; a file name is required")
    if kind and final.suffix in (*_READ_ALONE, *(() if is_model else _MODELS)):
        what = "a model" if final.suffix in _MODELS else "code or data"
        raise InvalidOption(f"output {final}: would replace {what}; another name is required", file=final)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    check_output(path, is_model=False)
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write JSON for people and machines: indented, keys in the given order, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _move_in(temporary: Path, final: Path) -> None:
    """Move files to their names, so that a kill or a power loss at any moment leaves no wrong pair.

    The former manifest goes first: what is found then is a file without one, never one beside a file that it
    does not describe. A former file goes before its side file is replaced.
    """
    main, manifest = temporary / final.name, manifest_path(temporary / final.name)
    last = {main: 1, manifest: 2}
    written = sorted(temporary.iterdir(), key=lambda path: (last.get(path, 0), path))
    for path in written:
        sync(path)
    data = final.with_name(final.name + ".data")
    if manifest in written:
        former = [manifest_path(final)]
        if data.is_file() or temporary / data.name in written:
            former += [final, data]
        for path in former:
            path.unlink(missing_ok=True)
        sync(final.parent)
    for path in written:
        if path == manifest:
            sync(final.parent)
        os.replace(path, final.with_name(path.name))
    sync(final.parent)


def sync(path: Path) -> None:
    """Have a file's content, or a folder's names, on the disk; a file system that cannot is left alone."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # it may be written to, and not read; Windows opens no folders
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.EBADF):
            raise
    finally:
        os.close(handle)
