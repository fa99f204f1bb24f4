"""The Dask plugin that makes a worker carry out stages: of `qcompile worker`, or of any other tool."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from distributed import WorkerPlugin

from .service import ENDING, SERVICES, Service, service_of
from .task import look

NAME = "qcompile"


class StagePlugin(WorkerPlugin):
    """Carries out stages on a worker: `client.register_plugin(StagePlugin())`, or `qcompile.connect`.

    Args:
        store: Folder that keeps files and finished stages. Without one a folder in the worker's own,
            which Dask removes when the worker ends. `{name}` stands for the worker's name.
        slots: Stages at a time. One on workers of other tools, whatever their number of threads.
        cores: That the stages may use; 0 means as many as the worker has threads.
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
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self.store, self.slots, self.cores, self.resources = str(store), slots, cores, dict(resources or {})

    async def setup(self, worker: Any) -> None:
        """Start, unless another plugin has done so before."""
        async with _starting.setdefault(worker, asyncio.Lock()):
            if service_of(worker) is not None:
                return
            plain = re.sub(r"[^\w.-]+", "-", str(worker.name)).strip("-.") or "worker"
            folder = Path(self.store.replace("{name}", plain) or Path(worker.local_directory) / NAME)
            service = await asyncio.to_thread(self._service, worker, folder.absolute())
            if worker.status.name == "init":  # it registers with the scheduler next, and tells it these
                worker.state.total_resources.update(service.facts.resources)
                worker.state.available_resources.update(service.facts.resources)
            else:
                await worker.set_resources(**service.facts.resources)
            SERVICES[worker] = service

    async def teardown(self, worker: Any) -> None:
        """End with the worker; not where the plugin is replaced, or a client unregisters it."""
        if worker.status.name in ENDING and worker in SERVICES:
            SERVICES.pop(worker).close()

    def _service(self, worker: Any, folder: Path) -> Service:
        service = Service(worker, folder, slots=self.slots, cores=self.cores)
        service.announce({**look(service), "slots": float(self.slots), **self.resources})
        return service


_starting: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()
