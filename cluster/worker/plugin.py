"""The Dask plugin that makes a worker carry out stages: of `qcompile worker`, or of any other tool.

`client.register_plugin(StagePlugin())` makes workers of dask-cuda, dask-jobqueue and dask-kubernetes take
stages. It may be registered twice, and by several clients: the first one counts, and it stays until the
worker ends, since the others may be using it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from distributed import WorkerPlugin

from ...model.session import usable_cores
from ..messages import Facts
from .service import StageService

NAME = "qcompile"
_services: WeakKeyDictionary[Any, StageService] = WeakKeyDictionary()
_starting: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()


class StagePlugin(WorkerPlugin):
    """Carries out stages on a worker.

    Args:
        store: Folder that keeps files and finished stages. Without one a folder in the worker's own,
            which Dask removes when the worker ends. Each worker needs another one: `{name}` stands for its
            name.
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
            if worker not in _services:
                await self._start(worker)

    async def teardown(self, worker: Any) -> None:
        """End with the worker."""
        if worker.status.name in ("running", "paused", "init", "closing_gracefully"):
            return  # it is replaced, or one client unregisters it
        service = _services.pop(worker, None)
        if service is not None:
            await asyncio.to_thread(service.close)

    async def _start(self, worker: Any) -> None:
        name = str(worker.name)
        store = own_folder(self.store, name) if self.store else Path(worker.local_directory) / NAME
        service = StageService(
            worker,
            store.absolute(),
            slots=self.slots,
            cores=self.cores or min(worker.state.nthreads, usable_cores()),
            memory_bytes=self.memory_bytes or worker.memory_manager.memory_limit or 0,
            resources=self.resources,
        )
        try:
            await asyncio.to_thread(service.tidy)
            facts = await asyncio.to_thread(service.look)
        except BaseException:
            service.close()
            raise
        worker.handlers.update(service.handlers())
        await announce(worker, facts)
        _services[worker] = service


async def announce(worker: Any, facts: Facts) -> None:
    """Tell Dask what a worker has."""
    if worker.status.name != "init":
        await worker.set_resources(**facts.resources)
        return
    state = worker.state  # it registers with the scheduler next, and tells it these
    state.total_resources.update(facts.resources)
    state.available_resources.update(facts.resources)


def service_of(worker: Any) -> StageService | None:
    """Return what carries out stages on a worker; None where nothing does."""
    return _services.get(worker)


def own_folder(store: str, name: str) -> Path:
    """Return the folder of a worker, whose name stands for `{name}`."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "worker"
    return Path(store.replace("{name}", plain))
