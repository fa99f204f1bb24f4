"""The Dask plugin that makes a worker carry out stages: of `qcompile worker`, or of any other tool.

`client.register_plugin(StagePlugin())` makes workers of dask-cuda, dask-jobqueue and dask-kubernetes take
stages; `qcompile.connect` does so by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import TimeoutError as StillRunning
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from distributed import WorkerPlugin

from ..errors import InvalidOption, QCompileError, first_line
from ..files import held_folder, lock, open_lock, remove_stale
from ..model.session import usable_cores
from ..pipeline.store import Store
from ..progress import Progress
from .bundle import Bundle, FileRef, index_key, read_index, write_files
from .carriers import Carrier
from .children import Children
from .facts import Facts, Found, facts_here
from .folders import BUNDLES, FILES, INDEX, PUBLISHED, STAGES
from .messages import Request

NAME = "qcompile"
_KEPT_DAYS = 14.0
_LOOK_S = 0.1
_TELL_EVERY_S = 0.5
_WANTED = ("executing", "long-running", "resumed")
"""States of a Dask task whose result somebody waits for."""
_ENDING = ("closing", "closed", "failed", "stopping", "stopped")


class Cancelled(Exception):
    """The request is not wanted any more."""


class Service:
    """What a worker keeps between requests: its folder, its facts, its processes.

    Args:
        worker: The Dask worker.
        folder: Of its own.
        plugin: How it was asked for.

    Raises:
        InvalidOption: If another worker uses the folder.
    """

    def __init__(self, worker: Any, folder: Path, plugin: StagePlugin) -> None:
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
        self._arriving = threading.Lock()
        self._semaphores: dict[str, Any] = {}
        self._tidy()
        cores = plugin.cores or min(worker.state.nthreads, usable_cores())
        self.children = Children(
            self.name, slots=plugin.slots, cores=cores, below_nanny=worker.nanny is not None
        )
        with self.children.taken() as child:
            found = child.ask("look")["found"]
        self.facts = facts_here(
            msgspec.convert(found, Found),
            name=self.name,
            address=str(worker.contact_address or worker.address),
            slots=plugin.slots,
            cores=cores,
            memory_bytes=plugin.memory_bytes or worker.memory_manager.memory_limit or 0,
            extra=plugin.resources,
        )

    def check(self, key: str) -> None:
        """Look whether a task is still wanted.

        Raises:
            Cancelled: If it was cancelled, or the worker is ending.
        """
        task = self.worker.state.tasks.get(key)
        if self.worker.status.name in _ENDING or task is None or task.state not in _WANTED:
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
        from distributed import Semaphore

        with self._arriving:
            if name not in self._semaphores:  # each has a timer of its own, which nothing stops
                self._semaphores[name] = Semaphore(leases, name=f"qcompile-{self.facts.host}-{name}")
            return self._semaphores[name]

    def teller(self, request: Request) -> Progress:
        """Return a `Progress` that tells the client, twice a second at most."""
        last_text, last_s = "", 0.0

        def tell(text: str, done: int = 0, total: int | None = None, /) -> None:
            nonlocal last_text, last_s
            now_s = time.monotonic()
            if text == last_text and now_s - last_s < _TELL_EVERY_S:
                return
            last_text, last_s = text, now_s
            event = {"step": request.name, "text": text, "done": done, "total": total, "name": self.name}
            with contextlib.suppress(Exception):  # the connection is closing: nobody listens
                self.worker.log_event(f"qcompile-{request.client}", event)

        return tell

    def folder_of(self, digest: str) -> Path:
        """Return the folder of the files of a bundle that is here."""
        return self.folder / BUNDLES / digest / FILES

    def bring(self, digest: str, carrier: Carrier) -> None:
        """Have the files of a bundle here; those that are here and have their sizes stay.

        Raises:
            MissingChunk: If nobody has a chunk of it.
            ArtifactError: If it arrives damaged.
        """
        final = self.folder / BUNDLES / digest
        with self._arriving:
            if _is_whole(final):
                os.utime(final)
                return
            shutil.rmtree(final, ignore_errors=True)
            bundle = read_index(carrier.get(index_key(digest)), digest)
            with held_folder(final.parent) as folder:
                write_files(bundle, (carrier.get(key) for key in bundle.chunk_keys()), folder / FILES)
                for ref in bundle.files:
                    (folder / FILES / ref.name).chmod(0o444)
                (folder / INDEX).write_bytes(bundle.index())
                os.replace(folder, final)

    def adopt(self, bundle: Bundle, folder: Path) -> None:
        """Have what a stage wrote here as a bundle, for the stages that come next."""
        final = self.folder / BUNDLES / bundle.digest()
        with self._arriving:
            if _is_whole(final):
                return
            shutil.rmtree(final, ignore_errors=True)
            with held_folder(final.parent) as beside:
                (beside / FILES).mkdir()
                for ref in bundle.files:
                    shutil.copyfile(folder / ref.name, beside / FILES / ref.name)
                (beside / INDEX).write_bytes(bundle.index())
                os.replace(beside, final)

    def close(self) -> None:
        """End the processes, and let another worker have the folder."""
        self.children.close()
        self._lock.close()

    def _tidy(self) -> None:
        """Remove what nothing has used for two weeks, and what killed processes left."""
        Store(self.folder, folder=self.folder / STAGES).forget_old()
        for name in (STAGES, PUBLISHED, BUNDLES):
            remove_stale(self.folder / name)
        oldest = time.time() - _KEPT_DAYS * 86400
        for name in (PUBLISHED, BUNDLES):
            for folder in (self.folder / name).glob("[0-9a-f]*"):
                if folder.stat().st_mtime < oldest:
                    shutil.rmtree(folder, ignore_errors=True)


class StagePlugin(WorkerPlugin):
    """Carries out stages on a worker.

    Args:
        store: Folder that keeps files and finished stages. Without one a folder in the worker's own,
            which Dask removes when the worker ends. `{name}` stands for the worker's name.
        slots: Stages at a time. One on workers of other tools, whatever their number of threads.
        cores: That the stages may use; 0 means as many as the worker has threads.
        memory_bytes: That they may use; 0 means the worker's limit, or the machine's memory.
        resources: Announced besides what is found.
    """

    name = NAME
    idempotent = True

    def __init__(
        self,
        store: str | Path = "",
        *,
        slots: int = 1,
        cores: int = 0,
        memory_bytes: int = 0,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self.store, self.slots, self.cores, self.memory_bytes = str(store), slots, cores, memory_bytes
        self.resources = dict(resources or {})

    async def setup(self, worker: Any) -> None:
        """Start, unless another plugin has done so before."""
        async with _starting.setdefault(worker, asyncio.Lock()):
            if worker in _services:
                return
            plain = re.sub(r"[^\w.-]+", "-", str(worker.name)).strip("-.") or "worker"
            folder = Path(self.store.replace("{name}", plain)) if self.store else None
            folder = folder or Path(worker.local_directory) / NAME
            service = await asyncio.to_thread(Service, worker, folder.absolute(), self)
            if worker.status.name == "init":  # it registers with the scheduler next, and tells it these
                worker.state.total_resources.update(service.facts.resources)
                worker.state.available_resources.update(service.facts.resources)
            else:
                await worker.set_resources(**service.facts.resources)
            _services[worker] = service

    async def teardown(self, worker: Any) -> None:
        """End with the worker."""
        if worker.status.name in ("running", "paused", "init", "closing_gracefully"):
            return  # the plugin is replaced, or a client unregisters it
        service = _services.pop(worker, None)
        if service is not None:
            await asyncio.to_thread(service.close)


_services: WeakKeyDictionary[Any, Service] = WeakKeyDictionary()
_starting: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()


def service_of(worker: Any) -> Service | None:
    """Return what carries out stages on a worker; None where nothing does."""
    return _services.get(worker)


class Introduction(msgspec.Struct, frozen=True):
    """What a worker says of itself: what it has, or why it cannot take stages."""

    facts: Facts | None = None
    problem: str = ""


async def introduce(worker: Any) -> bytes:
    """Return an `Introduction` as JSON; a worker that another tool started is made to take stages."""
    if service_of(worker) is None:
        try:
            await worker.plugin_add(StagePlugin(), name=NAME, catch_errors=False)
        except (QCompileError, OSError) as error:
            return msgspec.json.encode(Introduction(problem=f"cannot take stages ({first_line(error)})"))
    service = service_of(worker)
    facts = service.facts if service else None
    return msgspec.json.encode(Introduction(facts, "" if facts else "is ending"))


def _is_whole(final: Path) -> bool:
    """Whether every file of a bundle is there and has its size."""
    try:
        bundle = msgspec.json.decode((final / INDEX).read_bytes(), type=Bundle)
        return all(_has_size(final / FILES, ref) for ref in bundle.files)
    except (OSError, msgspec.MsgspecError):
        return False


def _has_size(folder: Path, ref: FileRef) -> bool:
    return (folder / ref.name).lstat().st_size == ref.size_bytes
