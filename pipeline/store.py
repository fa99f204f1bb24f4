"""Finished stages, kept by content: a stage whose key is known is not run again.

    out/.qcompile/quantize-int8-3f9c…/stage.json     key, files, digests, duration; written before the folder
                                     /int8.graph.onnx  gets its name
    out/int8.graph.onnx                               the same file under its public name

A folder gets its name by one rename after everything in it is written, so a stage is there whole or not
at all, whatever kills the process. A file that was changed since has another digest: its stage is made
again.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidOption
from ..files import TEMPORARY, digest_files, lock, open_lock, remove_stale, write_json

FOLDER = ".qcompile"
_RECORD = "stage.json"
_KEPT_DAYS = 14.0


@dataclass(frozen=True)
class Stored:
    """A finished stage: its folder, and file name to digest."""

    folder: Path
    files: Mapping[str, str]
    was_done: bool


class Store:
    """The finished stages of one output folder.

    Args:
        output: The folder that artifacts are published to.
    """

    def __init__(self, output: Path) -> None:
        self.output, self.folder = output, output / FOLDER

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the output folder; a second run in it is refused.

        Raises:
            InvalidOption: If it cannot be made, or another run holds it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.folder.is_symlink():  # stages would be written, and old ones removed, elsewhere
                raise OSError(errno.ELOOP, "is a link; a folder is required", str(self.folder))
            held = open_lock(self.folder / "lock")
        except OSError as error:
            raise InvalidOption(
                f"output {self.output}: {error.strerror} ({error.filename})", file=self.output
            ) from error
        with held:
            lock(held, self.output)
            remove_stale(self.folder)
            remove_stale(self.output)
            yield

    def run(
        self, stage: str, key: Mapping[str, Any], work: Callable[[Path], object], *, again: bool = False
    ) -> Stored:
        """Return the stage of this key, carrying out `work` in a fresh folder if it is not there.

        Args:
            stage: Its name, the beginning of its folder's name.
            key: Everything its outcome depends on.
            work: Writes the stage's files into the folder it is given.
            again: Carry it out even if it is there.
        """
        final = self._place(stage, key)
        files = None if again else self._intact(final)
        done = files is not None
        if files is None:
            shutil.rmtree(final, ignore_errors=True)
            files = self._make(final, key, work)
        os.utime(final / _RECORD)
        self._publish(final, files)
        return Stored(final, files, done)

    def find(self, stage: str, key: Mapping[str, Any]) -> Stored | None:
        """Return the finished stage of this key, if it is there; nothing is written."""
        final = self._place(stage, key)
        files = self._intact(final)
        return None if files is None else Stored(final, files, was_done=True)

    def records(self, stage: str) -> list[dict[str, Any]]:
        """Return what was kept of every time that a stage was carried out, the latest first."""
        found = []
        for path in self.folder.glob(f"{glob.escape(stage)}-*/{_RECORD}"):
            if re.fullmatch(r"[0-9a-f]{16}", path.parent.name.removeprefix(f"{stage}-")):
                with contextlib.suppress(OSError, ValueError):  # removed, or cut off, since
                    found.append((path.stat().st_mtime, json.loads(path.read_text(encoding="utf-8"))))
        return [record for _, record in sorted(found, key=lambda one: -one[0]) if isinstance(record, dict)]

    def _place(self, stage: str, key: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps([stage, key], sort_keys=True).encode()).hexdigest()
        return self.folder / f"{stage}-{digest[:16]}"

    def forget_old(self) -> None:
        """Remove stages that no run has used for two weeks."""
        oldest = time.time() - _KEPT_DAYS * 86400
        for record in self.folder.glob(f"*/{_RECORD}"):
            if record.stat().st_mtime < oldest:
                shutil.rmtree(record.parent, ignore_errors=True)

    def _make(self, final: Path, key: Mapping[str, Any], work: Callable[[Path], object]) -> Mapping[str, str]:
        temporary = Path(tempfile.mkdtemp(prefix=f".qcompile-tmp-{os.getpid()}-", dir=self.folder))
        try:
            start = time.monotonic()
            work(temporary)
            took = {"seconds": round(time.monotonic() - start, 3), "peak_bytes": _peak_bytes()}
            written = sorted(path for path in temporary.iterdir() if path.is_file())
            files = {path.name: digest_files([path]) for path in written}
            stats = {path.name: _stat(path) for path in written}
            write_json(temporary / _RECORD, {"key": key, "files": files, "stats": stats, **took})
            os.replace(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return files

    def _intact(self, final: Path) -> Mapping[str, str] | None:
        """The files of a finished stage if every one is what it was, else None."""
        try:
            record = json.loads((final / _RECORD).read_text(encoding="utf-8"))
            for name, digest in record["files"].items():
                path = final / name
                # Size and time spare reading gigabytes; a difference is settled by the digest.
                if _stat(path) != record["stats"][name] and digest_files([path]) != digest:
                    return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        files: Mapping[str, str] = record["files"]
        return files

    def _publish(self, final: Path, files: Mapping[str, str]) -> None:
        for name in files:
            source, public = final / name, self.output / name
            if public.exists() and os.path.samefile(source, public):
                continue
            temporary = self.output / f"{TEMPORARY}{os.getpid()}-{name}"
            temporary.unlink(missing_ok=True)
            try:
                os.link(source, temporary)
            except OSError:  # a file system without hard links
                shutil.copy2(source, temporary)
            os.replace(temporary, public)


def _peak_bytes() -> int | None:
    """The largest memory that this process has had until now; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _stat(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
