"""Turns of the stages on one machine: a measurement waits for the others, and nothing runs beside it.

All workers of a host and of one user meet at two files in the temporary folder:

    qcompile-turns-1000/3f9c…-host.gate   held for a moment by who comes, and by a measurement while it waits
                       /3f9c…-host.turn   held shared by stages, exclusively by a measurement

A stage passes the gate to take its shared turn. A measurement holds the gate until it has the turn, so no
new stage comes in front of it: those that run end, then it is its turn. The locks are flock(2)'s: the system
frees them when their process ends, however it ends. Dask's `Lock` is no match, since its leases run out and
may be given twice, as its own documentation says.

Workers of other users, or with another temporary folder (TMPDIR), do not see these turns. On a system
without flock(2) (Windows) only the slots of each worker keep a measurement apart.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ...errors import StorageError
from ...files import open_lock
from ...files.storage import storage_error
from ...progress import Progress, silent
from ..facts import host_id

HOST = "host"
"""The turn of the whole machine: its cores and its memory's bandwidth are shared by all stages."""
_FIRST_S, _MOST_S = 0.01, 0.2


class GivenUp(Exception):
    """Who waited for a turn no longer wants it."""


def _goes_on() -> None:
    """Nothing ends the wait."""


@contextmanager
def turn(
    devices: Sequence[str] = (HOST,),
    alone: bool = False,
    *,
    progress: Progress = silent,
    check: Callable[[], None] = _goes_on,
    folder: Path | None = None,
) -> Iterator[float]:
    """Hold the turns of devices; yields the seconds that were waited for them.

    Args:
        devices: Names, such as "host" or "gpu-0000:3b:00.0".
        alone: Whether nothing else may have a turn of them meanwhile, as for a measurement.
        progress: Told when it has to wait.
        check: Called while it waits; what it raises ends the wait.
        folder: Of the files; `turns_folder()` by default.

    Raises:
        StorageError: If the files cannot be made, or are not this user's own.
    """
    place = folder or turns_folder()
    began = time.monotonic()
    with contextlib.ExitStack() as held:
        for device in sorted(set(devices)):  # in one order, so that two never wait for each other
            name = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in device)
            files = [place / f"{host_id()}-{name}.{kind}" for kind in ("gate", "turn")]
            gate, own = (held.enter_context(_opened(path)) for path in files)
            _take(gate, own, alone, device, progress, check)
        yield time.monotonic() - began


def turns_folder() -> Path:
    """Return the folder of the files, made if it is not there.

    The temporary folder is everybody's: what another user has planted under the name is refused.

    Raises:
        StorageError: If it is not a folder of this user's own.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"qcompile-turns-{user}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        raise storage_error(error, folder) or _refused(folder, error.strerror or "cannot be made") from error
    if not stat.S_ISDIR(status.st_mode):
        raise _refused(folder, "is no folder")
    if hasattr(os, "getuid") and (status.st_uid != user or status.st_mode & 0o022):
        raise _refused(folder, "others may write to it")
    return folder


def _take(
    gate: IO[str], own: IO[str], alone: bool, device: str, progress: Progress, check: Callable[[], None]
) -> None:
    """Wait until a turn is held."""
    pause_s, at_the_gate = _FIRST_S, False
    while True:
        if at_the_gate or _locked(gate, shared=not alone):
            at_the_gate = alone  # it stays there: nobody comes in front of a measurement
            got = _locked(own, shared=not alone)
            if got or not alone:
                _unlock(gate)
            if got:
                return
        if pause_s == _FIRST_S:
            progress(f"wait until {'nothing else runs' if alone else 'a measurement ends'} on this {device}")
        check()
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _MOST_S)


def _locked(file: IO[str], *, shared: bool) -> bool:
    """Lock a file if that is possible at once; always true where there are no such locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(file: IO[str]) -> None:
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


def _opened(path: Path) -> IO[str]:
    try:
        return open_lock(path)
    except OSError as error:
        raise storage_error(error, path) or _refused(path, error.strerror or "cannot be opened") from error


def _refused(path: Path, problem: str) -> StorageError:
    return StorageError(
        f"{path}: {problem}; a place of this user alone is required",
        hint="remove it, or set TMPDIR to a folder of your own",
        file=path,
    )
