"""Store of finished stages, found by content key: a stage with a stored key does not run again.

    out/.qcompile/quantize-int8-3f9c…/stage.json     key, files, digests, duration; written before the folder
                                     /int8.graph.onnx  gets its name
    out/int8.graph.onnx                               the same file under its public name

One rename names a folder after all its files are on the disk. A stage is therefore stored whole or not at
all, even after a kill or a power loss. A file that changed later has another digest; its stage runs again.

The folder is trusted like the recipe: anyone who can write to it decides what a run publishes. A record of
another shape, or with a file outside its folder, is ignored.
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

from ...core.files import digest_files, lock, locked_folder, open_lock, remove_stale, write_json
from ...core.files.write import link_or_copy, move_in, sync
from ...errors import InvalidOption, StorageError

FOLDER = ".qcompile"
_RECORD = "stage.json"
KEPT_DAYS = 14.0


@dataclass(frozen=True)
class Stored:
    """A finished stage: its folder, file name to digest, and whether an earlier call finished it."""

    folder: Path
    files: Mapping[str, str]
    was_done: bool


class Store:
    """The finished stages of one output folder.

    `folder` holds the stages: by default inside the output folder, or shared by several output folders. Only
    one process at a time may run stages in it.
    """

    def __init__(self, output: Path, *, folder: Path | None = None) -> None:
        self.output, self.state_folder = output, output / FOLDER
        self.folder = folder or self.state_folder
        self._used: set[Path] = set()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the output folder; raise InvalidOption if another run holds it."""
        try:
            for folder in (self.folder, self.state_folder):
                folder.mkdir(parents=True, exist_ok=True)
                if folder.is_symlink():  # stages would be written and removed elsewhere
                    raise OSError(errno.ELOOP, "is a link; a folder is required", str(folder))
            lock_file = open_lock(self.state_folder / "lock")
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
        is_complete: Callable[[Path], bool] = lambda _: True,
    ) -> Stored:
        """Return the stage of this key; run `work` in a new folder if it is missing, or `again` is true.

        `publish` gives its files public names in the output folder. `took` has the `seconds` and
        `peak_bytes` of a stage that ran elsewhere; `work` then only fetches the files. If `is_complete` of
        the folder is false, the next run does the stage again.
        """
        final = self.folder / self.name(stage, key)
        if not again and (stored := self._read_stage(final)):
            return self._deliver(stored, publish)
        shutil.rmtree(final, ignore_errors=True)
        with locked_folder(self.folder) as temporary:
            start = time.monotonic()
            work(temporary)
            peak_bytes = None
            with contextlib.suppress(ImportError):  # Windows lacks the module
                import resource

                peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            took = took or {"seconds": round(time.monotonic() - start, 3), "peak_bytes": peak_bytes}
            written = sorted(path for path in temporary.iterdir() if path.is_file())
            for path in written:
                sync(path)
            files = {path.name: digest_files([path]) for path in written}
            stats = {path.name: _size_and_time(path) for path in written}
            record = {"key": key, "files": files, "stats": stats, **took}
            write_json(temporary / _RECORD, record | {"is_complete": is_complete(temporary)})
            sync(temporary)
            os.replace(temporary, final)
            sync(self.folder)
        return self._deliver(Stored(final, files, was_done=False), publish)

    def name(self, stage: str, key: Mapping[str, Any]) -> str:
        """Return the folder name for a stage of this key, as listed by `kept`."""
        digest = hashlib.sha256(json.dumps([stage, key], sort_keys=True).encode()).hexdigest()
        return f"{stage}-{digest[:16]}"

    def finished_names(self, stage: str) -> list[str]:
        """Return the folder names of the unchanged finished stages of this name: "build-int8-3f9c…"."""
        return [path.name for path in self._stage_folders(stage) if self._read_stage(path)]

    def take(self, name: str, *, publish: bool = True) -> Stored | None:
        """Return a finished stage by its folder name, and publish it; None if it is gone or changed."""
        stored = self._read_stage(self.folder / name)
        return self._deliver(stored, publish) if stored else None

    def find(self, stage: str, key: Mapping[str, Any]) -> Stored | None:
        """Return the finished stage of this key, or None; nothing is written."""
        return self._read_stage(self.folder / self.name(stage, key))

    def records(self, stage: str) -> list[Record]:
        """Return the stored records of a stage, one per key, the latest first."""
        records = []
        for folder in self._stage_folders(stage):
            path = folder / _RECORD
            with contextlib.suppress(OSError, ValueError, RecursionError):  # removed or truncated meanwhile
                records.append((path.stat().st_mtime, _read_record(path)))
        return [record for _, record in sorted(records, key=lambda dated: -dated[0])]

    def _stage_folders(self, stage: str) -> Iterator[Path]:
        """Yield the folders of a stage, one per key."""
        for path in self.folder.glob(f"{glob.escape(stage)}-*/{_RECORD}"):
            if re.fullmatch(r"[0-9a-f]{16}", path.parent.name.removeprefix(f"{stage}-")):
                yield path.parent

    def _deliver(self, stored: Stored, publish: bool) -> Stored:
        os.utime(stored.folder / _RECORD)
        self._used.add(stored.folder)
        if publish:
            self._publish(stored.folder, stored.files)
        return stored

    def forget_old(self) -> None:
        """Remove stages that no run has used for two weeks, but none of this run: the clock may jump."""
        oldest = time.time() - KEPT_DAYS * 86400
        for record in self.folder.glob(f"*/{_RECORD}"):
            if record.parent not in self._used and record.stat().st_mtime < oldest:
                shutil.rmtree(record.parent, ignore_errors=True)

    def _read_stage(self, final: Path) -> Stored | None:
        """Return the stage in a folder if it is complete and all of its files are unchanged, else None."""
        try:
            record = _read_record(final / _RECORD)
            if not record.is_complete:
                return None
            for name, digest in record.files.items():
                path = final / name
                # Compare size and time first, which avoids reading gigabytes; then the digest.
                if _size_and_time(path) != record.stats[name] and digest_files([path]) != digest:
                    return None
        except (OSError, ValueError, RecursionError):
            return None
        return Stored(final, record.files, was_done=True)

    def _publish(self, final: Path, files: Mapping[str, str]) -> None:
        """Link or copy the files to their public names, unless they are there already."""
        main = next((name for name in files if f"{name}.json" in files), next(iter(files)))
        if all(_is_same_file(final / name, self.output / name) for name in {*files, f"{main}.data"}):
            return
        try:
            with locked_folder(self.output) as temporary:
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


def _is_same_file(source: Path, public: Path) -> bool:
    """Return whether two names are the same file, or both are missing."""
    if source.exists() and public.exists():
        return os.path.samefile(source, public)
    return source.exists() == public.exists()


class Record(msgspec.Struct, frozen=True):
    """Content of a stage's record; old records lack time and memory."""

    key: dict[str, Any]
    files: dict[str, str]
    stats: dict[str, tuple[int, int]]
    seconds: float | None = None
    peak_bytes: int | None = None
    is_complete: bool = True


def _read_record(path: Path) -> Record:
    record = msgspec.json.decode(path.read_bytes(), type=Record)
    for name in record.files:
        plain = name not in ("", ".", "..") and Path(name).name == name and not set(name) & {"\\", "\0"}
        if not plain or name == _RECORD or name not in record.stats:
            raise ValueError(f"{path}: {name!r} is no file of the stage")
    return record


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return the size and time of a regular file."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: is not a regular file")
    return status.st_size, status.st_mtime_ns
