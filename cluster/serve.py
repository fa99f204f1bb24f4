"""`qcompile worker`: a Dask worker of its own, without a nanny, that carries out stages until it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ClusterError, InvalidOption, QCompileError, first_line
from ..machine_memory import machine_bytes
from ..model.session import usable_cores
from ..spec.cluster import WorkerCommand
from .connection import require_dask
from .security import check_address, is_this_machine, read_scheduler, security, split_address

if TYPE_CHECKING:
    from .resources import Facts

CONNECT_S = 300.0
"""How long a scheduler may be away, at the start and after it was lost."""
_LEAST_BYTES = 2 << 30
_ENDED = ("scheduler-remove-worker", "scheduler-close-worker", "worker-close", "worker-close-gracefully")
"""Reasons of Dask's with which a worker is told to end; with others the scheduler was lost."""
_Announced = Callable[["Facts"], None]
_Told = Callable[[str], None]


def serve(options: WorkerCommand, *, announced: _Announced, told: _Told) -> None:
    """Carry out stages until the process is ended by a signal, or the scheduler says so.

    A scheduler that is away, of which `told` hears, is tried again for five minutes; `announced` hears what
    the worker announces, each time that it has joined. The process's children end with it.
    """
    address = read_scheduler(options.scheduler)
    check_address(address, options.insecure)
    parse_resources(options.resources)
    require_dask()
    logging.getLogger("distributed").setLevel(logging.ERROR)  # the command line tells the rest
    asyncio.run(_serve(options, address, announced, told))


async def _serve(options: WorkerCommand, address: str, announced: _Announced, told: _Told) -> None:
    from .service import service_of

    lost = True
    while lost:
        worker = _worker(options, address)
        told(f"connect to the scheduler {address}")
        try:
            await worker
            service = service_of(worker)
            assert service is not None, "its plugin has started"
            announced(service.facts)
            await worker.finished()
            lost = worker.reason not in ("", *_ENDED)
        except Exception as error:
            raise _problem(error, address, str(worker.name)) from error
        finally:
            with contextlib.suppress(Exception):
                await worker.close(timeout=5, executor_wait=False)


def _problem(error: Exception, address: str, name: str) -> QCompileError:
    """What kept a worker from joining; Dask wraps what its plugins raise."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, QCompileError):
            return cause
        last, cause = cause, cause.__cause__
    if isinstance(error, TimeoutError):
        return ClusterError(
            f"scheduler {address}: has not answered for {CONNECT_S:.0f} s ({first_line(last)})",
            hint="start it with `dask scheduler`, and give its address",
            address=address,
        )
    return ClusterError(
        f"scheduler {address}: worker {name!r} cannot join ({first_line(last)})",
        hint="give it another `name` where that one is taken",
        address=address,
    )


def _worker(options: WorkerCommand, address: str) -> Any:
    from distributed import Security, Worker

    from .plugin import StagePlugin

    class ReasonedWorker(Worker):
        """A worker that remembers why it ended; the first reason counts."""

        reason = ""

        async def close(  # type: ignore[no-untyped-def,override]
            self, timeout=30, executor_wait=True, nanny=True, reason="worker-close"
        ):
            self.reason = self.reason or reason
            return await super().close(timeout, executor_wait, nanny, reason)

    folder = options.store.absolute()
    protocol, host, _ = split_address(address)
    tls = security(options.tls_ca, options.tls_cert, options.tls_key)
    plugin = StagePlugin(
        str(folder),
        slots=options.slots,
        cores=options.cores or usable_cores(),
        resources=parse_resources(options.resources),
    )
    return ReasonedWorker(
        address,
        nthreads=options.slots,
        name=options.name or platform.node() or "worker",
        security=tls or Security(require_encryption=False),  # type: ignore[no-untyped-call]
        plugins=(plugin,),
        memory_limit=max(_LEAST_BYTES, (machine_bytes() or 0) // 4),  # of files: Dask spills what is more
        dashboard=False,
        dashboard_address="127.0.0.1:0",  # HTTP, which others need not see
        death_timeout=CONNECT_S,
        local_directory=str(folder / "dask"),
        # Without TLS it listens where its scheduler is reached: at loopback, no other machine gets in.
        host="127.0.0.1" if protocol == "tcp" and is_this_machine(host) else None,
    )


def parse_resources(texts: tuple[str, ...]) -> dict[str, float]:
    """Return what a user announces: "rack-7=1" as a name and a quantity."""
    resources: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            quantity = float(number)
        except ValueError:
            quantity = -1.0
        if not (name and equals and 0 <= quantity < float("inf")):
            raise InvalidOption(f"`resources` {text!r}: NAME=NUMBER is required", option="resources")
        resources[name] = quantity
    return resources
