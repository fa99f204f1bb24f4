"""The digests of a client's files, kept from run to run: a million samples are not read again for each.

A line of `.qcompile/digests` is digest, size, time of modification and of change in ns, and the path. A wrong
line does no harm but time: who takes a file verifies it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..data.ordered import in_order
from ..errors import ClusterError, QCompileError
from ..files import digest_files, require_file, write_text

_FILE = "digests"
_SETTLED_NS = 2_000_000_000
Version = tuple[int, int, int]


class Digests:
    """Digests by path, size and times.

    Args:
        folder: That they are kept in; it is made when they are saved.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._known: dict[str, tuple[Version, str]] = {}
        self._used: dict[str, tuple[Version, str]] = {}
        with contextlib.suppress(OSError, ValueError), self._path.open(encoding="utf-8") as lines:
            for line in lines:
                digest, size, modified, changed, path = line.rstrip("\n").split(" ", 4)
                self._known[path] = (int(size), int(modified), int(changed)), digest

    def of(self, paths: Iterable[Path]) -> Iterator[tuple[Path, str, int]]:
        """Yield every path with its digest and size, in order; files are read by several threads.

        Raises:
            MissingFile, StorageError: If a file cannot be read.
            ClusterError: If a name is no text.
        """
        yield from in_order(self._of, paths)

    def save(self) -> None:
        """Keep those that were asked for; without room for it, nothing is kept."""
        lines = (
            f"{digest} {' '.join(map(str, version))} {path}\n"
            for path, (version, digest) in self._used.items()
        )
        if self._used != self._known:
            with contextlib.suppress(OSError, QCompileError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_text(self._path, "".join(lines))

    def _of(self, path: Path) -> tuple[Path, str, int]:
        name = str(path)
        if not _is_text(name):
            raise ClusterError(f"file {name!r}: a name in UTF-8 without line breaks is required", file=name)
        status = require_file(path).stat()
        version = status.st_size, status.st_mtime_ns, status.st_ctime_ns
        known = self._known.get(name)
        if known is not None and known[0] == version:
            self._used[name] = known
            return path, known[1], status.st_size
        digest = digest_files([path])
        # What was written a moment ago may be written again within the clock's resolution.
        if max(version[1:]) < time.time_ns() - _SETTLED_NS:
            self._used[name] = version, digest
        return path, digest, status.st_size


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8
        return False
    return "\n" not in name and "\r" not in name
