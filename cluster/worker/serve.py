"""`qcompile worker`: a Dask worker of its own, without a nanny, that carries out stages until it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ClusterError, EngineUnavailable, InvalidOption, QCompileError, first_line
from ...model.session import usable_cores
from ...spec.cluster import WorkerCommand
from ..dask_settings import own_settings
from ..security import check_address, is_this_machine, read_scheduler, security, split_address

if TYPE_CHECKING:
    from ..messages import Facts

CONNECT_S = 300.0
"""How long a scheduler may be away, at the start and after it was lost."""
_TRY_S = 5.0
_AGAIN_S = 1.0
_START_S = 300.0

Announced = Callable[["Facts"], None]
Told = Callable[[str], None]


def serve(given: WorkerCommand, *, announced: Announced, told: Told, connect_s: float = CONNECT_S) -> None:
    """Carry out stages until the process is ended by a signal, or the scheduler says so.

    A scheduler that is away is tried again for a while. The process's children end with it.

    Args:
        given: What was typed.
        announced: Told of what the worker announces, each time that it has joined.
        told: Told of what is waited for.
        connect_s: How long a scheduler may be away.

    Raises:
        InvalidOption: If an option is wrong, or another worker uses the store.
        ClusterError: If the scheduler's address is refused, or it is away for too long.
        KeyboardInterrupt: At Ctrl-C, or what the process makes of SIGTERM.
    """
    address = read_scheduler(given.scheduler)
    check_address(address, given.insecure)
    resources = parse_resources(given.resources)
    memory_bytes = parse_memory(given.memory)
    require_distributed()
    _quiet()
    session = _Session(given, address, resources, memory_bytes, announced, told, connect_s)
    with own_settings():
        asyncio.run(session.run())


class _Session:
    """One process's work for a scheduler, with as many Dask workers in turn as connections were lost."""

    def __init__(
        self,
        given: WorkerCommand,
        address: str,
        resources: Mapping[str, float],
        memory_bytes: int,
        announced: Announced,
        told: Told,
        connect_s: float,
    ) -> None:
        self.given, self.address, self.resources = given, address, resources
        self.memory_bytes, self.announced, self.told, self.connect_s = (
            memory_bytes,
            announced,
            told,
            connect_s,
        )
        self.name = given.name or platform.node() or "worker"

    async def run(self) -> None:
        """Work until the scheduler ends the worker."""
        while True:
            worker = await self._joined()
            try:
                await worker.finished()
            finally:
                await _closed(worker)
            if not worker.was_lost:
                return
            self.told(f"the scheduler {self.address} is lost: it is tried again for {self.connect_s:.0f} s")

    async def _joined(self) -> Any:
        """A worker that has joined, after as many tries as it takes.

        Raises:
            ClusterError: If the scheduler is away for too long, or does not take the worker.
        """
        from .plugin import service_of

        await self._answering()
        worker = self._worker()
        try:
            await worker
        except Exception as error:
            await _closed(worker)
            raise self._problem(error) from error
        service = service_of(worker)
        assert service is not None, "its plugin has started"
        assert service.facts is not None, "and has looked"
        self.announced(service.facts)
        return worker

    async def _answering(self) -> None:
        """Wait until the scheduler answers.

        Raises:
            ClusterError: If it does not.
        """
        from distributed.comm.core import connect

        loop = asyncio.get_running_loop()
        until_s, said = loop.time() + self.connect_s, False
        arguments = self._security().get_connection_args("worker")
        while True:
            try:
                comm = await connect(self.address, timeout=min(_TRY_S, self.connect_s), **arguments)  # type: ignore[no-untyped-call]
                await comm.close()
                return
            except (OSError, TimeoutError, asyncio.TimeoutError) as error:
                if loop.time() > until_s:
                    raise ClusterError(
                        f"scheduler {self.address}: has not answered for {self.connect_s:.0f} s "
                        f"({first_line(error)})",
                        hint="start it with `dask scheduler`, and give its address",
                        address=self.address,
                    ) from error
                if not said:
                    said = True
                    self.told(f"wait for the scheduler {self.address} ({first_line(error)})")
                await asyncio.sleep(_AGAIN_S)

    def _problem(self, error: Exception) -> QCompileError:
        """What kept a worker from joining; Dask wraps what its plugins raise."""
        seen: BaseException | None = error
        while seen is not None:
            if isinstance(seen, QCompileError):
                return seen
            last, seen = seen, seen.__cause__
        return ClusterError(
            f"scheduler {self.address}: worker {self.name!r} cannot join ({first_line(last)})",
            hint="give it another `name` where that one is taken",
            address=self.address,
        )

    def _security(self) -> Any:
        from distributed import Security

        given = self.given
        found = security(given.tls_ca, given.tls_cert, given.tls_key)
        return found or Security(require_encryption=False)  # type: ignore[no-untyped-call]

    def _worker(self) -> Any:
        from ..reasons import ReasonedWorker
        from .plugin import StagePlugin

        given = self.given
        protocol, host, _ = split_address(self.address)
        plugin = StagePlugin(
            str(given.store.absolute()),
            slots=given.slots,
            cores=given.cores or usable_cores(),
            memory_bytes=self.memory_bytes,
            resources=self.resources,
        )
        # Without TLS it listens where its scheduler is reached: at loopback, no other machine gets in.
        here = "127.0.0.1" if protocol == "tcp" and is_this_machine(host) else None
        return ReasonedWorker(
            self.address,
            nthreads=given.slots,
            name=self.name,
            security=self._security(),
            plugins=(plugin,),
            memory_limit=0,  # the stages' memory is their children's, which are watched
            dashboard=False,
            dashboard_address="127.0.0.1:0",  # HTTP, which others need not see
            death_timeout=_START_S,
            local_directory=str(given.store.absolute() / "dask"),  # nothing is spilled
            host=here,
        )


def require_distributed() -> None:
    """Look for Dask.

    Raises:
        EngineUnavailable: If it is not installed.
    """
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise EngineUnavailable(
            f"`distributed` cannot be imported ({error})",
            hint="pip install 'qcompile[cluster]'",
            engine="distributed",
        ) from error


def parse_resources(texts: tuple[str, ...]) -> dict[str, float]:
    """Return what a user announces: "rack-7=1" as a name and a quantity.

    Raises:
        InvalidOption: If one is spelled otherwise.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            quantity = float(number)
        except ValueError:
            quantity = -1.0
        if not (name and equals and 0 <= quantity < float("inf")):
            raise InvalidOption(f"`resources` {text!r}: NAME=NUMBER is required", option="resources")
        found[name] = quantity
    return found


def parse_memory(text: str) -> int:
    """Return the bytes of "16GB" or "8 GiB"; 0 for an empty text.

    Raises:
        InvalidOption: If it is no size.
    """
    if not text:
        return 0
    from dask.utils import parse_bytes

    try:
        size = int(parse_bytes(text))
    except ValueError:
        size = 0
    if size <= 0:
        raise InvalidOption(f"`memory` {text!r}: a size such as 16GB is required", option="memory")
    return size


async def _closed(worker: Any) -> None:
    with contextlib.suppress(Exception):
        await worker.close(timeout=5, executor_wait=False)


def _quiet() -> None:
    """Keep Dask's own log to what is wrong: the command line tells the rest."""
    logging.getLogger("distributed").setLevel(logging.ERROR)
