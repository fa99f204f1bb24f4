"""Files of a worker by their digests: each is there whole or not at all, and is never written to again.

    content/3f/3f9c…         the bytes whose SHA-256 is 3f9c…; read-only
    content/3f/3f9c….seal    size and time of one that shares its bytes with a file of a stage

A file gets its name by one rename after its digest was verified. Bytes are shared by hard links, so a
process that may write to everything (root) could change them through another name. That changes the time of
the file: a file whose size or time is not the expected one is read again, and removed if its digest differs.
The time of a file that was brought here is made from its digest and size, which needs no record.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import ArtifactError, InvalidOption
from ...files import digest_files
from ...files.storage import storing
from ...files.temporary import held_folder, remove_stale
from .arriving import Writer

FOLDER = "content"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SEAL = ".seal"
_READ_ONLY = 0o444
_KEPT_DAYS = 14.0
_USED_NS = 3600 * 10**9
"""A use is noted once in this time."""


@dataclass
class Moved:
    """Bytes and files that went from machine to machine.

    Attributes:
        bytes_in: That came; those of a file that came twice, or was damaged, count each time.
        bytes_out: That went to others.
        files_in: That came whole.
        files_again: Of them, those that were there already: each file is to come once.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    files_in: int = 0
    files_again: int = 0


class ContentStore:
    """Files by digest, in the folder of one worker.

    Methods may be called from several threads; several processes may share the folder.

    Args:
        folder: The worker's folder; the files lie in `content` below it.

    Attributes:
        moved: What came and went since it was opened.

    Raises:
        StorageError: If it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        self.moved = Moved()
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        self._writers: dict[str, Writer] = {}
        self._held = contextlib.ExitStack()
        self._temporary: Path | None = None
        with storing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        remove_stale(self.folder)

    def path(self, digest: str) -> Path | None:
        """Return where the file of a digest lies; None where it is not there. It counts as used now.

        A file that was changed since it came is removed.

        Raises:
            InvalidOption: If it is no digest.
        """
        path = self.place(digest)
        try:
            status = path.stat(follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return None
            if not self._is_sealed(path, digest, status):
                return self._read_again(path, digest)
            if abs(time.time_ns() - status.st_atime_ns) > _USED_NS:
                with contextlib.suppress(PermissionError):  # of another user, on a shared folder
                    os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
        except FileNotFoundError:
            return None
        return path

    def missing(self, digests: Iterable[str], *, verify: bool = False) -> list[str]:
        """Return those that are not there, each once, in the given order.

        Args:
            digests: Of files.
            verify: Read every file again, and remove those that are damaged.

        Raises:
            InvalidOption: If one is no digest.
        """
        found = []
        for digest in dict.fromkeys(digests):
            path = self.path(digest)
            if path is not None and verify:
                path = self._read_again(path, digest)
            if path is None:
                found.append(digest)
        return found

    def adopt(self, path: Path, digest: str) -> None:
        """Keep a file that lies on this machine: by a hard link, which takes no room, or by a copy.

        The digest is the caller's, who has just computed it: a link is not read again. A copy is. The file
        itself becomes read-only where it is linked.

        Args:
            path: The file.
            digest: Of it.

        Raises:
            ArtifactError: If a copy has another digest.
            StorageError: If the disk has no room for a copy.
        """
        place = self.place(digest)
        if self.path(digest) is not None:
            return
        source = path.resolve()  # the link must be to the file, not to a link to it
        with storing(place):
            place.parent.mkdir(exist_ok=True)
            temporary = self._new_name()
            try:
                os.link(source, temporary)
                os.chmod(temporary, stat.S_IMODE(source.stat().st_mode) & ~0o222)
            except OSError:  # another disk, no hard links, the owner is another one
                temporary.unlink(missing_ok=True)
                self._copy_in(source, digest)
                return
            self._seal(place, temporary)
            os.replace(temporary, place)

    def link(self, digest: str, target: Path, *, writable: bool = False) -> None:
        """Give the file of a digest another name, which must be free; folders above it are made.

        Args:
            digest: Of the file.
            target: The new name.
            writable: Whether it is going to be changed there: it becomes a copy. Without it the name is a
                read-only hard link where the disk has them.

        Raises:
            ArtifactError: If it is not here.
            StorageError: If the disk has no room for a copy.
        """
        path = self.path(digest)
        if path is None:
            raise ArtifactError(f"{digest}: is not on this worker; it must be brought first", digest=digest)
        with storing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not writable:
                try:
                    os.link(path, target)
                    return
                except FileExistsError:
                    raise
                except OSError:  # another disk, or as many links as it takes
                    pass
            with path.open("rb") as content, target.open("xb") as copied:
                shutil.copyfileobj(content, copied, 1 << 20)
            if not writable:
                os.chmod(target, _READ_ONLY)

    def writer(self, digest: str, size_bytes: int) -> Writer:
        """Return what takes the bytes of a file in any order; the same one until it is whole or discarded.

        A sender that was lost in the middle leaves what it has brought to the next one.

        Raises:
            InvalidOption: If it is no digest, or the size is not the one that was said before.
        """
        self.place(digest)
        with self._lock:
            writer = self._writers.get(digest)
            if writer is None or writer.is_over:
                writer = self._new_writer(digest, size_bytes)
                self._writers[digest] = writer
        if writer.size_bytes != size_bytes:
            problem = f"{size_bytes} bytes; {writer.size_bytes} are required"
            raise InvalidOption(f"{digest}: {problem}, as was said before", digest=digest)
        return writer

    def begun(self, digests: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
        """Return the spans that are missing of files that came in part."""
        with self._lock:
            writers = [self._writers[digest] for digest in digests if digest in self._writers]
        return {writer.digest: writer.missing() for writer in writers if not writer.is_over}

    @contextlib.contextmanager
    def using(self, digests: Iterable[str]) -> Iterator[None]:
        """Keep files while the block runs: `forget_old` leaves them alone."""
        names = list(digests)
        with self._lock:
            self._used.update(names)
        try:
            yield
        finally:
            with self._lock:
                self._used.subtract(names)
                self._used += Counter()  # those at zero go

    def forget_old(self, *, most_bytes: int | None = None) -> int:
        """Remove files that nothing has used for two weeks, and more where they take too much room.

        A file that a task uses (`using`) stays, and so does one that has another name on the disk, as in the
        folder of a recipe: to remove it would free nothing.

        Args:
            most_bytes: Room that all files may take; the least recently used go first. None sets no limit.

        Returns:
            How many were removed.
        """
        self._discard_idle()
        kept, removed = [], 0
        oldest = time.time() - _KEPT_DAYS * 86400
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            with contextlib.suppress(FileNotFoundError):
                if path.name.endswith(_SEAL):
                    self._forget_seal(path)
                    continue
                status = path.lstat()
                kept.append((status.st_atime, status.st_size, status.st_nlink, path))
        total = sum(size for _, size, _, _ in kept)
        for used, size, links, path in sorted(kept):
            too_much = most_bytes is not None and total > most_bytes
            if (used >= oldest and not too_much) or links > 1:
                continue
            with self._lock:
                if self._used[f"sha256:{path.name}"]:
                    continue
                path.unlink(missing_ok=True)
            total, removed = total - size, removed + 1
        return removed

    def place(self, digest: str) -> Path:
        """Return where the file of a digest lies, or would lie.

        Raises:
            InvalidOption: If it is no digest: nothing else names a file here.
        """
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise InvalidOption(
                f"digest {str(digest)[:80]!r}: sha256: and 64 hexadecimal digits are required"
            )
        name = digest.removeprefix("sha256:")
        return self.folder / name[:2] / name

    def temporary(self) -> Path:
        """Return the folder of what is not whole yet; the next process removes it if this one is killed."""
        with self._lock:
            if self._temporary is None or not self._temporary.is_dir():
                self._temporary = self._held.enter_context(held_folder(self.folder))
            return self._temporary

    def _new_writer(self, digest: str, size_bytes: int, *, counted: bool = True) -> Writer:
        return Writer(
            digest,
            size_bytes,
            final=self.place(digest),
            temporary=self.temporary,
            name=lambda written: self._take(written, digest, counted=counted),
            over=self._forget_writer,
        )

    def _take(self, written: Path, digest: str, *, counted: bool) -> None:
        """Give a whole, verified file its name; its time becomes the one that its digest asks for."""
        place = self.place(digest)
        with storing(place):
            if counted:
                self.moved.files_in += 1
                self.moved.files_again += self.path(digest) is not None
            place.parent.mkdir(exist_ok=True)
            os.chmod(written, _READ_ONLY)
            os.utime(written, ns=(time.time_ns(), _time_of(digest, written.stat().st_size)))
            place.with_name(place.name + _SEAL).unlink(missing_ok=True)
            os.replace(written, place)

    def close(self) -> None:
        """Remove what is not whole."""
        with self._lock:
            writers, self._writers = [*self._writers.values()], {}
        for writer in writers:
            writer.discard()
        self._held.close()

    def _forget_writer(self, writer: Writer) -> None:
        """Let the next sender of a file begin anew."""
        with self._lock:
            if self._writers.get(writer.digest) is writer:
                del self._writers[writer.digest]

    def _new_name(self) -> Path:
        return self.temporary() / f"{threading.get_ident()}-{time.monotonic_ns()}"

    def _copy_in(self, source: Path, digest: str) -> None:
        writer = self._new_writer(digest, source.stat().st_size, counted=False)
        with source.open("rb") as file:
            while chunk := file.read(1 << 20):
                writer.write(file.tell() - len(chunk), chunk)
        if not writer.is_whole:  # an empty file
            writer.write(0, b"")

    def _is_sealed(self, path: Path, digest: str, status: os.stat_result) -> bool:
        """Whether a file has the time that it must have, or the recorded size and time."""
        if status.st_mtime_ns == _time_of(digest, status.st_size):
            return True
        try:
            size, changed = path.with_name(path.name + _SEAL).read_text().split()
            return (int(size), int(changed)) == (status.st_size, status.st_mtime_ns)
        except (FileNotFoundError, ValueError):
            return False

    def _read_again(self, path: Path, digest: str) -> Path | None:
        """The file if it has its digest, sealed anew; else it is removed."""
        if digest_files([path]) != digest:
            path.unlink(missing_ok=True)
            return None
        status = path.stat()
        if not self._is_sealed(path, digest, status):
            self._seal(path, path)
        return path

    def _seal(self, place: Path, file: Path) -> None:
        """Record the size and time that a file has now."""
        status, written = file.stat(), self._new_name()
        written.write_text(f"{status.st_size} {status.st_mtime_ns}")
        os.replace(written, place.with_name(place.name + _SEAL))

    def _discard_idle(self) -> None:
        """Remove what senders left in the middle an hour ago, and nobody went on with."""
        with self._lock:
            idle = [one for one in self._writers.values() if one.idle_s > 3600]
        for writer in idle:
            writer.discard()

    def _forget_seal(self, seal: Path) -> None:
        if not seal.with_name(seal.name.removesuffix(_SEAL)).exists():
            old = time.time() - seal.stat().st_mtime > 3600  # a seal comes before its file
            if old:
                seal.unlink(missing_ok=True)


def _time_of(digest: str, size_bytes: int) -> int:
    """A time in ns within 2001 to 2004, of whole microseconds: nearly every file system keeps them.

    The size is in it, so that a file that lost its end (power cut) has not the time that it must have.
    """
    return (10**15 + (int(digest[7:18], 16) + size_bytes) % 10**14) * 1000
