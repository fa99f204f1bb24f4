"""`--scheduler local`: a scheduler and one worker in this process, stages in processes of their own.

It is the code path of a cluster, without a port that anybody else could reach. The worker has half as many
slots as there are cores, and the machine's memory: steps that need more together do not start together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...files.temporary import temporary_folder
from ...machine_memory import machine_bytes
from ...model.session import usable_cores

if TYPE_CHECKING:
    from .executor import ClusterExecutor

NAME = "local"


@contextlib.contextmanager
def local(
    *,
    store: Path | None = None,
    slots: int = 0,
    memory_bytes: int = 0,
    told: Callable[[str], None] | None = None,
) -> Iterator[ClusterExecutor]:
    """Start a scheduler and a worker in this process.

    Args:
        store: Folder of the worker; one that is removed at the end by default.
        slots: Stages at a time; 0 means half as many as there are cores.
        memory_bytes: That they may use together; 0 means the machine's.
        told: As `connection.connect`.

    Yields:
        The executor.

    Raises:
        InvalidOption: If another worker uses the folder.
    """
    from distributed import Client, Security, SpecCluster

    from ..dask_settings import own_settings
    from ..portless import PortlessScheduler, PortlessWorker
    from ..worker.plugin import StagePlugin
    from .connection import executing, mute, quiet_dask, warn

    cores = usable_cores()
    slots = slots or max(1, cores // 2)
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet_dask())
        stack.enter_context(own_settings())
        folder = store or Path(stack.enter_context(temporary_folder("worker")))
        folder.mkdir(parents=True, exist_ok=True)
        plugin = StagePlugin(
            folder, slots=slots, cores=cores, memory_bytes=memory_bytes or machine_bytes() or 0
        )
        scheduler = {"protocol": "inproc://", "dashboard": False}
        worker = {
            "nthreads": slots,
            "memory_limit": 0,  # the stages' memory is their children's, which are watched
            "local_directory": str(folder / "dask"),
            "plugins": (plugin,),
        }
        cluster = stack.enter_context(
            SpecCluster(  # type: ignore[no-untyped-call]
                scheduler={"cls": PortlessScheduler, "options": scheduler},
                workers={NAME: {"cls": PortlessWorker, "options": worker}},
                security=Security(require_encryption=False),  # type: ignore[no-untyped-call]
                name=NAME,
            )
        )
        client = stack.enter_context(Client(cluster, set_as_default=False))  # type: ignore[no-untyped-call]
        mute(client)
        yield stack.enter_context(executing(client, (), told or warn))
