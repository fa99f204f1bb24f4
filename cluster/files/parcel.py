"""A recipe with the files that it reads, as one list by digest: packed by the client, laid out on a worker.

    recipes/3f9c…/home/ann/recipe.toml     the folder is named by the digest of the list
                 /data/images/cat/1.jpg    hard links into the content store

The list names files relative to the folder that all of them lie in, so that relative paths lead where they
led. `pipeline.recipe_files` says which files, and which are not found.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from ...errors import ArtifactError
from ...files import digest_files, writing
from ...files.storage import storing
from ...files.temporary import held_folder, remove_stale
from ...pipeline.portable import portable_text
from ...pipeline.recipe import Recipe
from ...pipeline.recipe_files import recipe_files
from ...pipeline.store import FOLDER
from ...progress import Progress, silent
from ..messages import FileRef, Parcel, encode
from .content import ContentStore
from .digests import Digests

_KEPT_DAYS = 14.0
_LOOKED_AT = 10_000
_LOOKED_S = 600.0
_making = threading.Lock()
_laid: dict[Path, tuple[Laid, float]] = {}
"""Of many files, and when they were looked at."""


@dataclass(frozen=True)
class Packed:
    """A parcel, and where its files lie on this machine.

    Attributes:
        parcel: The list.
        ref: The file that holds it.
        paths: Digest to path, of every file and of the list's own.
    """

    parcel: Parcel
    ref: FileRef
    paths: Mapping[str, Path]


def pack(recipe: Recipe, *, folder: Path | None = None, progress: Progress = silent) -> Packed:
    """List the files of a recipe, with their digests.

    Args:
        recipe: The recipe; it need not be what its file says.
        folder: Where the list and known digests are kept; by default `.qcompile` in the recipe's output.
        progress: Told of files.

    Raises:
        MissingFile, InvalidOption: If it names a file that is not there.
        StorageError: If a file cannot be read, or the list not be written.
        ClusterError: If a file's name is no text.
    """
    folder = folder or recipe.folder / recipe.output / FOLDER
    own = recipe.path.resolve()
    digests = Digests(folder)
    base = str(own.parent)
    found: list[FileRef] = []
    for path, digest, size_bytes in digests.of(_once(recipe_files(recipe), without=own)):
        base = _common(base, str(path))
        found.append(FileRef(str(path), digest, size_bytes))
        if len(found) % 1000 == 0:
            progress("read files", len(found))
    digests.save()
    text = _kept(folder, portable_text(recipe))
    start = len(base.rstrip("/")) + 1
    for index, one in enumerate(found):
        found[index] = FileRef(one.name[start:], one.digest, one.size_bytes)
    recipe_ref = _ref(str(own)[start:], text)
    parcel = Parcel(recipe_ref.name, tuple(sorted([*found, recipe_ref], key=lambda one: one.name)), base)
    listed = _kept(folder, encode(parcel))
    ref = _ref("parcel.json", listed)
    paths = _Paths(Path(base), found, {recipe_ref.digest: text, ref.digest: listed})
    return Packed(parcel, ref, paths)


class _Paths(Mapping[str, Path]):
    """Digest to path; a path is made where it is asked for: there may be a million."""

    def __init__(self, base: Path, files: Iterable[FileRef], texts: Mapping[str, Path]) -> None:
        self._base, self._texts = base, texts
        self._names = {one.digest: one.name for one in files} | dict.fromkeys(texts, "")

    def __getitem__(self, digest: str) -> Path:
        name = self._names[digest]
        return self._base / name if name else self._texts[digest]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _common(folder: str, path: str) -> str:
    """The folder that both lie in."""
    while not path.startswith(folder.rstrip("/") + "/"):
        folder = os.path.dirname(folder)
    return folder


def read_parcel(content: ContentStore, ref: FileRef) -> Parcel:
    """Return the list that a file holds.

    Raises:
        ArtifactError: If the file is not here, or is no list of files below one folder.
    """
    path = content.path(ref.digest)
    if path is None:
        raise ArtifactError(f"{ref.digest}: the list of a recipe's files is not on this worker")
    try:
        parcel = msgspec.json.decode(path.read_bytes(), type=Parcel)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"{ref.digest}: is no list of a recipe's files ({error})") from error
    seen: set[str] = set()
    folders: set[str] = set()
    for one in parcel.files:
        content.place(one.digest)
        if not _is_inside(one.name) or one.name in seen:
            raise ArtifactError(f"{ref.digest}: names {one.name[:80]!r}; a name below its folder is required")
        seen.add(one.name)
        folder = one.name.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    if both := seen & folders:
        raise ArtifactError(f"{ref.digest}: names {min(both)[:80]!r} as a file and as a folder")
    if parcel.recipe not in seen:
        raise ArtifactError(f"{ref.digest}: lists no file {parcel.recipe[:80]!r}, which is to be the recipe")
    return parcel


@dataclass(frozen=True)
class Laid:
    """A parcel laid out on this machine.

    Attributes:
        recipe: The recipe's file.
        folder: That holds all files.
        base: The folder of the client that it stands for.
    """

    recipe: Path
    folder: Path
    base: str


def unpack(content: ContentStore, ref: FileRef, folder: Path) -> Path:
    """Lay a recipe's files out as `lay_out`, and return the path of the recipe."""
    return lay_out(content, ref, folder).recipe


def lay_out(content: ContentStore, ref: FileRef, folder: Path) -> Laid:
    """Lay a recipe's files out; those that are there are kept.

    Tasks of the same recipe share the folder. Files in it are read-only links into the content store; one
    that was changed is put back. Of more than 10,000 files that is looked for every ten minutes only.

    Args:
        content: It has the list and all of its files.
        ref: The list.
        folder: That the folders of recipes lie in.

    Raises:
        ArtifactError: If a file is not in the content store, or the list names one outside of its folder.
        StorageError: If the disk is full.
    """
    final = folder / content.place(ref.digest).name
    with _making, storing(final):
        laid, looked_s = _laid.get(final, (None, 0.0))
        if laid is None or not final.is_dir() or time.monotonic() > looked_s + _LOOKED_S:
            parcel = read_parcel(content, ref)
            folder.mkdir(parents=True, exist_ok=True)
            if not final.is_dir():
                _make(content, parcel, final)
            mend(content, parcel.files, final)
            laid = Laid(final / parcel.recipe, final, parcel.base)
            if len(parcel.files) > _LOOKED_AT:
                _laid[final] = laid, time.monotonic()
        os.utime(final)
    return laid


def forget_old(folder: Path) -> None:
    """Remove the folders of recipes that were not used for two weeks, and what killed processes left."""
    remove_stale(folder)
    oldest = time.time() - _KEPT_DAYS * 86400
    for one in folder.glob("[0-9a-f]" * 64):
        with contextlib.suppress(OSError):
            if one.stat().st_mtime < oldest:
                shutil.rmtree(one, ignore_errors=True)


def _make(content: ContentStore, parcel: Parcel, final: Path) -> None:
    with held_folder(final.parent) as temporary:
        for one in parcel.files:
            content.link(one.digest, temporary / one.name)
        try:
            os.replace(temporary, final)
        except OSError:
            if not final.is_dir():  # another process was first
                raise


def mend(content: ContentStore, files: Iterable[FileRef], final: Path) -> None:
    """Put back what is gone or was changed: a file that is no link into the store has its size at least.

    Raises:
        ArtifactError: If a file is not in the content store.
        StorageError: If the disk is full.
    """
    for one in files:
        path, kept = final / one.name, content.path(one.digest)
        if kept is None:
            raise ArtifactError(f"{one.digest}: is not on this worker; it must be brought first")
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            same = os.path.samestat(status, kept.stat())
            if same or (status.st_nlink == 1 and status.st_size == one.size_bytes):
                continue
        beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        beside.unlink(missing_ok=True)
        content.link(one.digest, beside)
        os.replace(beside, path)


def _is_inside(name: str) -> bool:
    """Whether a name leads to a file below a folder, wherever that lies."""
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") for part in parts) and not set(name) & {"\\", "\0"}
    return plain and not PurePosixPath(name).is_absolute()


def _once(paths: Iterator[Path], *, without: Path) -> Iterator[Path]:
    seen = {str(without)}
    for path in paths:
        name = str(path)
        if name not in seen:
            seen.add(name)
            yield path


def _kept(folder: Path, text: bytes) -> Path:
    """A text in a file that is named by it; those that nothing used for two weeks are removed."""
    oldest = time.time() - _KEPT_DAYS * 86400
    for one in (folder / "parcels").glob("[0-9a-f]" * 64):
        with contextlib.suppress(OSError):
            if one.stat().st_mtime < oldest:
                one.unlink()
    path = folder / "parcels" / hashlib.sha256(text).hexdigest()
    if not path.is_file():
        with writing(path) as temporary:
            temporary.write_bytes(text)
    os.utime(path)
    return path


def _ref(name: str, path: Path) -> FileRef:
    return FileRef(name, digest_files([path]), path.stat().st_size)
