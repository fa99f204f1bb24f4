"""A model's folder in a repository: `NAME/config.pbtxt` and `NAME/VERSION/` (Triton, "Model Repository").

Everything is made in a hidden folder beside the repository, which a server may be watching, and moved in
whole: a new model by one rename; a new version first, then the configuration. What fails in between is
taken back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import ArtifactError, InvalidOption, QCompileError
from ..files import digest_files, held_folder, remove_stale
from ..files.storage import storage_error

CONFIG = "config.pbtxt"

_HEADER = re.compile(r"# Written by qcompile package triton; what follows is sha256:([0-9a-f]{64})\n")
_NAME = re.compile(r"[^\s/\\.][^\s/\\]*")
_NAME_BYTES = 255


def model_folder(repository: Path, name: str) -> Path:
    """Return where a model lies.

    Raises:
        InvalidOption: If the name cannot be a folder and a part of an address, or a file is in the way.
    """
    if not _NAME.fullmatch(name) or not name.isprintable() or len(os.fsencode(name)) > _NAME_BYTES:
        raise InvalidOption(
            f"`name` {name!r}: is the name of a folder and part of an address; "
            "no space, slash or control character, and no dot at its beginning",
            option="name",
        )
    for path in (repository, repository / name):
        if path.exists() and not path.is_dir():
            raise InvalidOption(f"output {path}: is a file; a folder is required", option="output")
    return repository / name


def versions_in(folder: Path) -> list[int]:
    """Return the versions of a model: folders named by a number that does not begin with 0."""
    if not folder.is_dir():
        return []
    return sorted(
        int(path.name) for path in folder.iterdir() if path.is_dir() and re.fullmatch(r"[1-9]\d*", path.name)
    )


def with_header(text: str) -> str:
    """Return a configuration that `edited` knows as ours."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"# Written by qcompile package triton; what follows is sha256:{digest}\n{text}"


def edited(config: Path) -> bool:
    """Whether a configuration that is there is another's, or ours with changes."""
    if not config.is_file():
        return False
    header, newline, text = config.read_bytes().partition(b"\n")
    match = _HEADER.fullmatch((header + newline).decode(errors="replace"))
    return not match or hashlib.sha256(text).hexdigest() != match[1]


@contextmanager
def beside(repository: Path) -> Iterator[Path]:
    """Yield an empty hidden folder from which files can be renamed into the repository.

    Raises:
        InvalidOption: If none can be made.
    """
    there = repository.is_dir()
    with contextlib.ExitStack() as stack:
        try:
            repository.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(held_folder(_place(repository)))
        except OSError as error:
            raise _refused(repository, error) from error
        try:
            yield temporary
        finally:
            stack.close()
            if not there and not any(repository.iterdir()):
                repository.rmdir()


def _refused(output: Path | str, error: OSError) -> QCompileError:
    """What the file system says: a disk's problem, or a folder that cannot be one."""
    usage = isinstance(error, FileExistsError | NotADirectoryError)
    problem = None if usage else storage_error(error)
    return problem or InvalidOption(f"output {output}: {error.strerror} ({error.filename})")


def _place(repository: Path) -> Path:
    """A server that polls its repository takes every folder in it for a model: rather beside than inside."""
    outside = repository.resolve().parent
    same = outside.stat().st_dev == repository.stat().st_dev and os.access(outside, os.W_OK | os.X_OK)
    parent = outside if same else repository
    remove_stale(parent)
    return parent


def copy_files(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files to their places below a new folder, and compare what arrived.

    Raises:
        ArtifactError: If a copy differs: the source changed meanwhile, or the disk failed.
        InvalidOption: If they cannot be written.
    """
    try:
        for place, source in files.items():
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            with target.open("rb") as file:
                os.fsync(file.fileno())
            if digest_files([source]) != digest_files([target]):
                raise ArtifactError(f"{source}: its copy {place} differs; it changed meanwhile", file=source)
    except OSError as error:
        raise _refused(folder.name, error) from error


def put_in_place(made: Path, folder: Path, version: int) -> None:
    """Move `made` (a version's folder and the configuration) to where the model lies, or change nothing.

    Raises:
        InvalidOption: If the file system refuses.
    """
    undo: list[tuple[Path, Path]] = []

    def move(source: Path, target: Path) -> None:
        undo.append((target, source))
        os.rename(source, target)

    try:
        if not folder.exists():
            move(made, folder)
            return
        kept = made.with_name("replaced")
        kept.mkdir()
        for name in (str(version), CONFIG):
            if (folder / name).exists():
                move(folder / name, kept / name)
            move(made / name, folder / name)
    except BaseException as error:
        for target, source in reversed(undo):
            if target.exists() and not source.exists():
                os.rename(target, source)
        if isinstance(error, OSError):
            raise _refused(folder, error) from error
        raise
