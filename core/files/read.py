"""Read files that a user names, with clear errors; compute digests and find side files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ArtifactError, InvalidOption, MissingFile, first_line
from .storage import translating_read_errors

_CHUNK_BYTES = 1 << 20


def read_json(path: Path, *, what: str = "file") -> Any:
    """Return the content of a JSON file; `what` is its role in messages, for example "a manifest"."""
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
    with translating_read_errors(path):
        return path.read_bytes()


def require_file(path: Path, *, what: str = "file") -> Path:
    """Return the path of a readable regular file. A pipe is refused, since reading it may block forever."""
    with translating_read_errors(path):
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
    """Return the absolute path of `text`, relative to `base` or the working folder; expand `~`, not links."""
    try:
        path = Path.cwd() / (base or "") / Path(text).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.lstat()
    except (ValueError, RuntimeError, OSError) as error:  # NUL character, unknown user, name too long
        shown = text if len(text) <= 80 else f"{text[:79]}…"
        raise InvalidOption(f"{shown!r} cannot be a path ({first_line(error)})") from error
    return path


def nearest_name(path: Path) -> str:
    """Return "did you mean ...?" for a missing path, a note on its missing folder, or an empty text."""
    import difflib

    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist either"
    try:
        present = os.listdir(path.parent)
    except OSError:  # the folder may be searchable without being readable
        return ""
    near = difflib.get_close_matches(path.name, present, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else ""


def kind_of(path: Path) -> str:
    """Return the kind of a path, "a file", "a folder", ...; "" if the path does not exist."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: zero byte in the name
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
        with translating_read_errors(path), path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                total.update(chunk)
    return f"sha256:{total.hexdigest()}"


def manifest_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def side_files(path: Path) -> list[Path]:
    """Return the files beside an artifact that contain its external data: `NAME.data`, if it exists."""
    data = path.with_name(path.name + ".data")
    return [data] if data.is_file() else []
