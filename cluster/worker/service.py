"""What turns a Dask worker into one that carries out stages: its folder, its files, its children.

    STORE/lock       held while the worker runs: two workers never share a folder
         /content    files by digest (`content`)
         /stages, /recipes, /given, /published    see `stage_work`

Stages run in children, requests on threads of the Dask worker, which bring files, wait for their turn, and
look several times a second whether the request is still wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import TimeoutError as StillRunning
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from ...errors import InvalidOption
from ...files import lock, open_lock, remove_stale
from ...pipeline.store import Store
from ...progress import Progress
from ..facts import Found, facts_here
from ..files.content import ContentStore
from ..files.parcel import forget_old as forget_recipes
from ..files.transfer import handlers
from ..messages import Facts, Request
from .children import Children
from .stage_work import GIVEN, PUBLISHED, RECIPES, STAGES, step_name

_TIDY_EVERY_S = 3600.0
_KEPT_DAYS = 14.0
_ENDED_RUNS = 1000
_LOOK_S = 0.1
_ENDING = ("closing", "closed", "failed", "stopping", "stopped")
"""States of a Dask worker in which it drops what its tasks return."""
_WANTED = ("executing", "long-running", "resumed")
"""States of a Dask task whose result somebody waits for."""
_TELL_EVERY_S = 0.5
Value = TypeVar("Value")


class Cancelled(Exception):
    """The request is not wanted any more."""


class StageService:
    """The state of one worker.

    Args:
        worker: The Dask worker.
        store: Folder of its own.
        slots: Stages at a time.
        cores: That they may use together.
        memory_bytes: That they may use together; 0 means the machine's.
        resources: That the user announces besides.

    Raises:
        InvalidOption: If another worker uses the folder.
    """

    def __init__(
        self,
        worker: Any,
        store: Path,
        *,
        slots: int,
        cores: int,
        memory_bytes: int,
        resources: dict[str, float],
    ) -> None:
        self.worker, self.store, self.slots = worker, store, slots
        self._lock = _held(store)
        self.content = ContentStore(store)
        self._extra = resources
        self._ended: deque[str] = deque(maxlen=_ENDED_RUNS)
        self._tidied_s = time.monotonic()
        self._tidying = threading.Lock()
        self._in_work = 0
        self.facts: Facts | None = None
        self.children = Children(
            self.name,
            slots=slots,
            cores=cores,
            memory_bytes=memory_bytes,
            below_nanny=worker.nanny is not None,
        )
        self._memory_bytes = memory_bytes

    @property
    def name(self) -> str:
        """Of the worker, for people."""
        return str(self.worker.name)

    def look(self) -> Facts:
        """Find what this machine has, in a child, which is warm for its first stage then."""
        with self.children.taken() as child:
            found = child.carry_out("look", check=lambda: None)["found"]
        self.facts = facts_here(
            msgspec.convert(found, Found),
            name=self.name,
            address=str(self.worker.contact_address or self.worker.address),
            slots=self.slots,
            cores=self.children.cores,
            memory_bytes=self._memory_bytes,
            extra=self._extra,
        )
        self.children.memory_bytes = self.facts.memory_bytes
        return self.facts

    def handlers(self) -> dict[str, Callable[..., Coroutine[Any, Any, Any]]]:
        """Return what clients and other workers may ask: files by digest, facts, the end of a run."""

        async def qcompile_facts() -> bytes:
            assert self.facts is not None, "the worker is not there before"
            return msgspec.json.encode(self.facts)

        async def qcompile_end_run(run: str) -> bool:
            self.end_run(str(run))
            return True

        own: dict[str, Any] = {"qcompile_facts": qcompile_facts, "qcompile_end_run": qcompile_end_run}
        return own | dict(handlers(self.content))

    def end_run(self, run: str) -> None:
        """Carry out nothing more of a run."""
        self._ended.append(run)
        self.children.end_run(run)

    def is_over(self, run: str) -> bool:
        """Whether a run was ended by its client."""
        return run in self._ended

    def check(self, request: Request, key: str) -> None:
        """Look whether a request is still wanted.

        Raises:
            Cancelled: If its run was ended, its task cancelled, or the worker is ending.
        """
        if self.is_over(request.run) or self.worker.status.name in _ENDING:
            raise Cancelled
        task = self.worker.state.tasks.get(key)
        if key and (task is None or task.state not in _WANTED):
            raise Cancelled

    def on_loop(self, coroutine: Coroutine[Any, Any, Value], check: Callable[[], None]) -> Value:
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

    def teller(self, request: Request) -> Progress:
        """Return a `Progress` that tells the client, by the scheduler, which keeps a few of them."""
        # One topic for all runs of a client: the scheduler never forgets a topic.
        topic, step = f"qcompile-{request.run.partition('.')[0]}", step_name(request.step)
        last_text, last_s = "", 0.0

        def tell(text: str, done: int = 0, total: int | None = None, /) -> None:
            nonlocal last_text, last_s
            now_s = time.monotonic()
            if text == last_text and now_s - last_s < _TELL_EVERY_S:
                return
            last_text, last_s = text, now_s
            said = {
                "run": request.run,
                "step": step,
                "text": text,
                "done": done,
                "total": total,
                "name": self.name,
            }
            with contextlib.suppress(Exception):  # the connection is closing: nobody listens
                self.worker.log_event(topic, said)

        return tell

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Count a request; the folder is tidied only while there is none."""
        with self._tidying:
            self._in_work += 1
        try:
            yield
        finally:
            with self._tidying:
                self._in_work -= 1
                if not self._in_work and time.monotonic() - self._tidied_s > _TIDY_EVERY_S:
                    self.tidy()

    def tidy(self) -> None:
        """Remove what nothing has used for two weeks, and what killed processes left."""
        self._tidied_s = time.monotonic()
        oldest = time.time() - _KEPT_DAYS * 86400
        stages = self.store / STAGES
        remove_stale(stages)
        Store(self.store, folder=stages).forget_old()
        for one in stages.glob(".*.lock"):  # nothing is being made now
            one.unlink(missing_ok=True)
        forget_recipes(self.store / RECIPES)
        for folder in (self.store / PUBLISHED, self.store / GIVEN):
            remove_stale(folder)
            for one in folder.glob("[0-9a-f]*"):
                with contextlib.suppress(OSError):
                    if one.stat().st_mtime < oldest:
                        shutil.rmtree(one, ignore_errors=True)
        self.content.forget_old()

    def finished(self, most: int) -> list[str]:
        """Return names of finished stages, the latest first."""
        records = (path for path in (self.store / STAGES).glob("*/stage.json"))
        times = []
        for record in records:
            with contextlib.suppress(OSError):
                times.append((record.stat().st_mtime, record.parent.name))
        return [name for _, name in sorted(times, reverse=True)[:most]]

    def close(self) -> None:
        """End the children, and let another worker have the folder."""
        self.children.close()
        self.content.close()
        self._lock.close()


def _held(store: Path) -> IO[str]:
    """Hold the folder of a worker until the file is closed.

    Raises:
        InvalidOption: If it cannot be made, or another worker holds it.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
        held = open_lock(store / "lock")
    except OSError as error:
        raise InvalidOption(
            f"`store` {store}: {error.strerror} ({error.filename})", option="store", file=store
        ) from error
    try:
        lock(held, store)
    except InvalidOption as error:
        held.close()
        raise InvalidOption(
            f"`store` {store}: another worker is using it",
            hint="give each worker a `store` of its own",
            option="store",
        ) from error
    return held


def all_digests(request: Request) -> Iterable[str]:
    """Yield the digests of all files that a request names itself."""
    yield request.parcel.digest
    for given in request.given.values():
        for one in given.files:
            yield one.digest
