"""Files: written whole or not at all, told apart by digest, held by one process at a time.

Files appear under their final names only when they are whole: everything is written into a hidden folder
beside the target and moved in at the end, side files first, the manifest last.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .errors import ArtifactError, InvalidOption, MissingFile, QCompileError, first_line
from .storage import TEMPORARY, reading, storage_error, storing
from .temporary import held_folder, remove_stale, sweep, temporary_folder

__all__ = [
    "TEMPORARY", "absolute_path", "check_output", "digest_files", "held_folder", "lock", "manifest_path",
    "nearest_name", "open_lock", "read_bytes", "read_json", "remove_stale", "require_file", "side_files",
    "temporary_folder", "write_json", "write_text", "writing",
]  # fmt: skip

_CHUNK_BYTES = 1 << 20


@contextmanager
def writing(final: Path) -> Iterator[Path]:
    """Yield a path to write to; on success move it, and what was written beside it, into place.

    The path has the final name inside a temporary folder on the same file system, so that formats with
    side files (external data) can name them. On an error nothing appears under a final name.

    Raises:
        InvalidOption: If the target is a folder, a device or a pipe.
        StorageError: If it cannot be written: the disk is full, a permission is missing, ...
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
        try:
            with storing(final):
                yield temporary / final.name
                _move_in(temporary, final)
        except QCompileError as error:
            # Where it was being written is no place a user can go to.
            error.message = error.message.replace(str(temporary / final.name), str(final))
            raise


def check_output(final: Path) -> None:
    """Refuse an output that could not be written, before any work.

    Raises:
        InvalidOption: If it is a folder, a device or a pipe: a file would take its place.
    """
    with reading(final):
        kind = _kind_of(final)
    if kind not in ("", "a file"):
        raise InvalidOption(f"output {final} is {kind}; a file name is required")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write JSON for people and machines: indented, keys in the given order, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, *, what: str = "file") -> Any:
    """Return what a JSON file holds.

    Args:
        path: The file.
        what: What it should be, for the message.

    Raises:
        MissingFile: If there is none.
        ArtifactError: If it is no JSON, or nested too deeply.
    """
    content = read_bytes(path, what=what)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ArtifactError(
            f"{path}: not {what} ({problem})", hint="make the file again", file=path
        ) from error


def absolute_path(text: str, base: Path | None = None) -> Path:
    """Return the absolute path that a text names; links stay as they are.

    Args:
        text: The path; `~` is the home.
        base: Folder of relative paths; the working folder by default.

    Raises:
        InvalidOption: If no file can have that name.
    """
    try:
        path = Path.cwd() / (base or "") / Path(text).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.lstat()
    except (ValueError, RuntimeError, OSError) as error:  # NUL, no such user, too long
        shown = text if len(text) <= 80 else f"{text[:79]}…"
        raise InvalidOption(f"{shown!r} cannot be a path ({first_line(error)})") from error
    return path


def require_file(path: Path, *, what: str = "file") -> Path:
    """Return the path of an existing file that can be read. A pipe is refused: nobody may ever write to it.

    Raises:
        MissingFile: If there is none, naming the nearest file that is there.
        StorageError: If it cannot be read.
    """
    with reading(path):
        kind = _kind_of(path)
        if kind == "a file":
            os.close(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)))
            return path
    if kind:
        raise MissingFile(f"{what} {path} is {kind}; a file is required", file=path)
    if path.is_symlink():
        raise MissingFile(f"{what} {path} is a link to {os.readlink(path)}, which does not exist", file=path)
    raise MissingFile(f"{what} {path} does not exist", hint=nearest_name(path), file=path)


def read_bytes(path: Path, *, what: str = "file") -> bytes:
    """Return what a file holds.

    Raises:
        MissingFile, StorageError: As `require_file`.
    """
    require_file(path, what=what)
    with reading(path):
        return path.read_bytes()


def _kind_of(path: Path) -> str:
    """What a path leads to, in words; "" where there is nothing.

    Raises:
        OSError: If the system does not tell.
    """
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


def open_lock(path: Path) -> IO[str]:
    """Open a file to be locked, made if it is not there; nothing is written to it.

    Others may write to the folder and have planted a link or a pipe under this well-known name.

    Raises:
        OSError: If it cannot be opened, or is no file of its own.
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

    Raises:
        InvalidOption: If another process holds it.
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


def _move_in(temporary: Path, final: Path) -> None:
    """Move files to their names, so that a kill or a power loss at any moment leaves no wrong pair.

    The former manifest goes first: what is found then is a file without one, never one beside a file that it
    does not describe. A former file goes before its side file is replaced.
    """
    main, manifest = temporary / final.name, manifest_path(temporary / final.name)
    last = {main: 1, manifest: 2}
    written = sorted(temporary.iterdir(), key=lambda path: (last.get(path, 0), path))
    for path in written:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    data = final.with_name(final.name + ".data")
    if manifest in written:
        former = [manifest_path(final)]
        if data.is_file() or temporary / data.name in written:
            former += [final, data]
        removed = [_removed(path) for path in former]
        if any(removed):
            _sync_folder(final.parent)
    for path in written:
        if path == manifest:
            _sync_folder(final.parent)
        os.replace(path, final.with_name(path.name))
    _sync_folder(final.parent)


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Have the names of a folder written to the disk; a file system that cannot is left alone."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # it may be written to, and not read
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(handle)
