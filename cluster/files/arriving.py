"""A file on its way: bytes at offsets, in any order, and its digest before it gets its name."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from ...errors import ArtifactError, InvalidOption
from ...files.storage import storing

_READ_BYTES = 1 << 20
_SYNCED_BYTES = 1 << 20
"""Smaller files are not flushed one by one, which takes hours for a million: a power cut that empties one
shows in its size, see `content`."""


class Writer:
    """Takes the bytes of one file; several threads may write.

    The last missing byte ends it: the digest is verified, and the file gets its name. Bytes that come in
    order are digested as they come; others are read again from the disk.

    Args:
        digest: That the file must have.
        size_bytes: That it must have.
        final: Its name, for messages.
        temporary: Returns the folder that it lies in until it is whole, on the same disk.
        name: Gives the whole, verified file its name.
        over: Told when nothing more is taken.

    Attributes:
        is_whole: Whether it has its name.
        is_over: Whether it takes nothing more: it is whole, or was discarded.
    """

    def __init__(
        self,
        digest: str,
        size_bytes: int,
        *,
        final: Path,
        temporary: Callable[[], Path],
        name: Callable[[Path], None],
        over: Callable[[Writer], None] | None = None,
    ) -> None:
        if size_bytes < 0:
            raise InvalidOption(f"{digest}: size {size_bytes}; at least 0 is required", digest=digest)
        self.digest, self.size_bytes = digest, size_bytes
        self.is_whole = self.is_over = False
        self._final, self._temporary, self._name, self._told = final, temporary, name, over
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._file = -1
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._spans: list[tuple[int, int]] = []
        self._last_s = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since bytes came."""
        return time.monotonic() - self._last_s

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> bool:
        """Write bytes where they belong; those that came before are written again, which does no harm.

        Returns:
            Whether the file is whole now.

        Raises:
            InvalidOption: If they lie outside of the file.
            ArtifactError: If all bytes came, and their digest is another one; they are discarded.
            StorageError: If the disk is full; what came is discarded.
        """
        with self._lock:
            self._last_s = time.monotonic()
            if self.is_over:
                return self.is_whole
            end = offset + len(data)
            if offset < 0 or end > self.size_bytes:
                raise InvalidOption(
                    f"{self.digest}: bytes {offset} to {end}; within {self.size_bytes} are required",
                    digest=self.digest,
                )
            try:
                with storing(self._final):
                    self._store(offset, data)
                    if self._spans != [(0, self.size_bytes)]:
                        return False
                    self._finish()
            except BaseException:
                self._discard()
                raise
            return True

    def missing(self) -> list[tuple[int, int]]:
        """Return the spans that have not come yet, as (begin, end)."""
        with self._lock:
            if self.is_whole:
                return []
            begins = [0, *(end for _, end in self._spans)]
            ends = [*(begin for begin, _ in self._spans), self.size_bytes]
            return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]

    def discard(self) -> None:
        """Remove what came."""
        with self._lock:
            if not self.is_over:
                self._discard()

    def _store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        if self._path is None:
            path = self._temporary() / uuid.uuid4().hex
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            self._path = path
        view, at = memoryview(data).cast("B") if len(data) else memoryview(b""), offset
        while at - offset < len(view):
            at += os.pwrite(self._file, view[at - offset :], at)
        self._spans = _joined([*self._spans, (offset, offset + len(view))])
        if offset == self._hashed:
            self._hash.update(view)
            self._hashed += len(view)
        self._catch_up(self._spans[0][1] if self._spans[0][0] == 0 else 0)

    def _catch_up(self, end: int) -> None:
        """Digest what came out of order, as far as nothing is missing."""
        while self._hashed < end:
            data = os.pread(self._file, min(_READ_BYTES, end - self._hashed), self._hashed)
            if not data:  # somebody cut it off
                break
            self._hash.update(data)
            self._hashed += len(data)

    def _finish(self) -> None:
        found = f"sha256:{self._hash.hexdigest()}"
        if found != self.digest:
            raise ArtifactError(
                f"file {self.digest[:19]}…: its bytes have the digest {found[:19]}…; they were changed on "
                "their way, or where they came from",
                hint="it is fetched again from another place; if that fails too, run it again",
                digest=self.digest,
            )
        assert self._path is not None, "bytes came"
        if self.size_bytes >= _SYNCED_BYTES:
            os.fsync(self._file)
        os.close(self._file)
        self._file = -1
        self._name(self._path)
        self.is_whole = self.is_over = True
        if self._told is not None:
            self._told(self)

    def _discard(self) -> None:
        self.is_over = True
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        if self._told is not None:
            self._told(self)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few spans as there are gaps between them."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined
