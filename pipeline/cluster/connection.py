"""How this machine joins a Dask scheduler: as a client, or as a worker that carries out stages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.files.temporary import temporary_folder
from ...core.installation import install_hint
from ...core.memory import machine_bytes
from ...errors import EngineUnavailable, InvalidOption, QCompileError, first_line
from ...model.sessions.session import usable_cores
from ...spec.decode import spec_from_call
from ...spec.recipes import LOCAL, ConnectionOptions, WorkerCommand
from . import addresses
from .executor import ClusterExecutor, Fleet
from .resources import Facts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import ConnectKeywords

_CONNECT_S = 5.0
_DEFAULTS = {
    "distributed": {
        "comm": {"timeouts": {"connect": "10s"}},  # so long a worker that died is called
        "worker": {"profile": {"enabled": False}},  # stages run in other processes
    }
}


@contextlib.contextmanager
def connect(
    scheduler: str | Any,
    spec: ConnectionOptions | None = None,
    /,
    *,
    store: str | Path | None = None,
    told: Callable[[str], None] | None = None,
    **options: Unpack[ConnectKeywords],
) -> Iterator[ClusterExecutor]:
    """Connect to a Dask scheduler: `qcompile.run(recipe, executor=...)` then has its workers do the stages.

    Args:
        scheduler: Its address (tls://HOST:PORT), its file, "local" for processes on this machine, or a
            `distributed.Client` or cluster, as dask-cuda, dask-jobqueue and dask-kubernetes make them.
        spec: How it is spoken to.
        store: Folder or URL of fsspec that this machine and all workers reach: it carries the files, in place
            of Dask. Of "local", the folder of its worker; by default one that is removed at the end.
        told: Of workers that are refused; by default a Python warning.
        options: Fields of `ConnectionOptions` by name, in place of those of `spec`.

    Yields:
        The executor. When the block ends, what workers do for it is ended.

    Raises:
        EngineUnavailable: If Dask is not installed.
        InvalidOption, MissingFile: If an option cannot be used.
        ClusterError: If the scheduler cannot be reached or is refused, or no worker can be used.
    """
    require_dask()
    spec = spec_from_call(ConnectionOptions, spec, options)
    url = str(store) if store else ""
    with contextlib.ExitStack() as stack:
        if not isinstance(scheduler, str):
            client = stack.enter_context(_client_of(scheduler))
        elif scheduler == LOCAL:
            folder = Path(store) if store else Path(stack.enter_context(temporary_folder("worker")))
            stack.enter_context(quiet_dask())
            client = stack.enter_context(_local(folder.absolute()))
            url = str(folder.absolute() / "chunks")
        else:
            address = addresses.read_scheduler(scheduler)
            addresses.check_address(address, spec.insecure)
            stack.enter_context(quiet_dask())
            client = stack.enter_context(
                _opened(address, addresses.security(spec.tls_ca, spec.tls_cert, spec.tls_key))
            )
        executor = ClusterExecutor(client, Fleet(client, spec.insecure, told or warnings.warn), url)
        stack.callback(executor.close)
        executor.await_workers(_CONNECT_S)
        yield executor


@contextlib.contextmanager
def _opened(address: str, secured: Any) -> Iterator[Any]:
    """A client of our own."""
    from distributed import Client, Security

    ours: Any = secured or Security()  # type: ignore[no-untyped-call]
    if address.startswith(("tls:", "wss:")) and not (ours.tls_ca_file and ours.tls_client_cert):
        hint = "give `tls_ca`, `tls_cert` and `tls_key`"
        raise addresses.scheduler_error(address, "speaks TLS; certificates are required", hint)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\s*(Mismatched versions|$)")  # we compare ours
            client = Client(  # type: ignore[no-untyped-call]
                address, security=ours, timeout=_CONNECT_S, set_as_default=False, name="qcompile"
            )
    except (OSError, TimeoutError, ImportError, RuntimeError, ValueError) as error:
        reason = first_line(error)
        words = f"{reason} {first_line(error.__cause__) if error.__cause__ else ''}".lower()
        hint = "start it with `dask scheduler`, or look at its address and at firewalls"
        if any(word in words for word in ("certificate", "ssl", "tls")):
            hint = "give the certificates of this cluster: `tls_ca`, `tls_cert` and `tls_key`"
        raise addresses.scheduler_error(address, f"cannot be reached ({reason})", hint) from error
    try:
        yield client
    finally:
        with contextlib.suppress(OSError, TimeoutError):  # the scheduler is gone
            client.close(timeout=_CONNECT_S)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _local(folder: Path) -> Iterator[Any]:
    """A client of a scheduler and one worker in this process, which open no port; stages have processes.

    The worker has half as many slots as there are cores.
    """
    from distributed import Client, Scheduler, Security, SpecCluster, Worker

    from .plugin import StagePlugin

    def open_nothing(*_: Any, **__: Any) -> None:
        """In place of the web server that Dask opens, dashboard or not."""

    scheduler_class = type("PortlessScheduler", (Scheduler,), {"start_http_server": open_nothing})
    worker_class = type("PortlessWorker", (Worker,), {"start_http_server": open_nothing})
    cores = usable_cores()
    slots = max(1, cores // 2)
    plugins = (StagePlugin(folder, slots=slots, cores=cores),)
    # It holds no files, so it needs no memory.
    worker = {"memory_limit": 0, "local_directory": str(folder / "dask"), "plugins": plugins}
    folder.mkdir(parents=True, exist_ok=True)
    with (
        SpecCluster(  # type: ignore[no-untyped-call]
            scheduler={"cls": scheduler_class, "options": {"protocol": "inproc://", "dashboard": False}},
            workers={LOCAL: {"cls": worker_class, "options": {**worker, "nthreads": slots}}},
            security=Security(require_encryption=False),  # type: ignore[no-untyped-call]
            name=LOCAL,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,  # type: ignore[no-untyped-call]
    ):
        yield client


@contextlib.contextmanager
def quiet_dask() -> Iterator[None]:
    """Keep what Dask logs off the terminal: what matters is told in our own words."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio", "bokeh")]
    with contextlib.ExitStack() as levels:
        for logger in loggers:
            levels.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL + 1)
        yield


@contextlib.contextmanager
def _client_of(scheduler: Any) -> Iterator[Any]:
    """The client that a user gives, which stays open; or one of the cluster that he gives."""
    from distributed import Client
    from distributed.deploy.cluster import Cluster

    if isinstance(scheduler, Client) and not scheduler.asynchronous:
        yield scheduler
    elif isinstance(scheduler, Cluster):
        with Client(scheduler, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            yield client
    else:
        what = "asynchronous client" if isinstance(scheduler, Client) else type(scheduler).__name__
        raise InvalidOption(
            f"`scheduler`: is a {what}; an address or a synchronous distributed.Client is required",
            option="scheduler",
        )


def require_dask() -> None:
    """Import Dask, with defaults of our own."""
    try:
        import dask
        import distributed  # noqa: F401  # which declares its defaults
    except ImportError as error:
        raise EngineUnavailable(
            f"a cluster needs Dask's distributed, which cannot be imported ({first_line(error)})",
            hint=install_hint("cluster"),
            engine="cluster",
            reason="distributed is not installed",
        ) from error
    dask.config.update_defaults(_DEFAULTS)


JOIN_S = 300.0
"""How long a scheduler may be away, at the start and after it was lost."""
_LEAST_BYTES = 2 << 30
_ENDED = ("scheduler-remove-worker", "scheduler-close-worker", "worker-close", "worker-close-gracefully")
"""Reasons of Dask's with which a worker is told to end; with others the scheduler was lost."""
_Announced = Callable[[Facts], None]
_Told = Callable[[str], None]


def serve(options: WorkerCommand, *, announced: _Announced, told: _Told) -> None:
    """Carry out stages until the process is ended by a signal, or the scheduler says so.

    A scheduler that is away, of which `told` hears, is tried again for five minutes; `announced` hears what
    the worker announces, each time that it has joined. The process's children end with it.
    """
    address = addresses.read_scheduler(options.scheduler)
    addresses.check_address(address, options.insecure)
    parse_resources(options.resources)
    require_dask()
    logging.getLogger("distributed").setLevel(logging.ERROR)  # the command line tells the rest
    asyncio.run(_serve(options, address, announced, told))


async def _serve(options: WorkerCommand, address: str, announced: _Announced, told: _Told) -> None:
    from .plugin import SERVICES

    lost = True
    while lost:
        worker = _worker(options, address)
        told(f"connect to the scheduler {address}")
        try:
            await worker
            announced(SERVICES[worker].facts)  # its plugin has started
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
    problem = f"worker {name!r} cannot join ({first_line(last)})"
    hint = "give it another `name` where that one is taken"
    if isinstance(error, TimeoutError):
        problem = f"has not answered for {JOIN_S:.0f} s ({first_line(last)})"
        hint = "start it with `dask scheduler`, and give its address"
    return addresses.scheduler_error(address, problem, hint)


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
    protocol, host, _ = addresses.split_address(address)
    tls = addresses.security(options.tls_ca, options.tls_cert, options.tls_key)
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
        death_timeout=JOIN_S,
        local_directory=str(folder / "dask"),
        # Without TLS it listens where its scheduler is reached: at loopback, no other machine gets in.
        host="127.0.0.1" if protocol == "tcp" and addresses.is_this_machine(host) else None,
    )


def parse_resources(texts: tuple[str, ...]) -> dict[str, float]:
    """Return what a user announces: "rack-7=1" as a name and a quantity."""
    quantities: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            quantity = float(number)
        except ValueError:
            quantity = -1.0
        if not (name and equals and 0 <= quantity < float("inf")):
            raise InvalidOption(f"`resources` {text!r}: NAME=NUMBER is required", option="resources")
        quantities[name] = quantity
    return quantities
