"""The worker side of a cluster: a Dask plugin that prepares workers, and the task that a client submits.

A task converts a `Request` to an `Answer`, both JSON, on a thread of the worker. It transfers the files and
runs the stage in a separate process. A measurement first waits until nothing else runs on its machine.

STORE/lock                            locked while the worker runs: two workers never share a folder
     /bundles/3f9c…/index.json, files received files
     /stages/build-int8-3f9c…         finished stages of all recipes
     /published/8a1b…                 the published files of a recipe's stages
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import TimeoutError as StillRunning
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from distributed import Semaphore, WorkerPlugin, get_worker

from ...core.files import lock, locked_folder, open_lock, remove_stale
from ...core.processes.worker import Worker, thread_variables
from ...core.progress import Progress, silent
from ...errors import ClusterError, InvalidOption, QCompileError, StorageError, WorkerError, first_line
from ...model.sessions.session import CORES, usable_cores
from ..stages.store import KEPT_DAYS, Store
from . import bundle
from .resources import WorkerFacts
from .stage_work import BUNDLES, FILES, INDEX, PUBLISHED, STAGES

NAME = "qcompile"
_POLL_S = 0.1
_ACTIVE = ("executing", "long-running", "resumed")
"""States of a Dask task whose result a client needs."""
_ENDING = ("closing", "closed", "failed", "stopping", "stopped")
_LEASES = 16
"""Concurrent stages of all workers of a machine; a measurement takes all of these leases."""
_WAIT_S = 1.0
_REPORT_EVERY_S = 0.5
_Check = Callable[[], None]


class Cancelled(Exception):
    """The client no longer needs the result of a request."""


class Service:
    """State of a worker between requests, in a folder that no other worker uses."""

    facts: WorkerFacts

    def __init__(self, worker: Any, folder: Path, *, slots: int, cores: int) -> None:
        self.worker, self.folder, self.name = worker, folder, str(worker.name)
        try:
            for name in (BUNDLES, STAGES, PUBLISHED):
                (folder / name).mkdir(parents=True, exist_ok=True)
            self.lock = open_lock(folder / "lock")
            lock(self.lock, folder)
        except (OSError, InvalidOption) as error:
            raise InvalidOption(
                f"`store` {folder}: cannot be used, or another worker uses it ({first_line(error)})",
                hint="give each worker a separate `store`",
                option="store",
            ) from error
        Store(folder, folder=folder / STAGES).forget_old()
        oldest = time.time() - KEPT_DAYS * 86400
        for name in (STAGES, PUBLISHED, BUNDLES):
            remove_stale(folder / name)  # of killed processes
            for unused in (folder / name).glob("[0-9a-f]" * 64):
                if unused.stat().st_mtime < oldest:
                    shutil.rmtree(unused, ignore_errors=True)
        self.slots, self.cores = slots, cores or min(worker.state.nthreads, usable_cores())
        self._mutex = threading.Lock()
        self._semaphores: dict[str, Semaphore] = {}

    def check(self, key: str) -> None:
        """Raise `Cancelled` if the task is no longer needed."""
        task = self.worker.state.tasks.get(key)
        if self.worker.status.name in _ENDING or task is None or task.state not in _ACTIVE:
            raise Cancelled

    def on_loop(self, coroutine: Coroutine[Any, Any, Any], check: Callable[[], None]) -> Any:
        """Run a coroutine on the worker's loop, from a thread; an exception of `check` cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.worker.loop.asyncio_loop)
        try:
            while True:
                with contextlib.suppress(StillRunning):
                    return future.result(_POLL_S)
                if future.done():  # the coroutine itself ran out of time
                    return future.result()
                check()
        finally:
            future.cancel()

    def semaphore(self, name: str, leases: int) -> Any:
        """Return the Dask semaphore of this name that all workers of this machine share."""
        with self._mutex:
            if name not in self._semaphores:  # a new object would start another timer, which never stops
                host = self.facts.value("host", "=")
                self._semaphores[name] = Semaphore(leases, name=f"qcompile-{host}-{name}")  # type: ignore[no-untyped-call]
            return self._semaphores[name]

    def fetch_bundle(self, digest: str, carrier: WorkerCarrier | bundle.StoreCarrier) -> None:
        """Write the files of a bundle, unless they already exist with the right sizes."""
        with self._mutex:
            final = self.folder / BUNDLES / digest
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                contents = msgspec.json.decode((final / INDEX).read_bytes(), type=bundle.Bundle)
                os.utime(final)
                if all(
                    (final / FILES / ref.name).lstat().st_size == ref.size_bytes for ref in contents.files
                ):
                    return
            shutil.rmtree(final, ignore_errors=True)  # an incomplete bundle
            contents = bundle.read_index(carrier.get(f"qcompile-{digest}"), digest)
            with locked_folder(self.folder / BUNDLES) as folder:
                chunks = (carrier.get(key) for key in contents.keys()[1:])
                bundle.write_files(contents, chunks, folder / FILES, mode=0o444)
                (folder / INDEX).write_bytes(contents.index())
                os.replace(folder, final)


class WorkerCarrier:
    """Chunks as Dask values, for a worker; Dask stores them on behalf of one client."""

    def __init__(self, service: Service, client: str, check: Callable[[], None]) -> None:
        self._service, self._client, self._check = service, client, check
        self._worker = service.worker

    def get(self, key: str) -> bytes:
        async def get() -> Any:
            if key in self._worker.data:
                return self._worker.data[key]
            return await bundle.from_workers(key, self._worker.scheduler, self._worker.rpc)

        return bytes(self._service.on_loop(get(), self._check))

    def put(self, key: str, chunk: bytes) -> None:
        async def put() -> None:
            # As `Client.scatter` within a task, but on behalf of the client that submitted the stage: the
            # scheduler releases the chunk with that client.
            self._worker.update_data(data={key: chunk})
            await self._worker.scheduler.update_data(
                who_has={key: [self._worker.address]}, nbytes={key: len(chunk)}, client=self._client
            )

        self._service.on_loop(put(), self._check)


SERVICES: WeakKeyDictionary[Any, Service] = WeakKeyDictionary()
"""Dask worker to its service."""


def carry_out_request(text: bytes) -> bytes:
    """Carry out a `Request` on the worker that this thread belongs to, and return its `Answer`."""
    worker = get_worker()
    service = SERVICES.get(worker)
    assert service is not None, "a worker announces its resources after its service has started"
    request, task = msgspec.json.decode(text, type=bundle.Request), str(worker.get_current_task())
    answer = _carry_out(service, request, lambda: service.check(task))
    answer = msgspec.structs.replace(answer, worker=str(worker.name), address=worker.address)
    return msgspec.json.encode(answer)


def _carry_out(service: Service, request: bundle.Request, check: _Check) -> bundle.Answer:
    def progress(text: str, done: int = 0, total: int | None = None, /) -> None:
        event = {"stage": [request.recipe, request.name], "text": text, "done": done, "total": total}
        with contextlib.suppress(Exception):  # the connection is closing
            service.worker.log_event(f"qcompile-{request.client}", {**event, "name": service.name})

    try:
        carrier: WorkerCarrier | bundle.StoreCarrier = WorkerCarrier(service, request.client, check)
        if request.store:
            carrier = bundle.StoreCarrier(request.store)
        missing = []
        for digest in dict.fromkeys([request.recipe, *request.inputs.values()]):
            try:
                service.fetch_bundle(digest, carrier)
            except bundle.MissingChunk:
                missing.append(digest)
        if missing:
            return bundle.Answer("missing", missing=tuple(missing))
        question = {"request": msgspec.to_builtins(request), "folder": str(service.folder)}
        answer = bundle.Answer("none")
        if request.find_only or (request.alone and request.known):  # skips the wait for a measurement's turn
            answer = msgspec.convert(
                _in_process(service, {"do": "find", **question}, check, progress), bundle.Answer
            )
        if answer.outcome == "none" and not request.find_only:
            with _machine_leases(service, request.alone, check, progress):
                cores = service.cores if request.alone else max(1, service.cores // service.slots)
                result = _in_process(service, {"do": "carry_out", **question}, check, progress, cores=cores)
                answer = msgspec.convert(result, bundle.Answer)
        if answer.bundle is not None:
            main, folder = answer.bundle.files[0].name, service.folder / STAGES / answer.name
            digests = {ref.name: ref.digest for ref in answer.bundle.files}
            for key, chunk in bundle.bundle_of_stage(folder, main, digests).items():
                carrier.put(key, chunk)
        return answer
    except Cancelled:
        error: QCompileError = ClusterError(f"worker {service.name}: {request.name} was cancelled")
    except QCompileError as failure:
        error = failure
    except OSError as failure:
        error = StorageError(f"worker {service.name}: {first_line(failure)}")
    return bundle.Answer("failed", error=error.as_json())


@contextlib.contextmanager
def _machine_leases(service: Service, alone: bool, check: _Check, progress: Progress) -> Iterator[None]:
    """Hold one lease of the machine's semaphore, or all leases so that nothing else runs.

    A second semaphore lets only one measurement collect leases; two could block each other with half of the
    leases each. Dask releases the leases of a killed worker after 30 s.
    """
    stages, gate = service.semaphore("stages", _LEASES), service.semaphore("measurement", 1)
    with contextlib.ExitStack() as leases:
        for semaphore in [gate, *[stages] * _LEASES] if alone else [stages]:
            while not semaphore.acquire(timeout=_WAIT_S):
                progress(f"wait until {'nothing else runs' if alone else 'a measurement ends'} here")
                check()
            leases.callback(semaphore.release)
        yield


def _in_process(
    service: Service, question: dict[str, Any], check: _Check, progress: Progress, *, cores: int = 0
) -> Any:
    """Return the answer of `stage_work`, run in a new process, to a question."""
    cores, last_s = cores or service.cores, 0.0
    variables: dict[str, str | None] = {}
    if service.worker.nanny is not None:  # Dask's nanny limits libraries to one thread
        variables = dict.fromkeys(thread_variables(1))
    # Bytecode beside a recipe's code would be an extra file of the bundle.
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", CORES: str(cores)}
    variables |= thread_variables(cores) if cores < usable_cores() else {}

    def on_progress(text: str, done: int = 0, total: int | None = None) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _REPORT_EVERY_S:
            last_s = time.monotonic()
            progress(text, done, total)

    with Worker(
        "a stage",
        threads=0,
        timeout_s=math.inf,
        module="qcompile.pipeline.cluster.stage_work",
        variables=variables,
    ) as worker:
        try:
            return worker.ask(**question, check=check, on_progress=on_progress)["answer"]
        except WorkerError as error:
            ended = f"the process of a stage ended ({worker.cause()}); its output: {worker.last_output()}"
            raise bundle.StageKilled(f"worker {service.name}: {ended}") from error


_starting: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()


class StagePlugin(WorkerPlugin):
    """Carries out stages on a worker: `client.register_plugin(StagePlugin())`, or `qcompile.connect`.

    Args:
        store: Folder for files and finished stages; `{name}` stands for the worker's name. By default in the
            worker's local directory, which Dask removes when the worker ends.
        slots: Concurrent stages; 1 for workers that other tools start, whatever their number of threads.
        cores: Cores for the stages; 0 means the worker's threads, at most the usable cores.
        resources: Additional resources to announce.
    """

    name = NAME
    idempotent = True

    def __init__(
        self,
        store: str | Path = "",
        *,
        slots: int = 1,
        cores: int = 0,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self.store, self.slots, self.cores, self.resources = str(store), slots, cores, dict(resources or {})

    async def setup(self, worker: Any) -> None:
        """Start the service, unless another plugin has started it."""
        async with _starting.setdefault(worker, asyncio.Lock()):
            if worker in SERVICES:
                return
            plain = re.sub(r"[^\w.-]+", "-", str(worker.name)).strip("-.") or "worker"
            folder = Path(self.store.replace("{name}", plain) or Path(worker.local_directory) / NAME)
            service = await asyncio.to_thread(
                Service, worker, folder.absolute(), slots=self.slots, cores=self.cores
            )
            question = {"do": "look"}
            resources = await asyncio.to_thread(_in_process, service, question, lambda: None, silent)
            resources = {**resources, "slots": float(self.slots), **self.resources}
            service.facts = WorkerFacts(str(worker.name), worker.contact_address or worker.address, resources)
            if worker.status.name == "init":  # the registration that follows announces the resources
                worker.state.total_resources.update(resources)
                worker.state.available_resources.update(resources)
            else:
                await worker.set_resources(**resources)
            SERVICES[worker] = service

    async def teardown(self, worker: Any) -> None:
        """Close the service if the worker ends, but not if the plugin is replaced or unregistered."""
        if worker.status.name in _ENDING and worker in SERVICES:
            SERVICES.pop(worker).lock.close()  # releases the folder for another worker
