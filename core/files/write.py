"""Write files atomically: first into a hidden folder beside the target; then move them, the manifest last."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import InvalidOption
from .read import kind_of, manifest_path
from .storage import storage_error, translating_read_errors, translating_write_errors
from .temporary import locked_folder, public_names, remove_stale_once


@contextmanager
def writing(final: Path) -> Iterator[Path]:
    """Yield a path to write to; on success move the file, its external data and its manifest into place.

    The path has the final name, in a temporary folder on the same file system, so that formats with external
    data can refer to this name. On an error no file gets a final name.
    """
    check_output(final)
    with contextlib.ExitStack() as stack:
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            remove_stale_once(final.parent)
            temporary = stack.enter_context(locked_folder(final.parent))
        except (FileExistsError, NotADirectoryError) as error:
            raise InvalidOption(f"output {final}: {error.strerror} ({error.filename})") from error
        except OSError as error:
            problem = storage_error(error, final)
            if problem is None:
                raise
            raise problem from error
        with public_names(temporary, lambda name: str(final.parent / name)), translating_write_errors(final):
            yield temporary / final.name
            move_in(temporary, final)


_USER_FILE_SUFFIXES = (".py", ".ipynb", ".npz", ".npy", ".jsonl", ".parquet", ".pt2", ".ckpt")
"""Suffixes of users' files that no command writes; a typing error in `-o` could replace such a file."""
_MODEL_SUFFIXES = (".onnx", ".engine", ".plan", ".pt", ".pth", ".safetensors", ".keras", ".h5", ".tflite")


def check_output(final: Path, *, is_model: bool = True) -> None:
    """Raise `InvalidOption` if an output cannot be written or would replace a user's file."""
    with translating_read_errors(final):
        kind = kind_of(final)
    if kind not in ("", "a file"):
        raise InvalidOption(f"output {final} is {kind}; a file name is required")
    if kind and final.suffix in (*_USER_FILE_SUFFIXES, *(() if is_model else _MODEL_SUFFIXES)):
        what = "a model" if final.suffix in _MODEL_SUFFIXES else "code or data"
        raise InvalidOption(f"output {final}: would replace {what}; another name is required", file=final)


def write_text(path: Path, text: str) -> None:
    check_output(path, is_model=False)
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write indented JSON atomically, with keys in the order of `value`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def move_in(temporary: Path, final: Path) -> None:
    """Move files to their final names; a kill or power loss leaves no wrong manifest or external data.

    The old manifest is removed first, and an old file before its external data are replaced. An interrupted
    move may leave a file without a manifest.
    """
    main, manifest = temporary / final.name, manifest_path(temporary / final.name)
    order = {main: 1, manifest: 2}
    written = sorted(temporary.iterdir(), key=lambda path: (order.get(path, 0), path))
    for path in written:
        sync(path)
    data = final.with_name(final.name + ".data")
    if manifest in written:
        old_files = [manifest_path(final)]
        if data.is_file() or temporary / data.name in written:
            old_files += [final, data]
        for path in old_files:
            path.unlink(missing_ok=True)
        sync(final.parent)
    for path in written:
        if path == manifest:
            sync(final.parent)
        os.replace(path, final.with_name(path.name))
    sync(final.parent)


def link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link to a file, or a copy if the file system does not support links."""
    try:
        os.link(source, target)
    except OSError:
        with source.open("rb") as content, target.open("xb") as copy:  # follows no link
            shutil.copyfileobj(content, copy)
        shutil.copystat(source, target)


def sync(path: Path) -> None:
    """Flush a file's content or a folder's names to the disk, if the file system can."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # writable but not readable; Windows opens no folders
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.EBADF):
            raise
    finally:
        os.close(handle)
