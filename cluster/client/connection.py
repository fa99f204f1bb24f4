"""The client's connection to a Dask scheduler, and the executor that sends steps to its workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ClusterError, EngineUnavailable, InvalidOption, first_line
from ...spec.cluster import LOCAL
from ..dask_settings import own_settings
from ..security import check_address, read_scheduler, security

if TYPE_CHECKING:
    from .executor import ClusterExecutor

_CONNECT_S = 5.0
_LOST = (OSError, TimeoutError, asyncio.TimeoutError, asyncio.CancelledError)
"""Of a connection: Dask's own `CommClosedError` is an OSError."""
_LOGGERS = ("distributed", "tornado", "asyncio", "bokeh")


@contextlib.contextmanager
def connect(
    scheduler: str | Any,
    *,
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    insecure: Sequence[str] = (),
    store: str | Path | None = None,
    told: Callable[[str], None] | None = None,
) -> Iterator[ClusterExecutor]:
    """Connect to a Dask scheduler: `qcompile.run(recipe, executor=...)` then has its workers do the stages.

    Args:
        scheduler: Its address (tls://HOST:PORT), its file, "local" for processes on this machine, or a
            `distributed.Client` or cluster, as dask-cuda, dask-jobqueue and dask-kubernetes make them.
        tls_ca, tls_cert, tls_key: Certificate of the cluster's authority, and this machine's with its key.
        insecure: Hosts to speak to without TLS, each given twice.
        store: Folder that the worker of "local" keeps files and finished stages in; by default one that is
            removed at the end.
        told: Of workers that are refused, full or too small; by default a Python warning.

    Yields:
        The executor. When the block ends, what workers do for it is ended.

    Raises:
        EngineUnavailable: If Dask is not installed.
        InvalidOption, MissingFile: If an option cannot be used.
        ClusterError: If the scheduler cannot be reached or is refused, or no worker can be used.
    """
    _require_dask()
    if scheduler == LOCAL:
        from .local import local

        with local(store=Path(store) if store else None, told=told) as executor:
            yield executor
        return
    told = told or warn
    if not isinstance(scheduler, str):
        with _given(scheduler) as client, executing(client, insecure, told) as executor:
            yield executor
        return
    address = read_scheduler(scheduler)
    check_address(address, insecure)
    ca, cert, key = (None if path is None else Path(path) for path in (tls_ca, tls_cert, tls_key))
    with (
        quiet_dask(),
        own_settings(),
        opened(address, security(ca, cert, key)) as client,
        executing(client, insecure, told) as executor,
    ):
        yield executor


@contextlib.contextmanager
def executing(client: Any, insecure: Sequence[str], told: Callable[[str], None]) -> Iterator[ClusterExecutor]:
    """The executor of a client, after its workers were looked at.

    Raises:
        ClusterError: If no worker can be used.
    """
    from ..facts import versions_here
    from .executor import ClusterExecutor
    from .roster import Roster

    executor = ClusterExecutor(client, Roster(client, versions_here(), insecure, told), told)
    try:
        executor.await_workers((), _CONNECT_S)
        yield executor
    finally:
        executor.close()


@contextlib.contextmanager
def opened(address: str, secured: Any) -> Iterator[Any]:
    """A client of our own.

    Raises:
        ClusterError: If nobody answers there.
    """
    from distributed import Client, Security

    ours: Any = secured or Security()  # type: ignore[no-untyped-call]
    if address.startswith(("tls:", "wss:")) and not (ours.tls_ca_file and ours.tls_client_cert):
        raise ClusterError(
            f"scheduler {address}: speaks TLS; certificates are required",
            hint="give `tls_ca`, `tls_cert` and `tls_key`",
            address=address,
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\s*(Mismatched versions|$)")  # we compare ours
            client = Client(  # type: ignore[no-untyped-call]
                address, security=ours, timeout=_CONNECT_S, set_as_default=False, name="qcompile"
            )
    except (OSError, TimeoutError, ImportError, RuntimeError, ValueError) as error:
        raise _unreachable(address, error) from error
    mute(client)
    try:
        yield client
    finally:
        with contextlib.suppress(OSError, TimeoutError):  # the scheduler is gone
            client.close(timeout=_CONNECT_S)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def quiet_dask() -> Iterator[None]:
    """Keep what Dask logs off the terminal: what matters is told in our own words."""

    def drop(_: logging.LogRecord) -> bool:
        return False

    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in _LOGGERS]
    handlers = [one for name in (*_LOGGERS, *names) for one in logging.getLogger(name).handlers]
    for one in dict.fromkeys(handlers):
        one.addFilter(drop)
    try:
        yield
    finally:
        for one in dict.fromkeys(handlers):
            one.removeFilter(drop)


def mute(client: Any) -> None:
    """Let a client of our own lose its connections in silence: what that means is told in our own words.

    Dask 2026.8 also drops timers and reads of its connections as it closes. Any other error of its loop is
    logged as ever.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        lost = isinstance(error, _LOST)
        dropped = error is None and client.status in ("closing", "closed")
        if not (lost or dropped):
            loop.default_exception_handler(context)

    client.loop.asyncio_loop.set_exception_handler(handle)


@contextlib.contextmanager
def _given(made: Any) -> Iterator[Any]:
    """The client that a user gives, which stays open; or one of the cluster that he gives.

    Raises:
        InvalidOption: If it is neither, or an asynchronous client.
    """
    from distributed import Client
    from distributed.deploy.cluster import Cluster

    if isinstance(made, Client):
        if made.asynchronous:
            raise InvalidOption(
                "`scheduler`: is an asynchronous client; one of asynchronous=False is required",
                option="scheduler",
            )
        yield made
    elif isinstance(made, Cluster):
        with Client(made, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            yield client
    else:
        raise InvalidOption(
            f"`scheduler`: is a {type(made).__name__}; an address or a distributed.Client is required",
            option="scheduler",
        )


def _unreachable(address: str, error: BaseException) -> ClusterError:
    said = first_line(error)
    hint = "start it with `dask scheduler`, or look at its address and at firewalls"
    words = f"{said} {first_line(error.__cause__) if error.__cause__ else ''}".lower()
    if any(word in words for word in ("certificate", "ssl", "tls")):
        hint = "give the certificates of this cluster: `tls_ca`, `tls_cert` and `tls_key`"
    return ClusterError(f"scheduler {address}: cannot be reached ({said})", hint=hint, address=address)


def _require_dask() -> None:
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise EngineUnavailable(
            f"a cluster needs Dask's distributed, which cannot be imported ({first_line(error)})",
            hint="pip install 'qcompile[cluster]'",
            engine="cluster",
            reason="distributed is not installed",
        ) from error


def warn(text: str) -> None:
    """Tell as a Python warning."""
    warnings.warn(text, stacklevel=2)
