"""Finished stages, kept by content: a stage whose key is known is not run again.

    out/.qcompile/quantize-int8-3f9c…/stage.json     key, files, digests, duration; written before the folder
                                     /int8.graph.onnx  gets its name
    out/int8.graph.onnx                               the same file under its public name

A folder gets its name by one rename after everything in it is on the disk, so a stage is there whole or not
at all, whatever kills the process or cuts the power. A file that was changed since has another digest: its
stage is made again.

The folder is trusted state, as the recipe is: who may write to it decides what a run publishes. A record of
another shape, or one that names a file outside its folder, is none.
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
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...core.files import digest_files, held_folder, lock, open_lock, remove_stale, write_json
from ...core.files.write import link_or_copy, move_in, sync
from ...errors import InvalidOption, StorageError

FOLDER = ".qcompile"
_RECORD = "stage.json"
KEPT_DAYS = 14.0


@dataclass(frozen=True)
class Stored:
    """A finished stage: its folder, and file name to digest."""

    folder: Path
    files: Mapping[str, str]
    was_done: bool


class Store:
    """The finished stages of one output folder.

    `folder` is where stages are kept, for several output folders, and by default in the output folder: one
    at a time may carry out a stage in it.
    """

    def __init__(self, output: Path, *, folder: Path | None = None) -> None:
        self.output, self.own = output, output / FOLDER
        self.folder = folder or self.own
        self._used: set[Path] = set()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the output folder; a second run in it is refused."""
        try:
            for folder in (self.folder, self.own):
                folder.mkdir(parents=True, exist_ok=True)
                if folder.is_symlink():  # stages would be written, and old ones removed, elsewhere
                    raise OSError(errno.ELOOP, "is a link; a folder is required", str(folder))
            lock_file = open_lock(self.own / "lock")
        except OSError as error:
            problem = f"output {self.output}: {error.strerror} ({error.filename})"
            raise InvalidOption(problem, file=self.output) from error
        with lock_file:
            lock(lock_file, self.output)
            remove_stale(self.folder)
            remove_stale(self.output)
            yield

    def run(
        self,
        stage: str,
        key: Mapping[str, Any],
        work: Callable[[Path], object],
        *,
        again: bool = False,
        publish: bool = True,
        took: Mapping[str, float | None] | None = None,
    ) -> Stored:
        """Return the stage of this key, carrying out `work` in a fresh folder if it is not there, or `again`.

        `publish` gives its files their names in the output folder. `took` has its `seconds` and
        `peak_bytes` where it was carried out elsewhere, and `work` brings the files.
        """
        final = self.folder / self.name(stage, key)
        if not again and (stored := self._finished(final)):
            return self._handed_out(stored, publish)
        shutil.rmtree(final, ignore_errors=True)
        with held_folder(self.folder) as temporary:
            start = time.monotonic()
            work(temporary)
            peak_bytes = None
            with contextlib.suppress(ImportError):  # Windows does not tell
                import resource

                peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            took = took or {"seconds": round(time.monotonic() - start, 3), "peak_bytes": peak_bytes}
            written = sorted(path for path in temporary.iterdir() if path.is_file())
            for path in written:
                sync(path)
            files = {path.name: digest_files([path]) for path in written}
            stats = {path.name: _stat(path) for path in written}
            write_json(temporary / _RECORD, {"key": key, "files": files, "stats": stats, **took})
            sync(temporary)
            os.replace(temporary, final)
            sync(self.folder)
        return self._handed_out(Stored(final, files, was_done=False), publish)

    def name(self, stage: str, key: Mapping[str, Any]) -> str:
        """Return the name that a stage of this key has, or would have, in `kept`."""
        digest = hashlib.sha256(json.dumps([stage, key], sort_keys=True).encode()).hexdigest()
        return f"{stage}-{digest[:16]}"

    def kept(self, stage: str) -> list[str]:
        """Return the names of the finished stages of this name that are whole: "build-int8-3f9c…"."""
        return [path.name for path in self._places(stage) if self._finished(path)]

    def take(self, name: str, *, publish: bool = True) -> Stored | None:
        """Return a finished stage by its name from `kept`, published; None if it is gone or changed."""
        stored = self._finished(self.folder / name)
        return self._handed_out(stored, publish) if stored else None

    def find(self, stage: str, key: Mapping[str, Any]) -> Stored | None:
        """Return the finished stage of this key, if it is there; nothing is written."""
        return self._finished(self.folder / self.name(stage, key))

    def records(self, stage: str) -> list[Record]:
        """Return the records of every time that a stage was carried out, the latest first."""
        records = []
        for folder in self._places(stage):
            path = folder / _RECORD
            with contextlib.suppress(OSError, ValueError, RecursionError):  # removed, or cut off, since
                records.append((path.stat().st_mtime, _read_record(path)))
        return [record for _, record in sorted(records, key=lambda dated: -dated[0])]

    def _places(self, stage: str) -> Iterator[Path]:
        """The folders of all times that a stage was carried out."""
        for path in self.folder.glob(f"{glob.escape(stage)}-*/{_RECORD}"):
            if re.fullmatch(r"[0-9a-f]{16}", path.parent.name.removeprefix(f"{stage}-")):
                yield path.parent

    def _handed_out(self, stored: Stored, publish: bool) -> Stored:
        os.utime(stored.folder / _RECORD)
        self._used.add(stored.folder)
        if publish:
            self._publish(stored.folder, stored.files)
        return stored

    def forget_old(self) -> None:
        """Remove stages that no run has used for two weeks; never those of this run: the clock may jump."""
        oldest = time.time() - KEPT_DAYS * 86400
        for record in self.folder.glob(f"*/{_RECORD}"):
            if record.parent not in self._used and record.stat().st_mtime < oldest:
                shutil.rmtree(record.parent, ignore_errors=True)

    def _finished(self, final: Path) -> Stored | None:
        """The stage in a folder if every file is what it was, else None."""
        try:
            record = _read_record(final / _RECORD)
            for name, digest in record.files.items():
                path = final / name
                # Size and time spare reading gigabytes; a difference is settled by the digest.
                if _stat(path) != record.stats[name] and digest_files([path]) != digest:
                    return None
        except (OSError, ValueError, RecursionError):
            return None
        return Stored(final, record.files, was_done=True)

    def _publish(self, final: Path, files: Mapping[str, str]) -> None:
        """Give the files their public names, unless they have them."""
        main = next((name for name in files if f"{name}.json" in files), next(iter(files)))
        if all(_is_same(final / name, self.output / name) for name in {*files, f"{main}.data"}):
            return
        try:
            with held_folder(self.output) as temporary:
                for name in files:
                    link_or_copy(final / name, temporary / name)
                move_in(temporary, self.output / main)
        except OSError as error:
            name = Path(str(error.filename2 or error.filename)).name
            public = self.output / (name if name in files else main)
            raise StorageError(
                f"{public}: cannot be written ({error.strerror})",
                hint="the stage is kept: make room for the file, and run again",
                file=public,
            ) from error


def _is_same(source: Path, public: Path) -> bool:
    """Whether two names are of one file, or of none."""
    if source.exists() and public.exists():
        return os.path.samefile(source, public)
    return source.exists() == public.exists()


class Record(msgspec.Struct, frozen=True):
    """What a stage's record holds; older ones tell neither time nor memory."""

    key: dict[str, Any]
    files: dict[str, str]
    stats: dict[str, tuple[int, int]]
    seconds: float | None = None
    peak_bytes: int | None = None


def _read_record(path: Path) -> Record:
    record = msgspec.json.decode(path.read_bytes(), type=Record)
    for name in record.files:
        plain = name not in ("", ".", "..") and Path(name).name == name and not set(name) & {"\\", "\0"}
        if not plain or name == _RECORD or name not in record.stats:
            raise ValueError(f"{path}: {name!r} is no file of the stage")
    return record


def _stat(path: Path) -> tuple[int, int]:
    """Size and time of a regular file."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: is no regular file")
    return status.st_size, status.st_mtime_ns
