"""Files written whole or not at all.

Files appear under their final names only when they are whole: everything is written into a hidden folder
beside the target and moved in at the end, side files first, the manifest last.
"""

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
from .storage import reading, storage_error, storing
from .temporary import held_folder, public_names, sweep


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
            move_in(temporary, final)


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


def move_in(temporary: Path, final: Path) -> None:
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


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        with source.open("rb") as content, target.open("xb") as copy:  # follows no link
            shutil.copyfileobj(content, copy)
        shutil.copystat(source, target)


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
