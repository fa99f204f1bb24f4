"""Files: written whole or not at all, told apart by digest, held by one process at a time.

Files appear under their final names only when they are whole: everything is written into a hidden folder
beside the target and moved in at the end, side files first, the manifest last.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .errors import ArtifactError, InvalidOption, MissingFile, QCompileError, StorageError

TEMPORARY = ".qcompile-tmp-"
"""Beginning of the names of what is not finished; a process id follows."""
_CHUNK_BYTES = 1 << 20


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Yield a new folder among the system's temporary files; it is removed at the end.

    Its name holds the id of this process, so that what a killed one left is found and removed here.

    Args:
        purpose: One word of its name, such as "simplify".

    Raises:
        StorageError: If it cannot be made.
    """
    place = Path(tempfile.gettempdir())
    try:
        remove_stale(place)
        folder = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{os.getpid()}-{purpose}-", dir=place))
    except OSError as error:
        raise StorageError(
            f"temporary files {place}: {error.strerror}", hint="free space, or set TMPDIR", file=place
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def writing(final: Path) -> Iterator[Path]:
    """Yield a path to write to; on success move it, and what was written beside it, into place.

    The path has the final name inside a temporary folder on the same file system, so that formats with
    side files (external data) can name them. On an error nothing appears under a final name.

    Raises:
        InvalidOption: If the folder cannot be made or the target is a folder.
    """
    folder = final.parent
    check_output(final)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{os.getpid()}-", dir=folder))
    except OSError as error:
        raise InvalidOption(f"output {final}: {error.strerror} ({error.filename})") from error
    try:
        yield temporary / final.name
        _move_in(temporary, final)
    except QCompileError as error:
        # Where it was being written is no place a user can go to.
        error.message = error.message.replace(str(temporary / final.name), str(final))
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_output(final: Path) -> None:
    """Refuse an output that could not be written, before any work.

    Raises:
        InvalidOption: If it is a folder.
    """
    if final.is_dir():
        raise InvalidOption(f"output {final} is a folder; a file name is required")


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
    require_file(path, what=what)
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ArtifactError(
            f"{path}: not {what} ({problem})", hint="make the file again", file=path
        ) from error


def require_file(path: Path, *, what: str = "file") -> Path:
    """Return the path of an existing file.

    Raises:
        MissingFile: If there is none, naming the nearest file that is there.
    """
    if path.is_file():
        return path
    if path.is_dir():
        raise MissingFile(f"{what} {path} is a folder; a file is required", file=path)
    raise MissingFile(f"{what} {path} does not exist", hint=nearest_name(path), file=path)


def nearest_name(path: Path) -> str:
    """Return "did you mean ...?" for a path that is not there, or an empty text."""
    import difflib

    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist either"
    near = difflib.get_close_matches(path.name, [item.name for item in path.parent.iterdir()], n=1)
    return f"did you mean {path.parent / near[0]}?" if near else ""


def digest_files(paths: Sequence[Path]) -> str:
    """Return "sha256:..." over the contents of files, in the given order."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                total.update(chunk)
    return f"sha256:{total.hexdigest()}"


def remove_stale(folder: Path, prefix: str = TEMPORARY) -> None:
    """Remove files and folders named PREFIX, pid, "-..." that processes left in `folder` when killed."""
    for path in folder.glob(f"{prefix}*"):
        pid = path.name.removeprefix(prefix).split("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


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
    written = sorted(temporary.iterdir())
    last = {temporary / final.name: 1, manifest_path(temporary / final.name): 2}
    for path in sorted(written, key=lambda path: last.get(path, 0)):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(path, final.with_name(path.name))
    data = final.with_name(final.name + ".data")
    if manifest_path(temporary / final.name) in written and temporary / data.name not in written:
        data.unlink(missing_ok=True)  # of the artifact that this one replaces


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
