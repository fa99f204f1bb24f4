"""What a worker keeps between stages: files that arrived, and what it finished.

STORE/lock                            held while the worker runs: two workers never share a folder
     /bundles/3f9c…/index.json, files files that arrived
     /stages/build-int8-3f9c…         finished stages, of all recipes
     /published/8a1b…                 what the stages of a recipe publish
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as StillRunning
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from distributed import Semaphore

from ..errors import InvalidOption, first_line
from ..files import held_folder, lock, open_lock, remove_stale
from ..model.session import usable_cores
from ..pipeline.store import Store
from .bundle import Bundle, Carrier, index_key, read_index, write_files
from .resources import Facts
from .stage_work import BUNDLES, FILES, INDEX, PUBLISHED, STAGES

_KEPT_DAYS = 14.0
_LOOK_S = 0.1
_WANTED = ("executing", "long-running", "resumed")
"""States of a Dask task whose result somebody waits for."""
ENDING = ("closing", "closed", "failed", "stopping", "stopped")


class Cancelled(Exception):
    """The request is not wanted any more."""


class Service:
    """What a worker keeps between requests, in a folder that no other worker uses."""

    facts: Facts

    def __init__(self, worker: Any, folder: Path, *, slots: int, cores: int) -> None:
        self.worker, self.folder, self.name = worker, folder, str(worker.name)
        try:
            for name in (BUNDLES, STAGES, PUBLISHED):
                (folder / name).mkdir(parents=True, exist_ok=True)
            self._lock = open_lock(folder / "lock")
            lock(self._lock, folder)
        except (OSError, InvalidOption) as error:
            raise InvalidOption(
                f"`store` {folder}: cannot be used, or another worker uses it ({first_line(error)})",
                hint="give each worker a `store` of its own",
                option="store",
            ) from error
        self._tidy()
        self.slots, self.cores = slots, cores or min(worker.state.nthreads, usable_cores())
        self._arriving = threading.Lock()
        self._semaphores: dict[str, Semaphore] = {}

    def announce(self, resources: dict[str, float]) -> None:
        """Note what the worker tells the scheduler that it has."""
        self.facts = Facts(self.name, str(self.worker.contact_address or self.worker.address), resources)

    def check(self, key: str) -> None:
        """Look whether a task is still wanted."""
        task = self.worker.state.tasks.get(key)
        if self.worker.status.name in ENDING or task is None or task.state not in _WANTED:
            raise Cancelled

    def on_loop(self, coroutine: Coroutine[Any, Any, Any], check: Callable[[], None]) -> Any:
        """Carry out a coroutine on the worker's loop, from a thread; what `check` raises ends it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.worker.loop.asyncio_loop)
        try:
            while True:
                with contextlib.suppress(StillRunning):
                    return future.result(_LOOK_S)
                if future.done():  # the coroutine itself ran out of time
                    return future.result()
                check()
        finally:
            future.cancel()

    def semaphore(self, name: str, leases: int) -> Any:
        """Return a Dask semaphore that all workers of this machine share, the same one for each name."""
        with self._arriving:
            if name not in self._semaphores:  # each has a timer of its own, which nothing stops
                host = self.facts.value("host", "=")
                self._semaphores[name] = Semaphore(leases, name=f"qcompile-{host}-{name}")  # type: ignore[no-untyped-call]
            return self._semaphores[name]

    def bring(self, digest: str, carrier: Carrier) -> None:
        """Have the files of a bundle here; those that are here and have their sizes stay."""
        with self._arriving:
            if not self._is_here(digest):
                bundle = read_index(carrier.get(index_key(digest)), digest)
                with held_folder(self.folder / BUNDLES) as folder:
                    chunks = (carrier.get(key) for key in bundle.keys()[1:])
                    write_files(bundle, chunks, folder / FILES, mode=0o444)
                    (folder / INDEX).write_bytes(bundle.index())
                    os.replace(folder, self.folder / BUNDLES / digest)

    def close(self) -> None:
        """Let another worker have the folder."""
        self._lock.close()

    def _is_here(self, digest: str) -> bool:
        """Whether every file of a bundle is here and has its size; what is left of another one goes."""
        final = self.folder / BUNDLES / digest
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            bundle = msgspec.json.decode((final / INDEX).read_bytes(), type=Bundle)
            os.utime(final)
            if all((final / FILES / ref.name).lstat().st_size == ref.size_bytes for ref in bundle.files):
                return True
        shutil.rmtree(final, ignore_errors=True)
        return False

    def _tidy(self) -> None:
        """Remove what nothing has used for two weeks, and what killed processes left."""
        Store(self.folder, folder=self.folder / STAGES).forget_old()
        oldest = time.time() - _KEPT_DAYS * 86400
        for name in (STAGES, PUBLISHED, BUNDLES):
            remove_stale(self.folder / name)
            for folder in (self.folder / name).glob("[0-9a-f]" * 64):
                if folder.stat().st_mtime < oldest:
                    shutil.rmtree(folder, ignore_errors=True)


SERVICES: WeakKeyDictionary[Any, Service] = WeakKeyDictionary()


def service_of(worker: Any) -> Service | None:
    """Return what carries out stages on a worker; None where nothing does."""
    return SERVICES.get(worker)
