"""Join a Dask scheduler, as a client or as a worker that carries out stages."""

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
from ...core.installation import import_package
from ...core.memory import machine_bytes
from ...errors import InvalidOption, QCompileError, first_line
from ...model.sessions.session import usable_cores
from ...spec.decode import spec_from_call
from ...spec.recipes import LOCAL, ConnectionOptions, WorkerCommand
from . import addresses
from .executor import ClusterExecutor, Fleet
from .resources import WorkerFacts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import ConnectKeywords

_CONNECT_S = 5.0
_DEFAULTS = {
    "distributed": {
        "comm": {"timeouts": {"connect": "10s"}},  # limit of the attempts to reach a dead worker
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
    """Connect to a Dask scheduler: `qcompile.run(recipe, executor=...)` then runs the stages on its workers.

    Args:
        scheduler: An address (tls://HOST:PORT), a scheduler file, "local" for processes on this machine, or a
            `distributed.Client` or cluster, e.g. of dask-cuda, dask-jobqueue or dask-kubernetes.
        spec: TLS files and hosts without TLS.
        store: Folder or URL of fsspec that this machine and all workers reach; it carries the files in place
            of Dask. For "local", the folder of the worker, by default temporary.
        told: Called with a message for each refused worker; by default a Python warning.
        options: Fields of `ConnectionOptions` by name; they override those of `spec`.

    Yields:
        The executor. When the block ends, the workers stop their tasks for this client.

    Raises:
        EngineUnavailable: If Dask is not installed.
        InvalidOption, MissingFile: If an option is invalid.
        ClusterError: If the scheduler is unreachable or refused, or if no worker is usable.
    """
    require_dask()
    spec = spec_from_call(ConnectionOptions, spec, options)
    url = str(store) if store else ""
    with contextlib.ExitStack() as stack:
        if not isinstance(scheduler, str):
            client = stack.enter_context(_user_client(scheduler))
        elif scheduler == LOCAL:
            folder = Path(store) if store else Path(stack.enter_context(temporary_folder("worker")))
            stack.enter_context(quiet_dask())
            client = stack.enter_context(_local_client(folder.absolute()))
            url = str(folder.absolute() / "chunks")
        else:
            address = addresses.read_scheduler(scheduler)
            addresses.check_address(address, spec.insecure)
            stack.enter_context(quiet_dask())
            client = stack.enter_context(
                _remote_client(address, addresses.security(spec.tls_ca, spec.tls_cert, spec.tls_key))
            )
        executor = ClusterExecutor(client, Fleet(client, spec.insecure, told or warnings.warn), url)
        stack.callback(executor.close)
        executor.await_workers(_CONNECT_S)
        yield executor


@contextlib.contextmanager
def _remote_client(address: str, tls_options: Any) -> Iterator[Any]:
    """Yield a client that this module opens and closes."""
    from distributed import Client, Security

    tls: Any = tls_options or Security()  # type: ignore[no-untyped-call]
    if address.startswith(("tls:", "wss:")) and not (tls.tls_ca_file and tls.tls_client_cert):
        hint = "give `tls_ca`, `tls_cert` and `tls_key`"
        raise addresses.scheduler_error(address, "speaks TLS; certificates are required", hint)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\s*(Mismatched versions|$)")  # we check versions
            client = Client(  # type: ignore[no-untyped-call]
                address, security=tls, timeout=_CONNECT_S, set_as_default=False, name="qcompile"
            )
    except (OSError, TimeoutError, ImportError, RuntimeError, ValueError) as error:
        reason = first_line(error)
        words = f"{reason} {first_line(error.__cause__) if error.__cause__ else ''}".lower()
        hint = "start it with `dask scheduler`, or check its address and firewalls"
        if any(word in words for word in ("certificate", "ssl", "tls")):
            hint = "give the certificates of this cluster: `tls_ca`, `tls_cert` and `tls_key`"
        raise addresses.scheduler_error(address, f"cannot be reached ({reason})", hint) from error
    try:
        yield client
    finally:
        with contextlib.suppress(OSError, TimeoutError):  # the scheduler ended
            client.close(timeout=_CONNECT_S)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _local_client(folder: Path) -> Iterator[Any]:
    """Yield a client of a scheduler and one worker in this process, without open ports.

    Stages run in other processes. The worker has half as many slots as this machine has usable cores.
    """
    from distributed import Client, Scheduler, Security, SpecCluster, Worker

    from .plugin import StagePlugin

    def open_nothing(*_: Any, **__: Any) -> None:
        """Replace the web server that Dask opens even without a dashboard."""

    scheduler_class = type("PortlessScheduler", (Scheduler,), {"start_http_server": open_nothing})
    worker_class = type("PortlessWorker", (Worker,), {"start_http_server": open_nothing})
    cores = usable_cores()
    slots = max(1, cores // 2)
    plugins = (StagePlugin(folder, slots=slots, cores=cores),)
    # Files are on disk, so Dask needs no memory limit.
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
    """Silence the logs of Dask; our messages report the relevant events."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio", "bokeh")]
    with contextlib.ExitStack() as levels:
        for logger in loggers:
            levels.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL + 1)
        yield


@contextlib.contextmanager
def _user_client(scheduler: Any) -> Iterator[Any]:
    """Yield the user's client, which stays open, or a temporary client of the user's cluster."""
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
    """Import Dask and set our defaults."""
    problem = "a cluster needs Dask's distributed, which cannot be imported"
    import_package("distributed", problem, extra="cluster", engine="cluster")  # registers Dask's defaults
    import dask

    dask.config.update_defaults(_DEFAULTS)


JOIN_S = 300.0
"""Time to wait for an unreachable scheduler, at the start and after a lost connection."""
_MIN_BYTES = 2 << 30
_ENDINGS = ("scheduler-remove-worker", "scheduler-close-worker", "worker-close", "worker-close-gracefully")
"""Dask's reasons that end a worker; any other reason means that the scheduler was lost."""
_OnFacts = Callable[[WorkerFacts], None]
_OnMessage = Callable[[str], None]


def serve(options: WorkerCommand, *, announced: _OnFacts, told: _OnMessage) -> None:
    """Carry out stages until a signal or the scheduler ends the process.

    An unreachable scheduler is retried for `JOIN_S`, five minutes; `told` receives a message per connection
    attempt, and `announced` the worker's resources after each join. Child processes end with this process.
    """
    address = addresses.read_scheduler(options.scheduler)
    addresses.check_address(address, options.insecure)
    parse_resources(options.resources)
    require_dask()
    logging.getLogger("distributed").setLevel(logging.ERROR)  # the command line reports the other events
    asyncio.run(_serve(options, address, announced, told))


async def _serve(options: WorkerCommand, address: str, announced: _OnFacts, told: _OnMessage) -> None:
    from .plugin import SERVICES

    lost = True
    while lost:
        worker = _worker(options, address)
        told(f"connect to the scheduler {address}")
        try:
            await worker
            announced(SERVICES[worker].facts)  # its plugin has started
            await worker.finished()
            lost = worker.reason not in ("", *_ENDINGS)
        except Exception as error:
            raise _join_error(error, address, str(worker.name)) from error
        finally:
            with contextlib.suppress(Exception):
                await worker.close(timeout=5, executor_wait=False)


def _join_error(error: Exception, address: str, name: str) -> QCompileError:
    """Return the reason why a worker cannot join, from the chain of errors: Dask wraps errors of plugins."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, QCompileError):
            return cause
        last, cause = cause, cause.__cause__
    problem = f"worker {name!r} cannot join ({first_line(last)})"
    hint = "give it another `name` if that name is taken"
    if isinstance(error, TimeoutError):
        problem = f"has not answered for {JOIN_S:.0f} s ({first_line(last)})"
        hint = "start it with `dask scheduler`, and give its address"
    return addresses.scheduler_error(address, problem, hint)


def _worker(options: WorkerCommand, address: str) -> Any:
    from distributed import Security, Worker

    from .plugin import StagePlugin

    class ReasonedWorker(Worker):
        """A worker that records the first reason of its end."""

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
        memory_limit=max(_MIN_BYTES, (machine_bytes() or 0) // 4),  # Dask spills more chunks to disk
        dashboard=False,
        dashboard_address="127.0.0.1:0",  # unencrypted HTTP, hidden from other hosts
        death_timeout=JOIN_S,
        local_directory=str(folder / "dask"),
        # Without TLS, a worker of a loopback scheduler also listens on loopback only.
        host="127.0.0.1" if protocol == "tcp" and addresses.is_this_machine(host) else None,
    )


def parse_resources(texts: tuple[str, ...]) -> dict[str, float]:
    """Return the user's resources by name: "rack-7=1" is {"rack-7": 1.0}."""
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
