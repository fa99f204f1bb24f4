"""The digests of a client's files, kept from run to run: a million samples are not read again for each.

A line of `.qcompile/digests` is digest, size, time of modification and of change in ns, and the path. A wrong
line does no harm but time: who takes a file verifies it.
"""

from __future__ import annotations

import contextlib
import itertools
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...data.ordered import in_order
from ...errors import ClusterError, QCompileError
from ...files import digest_files, require_file, writing

_FILE = "digests"
_SETTLED_NS = 2_000_000_000
_AT_ONCE = 4096


class Digests:
    """Digests by path, size and times.

    Args:
        folder: That they are kept in; it is made when they are saved.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._known: dict[str, str] = {}
        self._used: list[str] = []
        self._is_new = False
        with contextlib.suppress(OSError, ValueError), self._path.open(encoding="utf-8") as lines:
            for line in lines:
                digest, size, modified, changed, path = line.rstrip("\n").split(" ", 4)
                self._known[path] = f"{digest} {size} {modified} {changed}"

    def of(self, paths: Iterable[Path]) -> Iterator[tuple[Path, str, int]]:
        """Yield every path with its digest and size, in order; files are read by several threads.

        Raises:
            MissingFile, StorageError: If a file cannot be read.
            ClusterError: If a name is no text.
        """
        paths = iter(paths)
        while bundle := list(itertools.islice(paths, _AT_ONCE)):
            versions = {path: _version_of(path) for path in bundle}
            found = {path: self._look_up(path, version) for path, version in versions.items()}
            unknown = [path for path, digest in found.items() if not digest]
            for path, digest in zip(unknown, in_order(_digest, unknown), strict=True):
                found[path] = digest
                self._note(path, versions[path], digest)
            for path in bundle:
                yield path, found[path], versions[path][0]

    def save(self) -> None:
        """Keep those that were asked for; without room for it, nothing is kept."""
        if self._is_new or len(self._used) != len(self._known):
            with contextlib.suppress(OSError, QCompileError), writing(self._path) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in self._used), encoding="utf-8")

    def _look_up(self, path: Path, version: tuple[int, int, int]) -> str:
        """The digest of a file that is as it was; empty for another."""
        said = self._known.get(str(path), "")
        digest, _, known = said.partition(" ")
        if known != " ".join(map(str, version)):
            return ""
        self._used.append(f"{said} {path}")
        return digest

    def _note(self, path: Path, version: tuple[int, int, int], digest: str) -> None:
        # What was written a moment ago may be written again within the clock's resolution.
        if max(version[1:]) < time.time_ns() - _SETTLED_NS and version == _version_of(path):
            self._is_new = True
            self._used.append(f"{digest} {' '.join(map(str, version))} {path}")


def _digest(path: Path) -> str:
    return digest_files([path])


def _version_of(path: Path) -> tuple[int, int, int]:
    """Size, and times in ns.

    Raises:
        MissingFile: If it is not there, or no file.
        ClusterError: If its name is no text.
    """
    if not _is_text(str(path)):
        name = str(path)
        raise ClusterError(f"file {name!r}: a name in UTF-8 without line breaks is required", file=name)
    try:
        status = path.stat()
    except OSError:
        status = require_file(path).stat()
    if not stat.S_ISREG(status.st_mode):
        require_file(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8
        return False
    return "\n" not in name and "\r" not in name
