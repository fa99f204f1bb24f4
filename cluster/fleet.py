"""The workers that a client sends steps to: those that have its versions and may be spoken to."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..errors import ClusterError, first_line
from .facts import Facts, versions_here, why_refused
from .security import check_address

_EVERY_S = 1.0


class Fleet:
    """The workers of a scheduler, those that join later, too.

    Args:
        client: A synchronous `distributed.Client`.
        insecure: Hosts that the user named as spoken to without TLS.
        told: Of every worker that is refused.

    Attributes:
        versions: Package to version that workers must have.
        refused: Address to why a worker is not used.
    """

    def __init__(self, client: Any, insecure: Sequence[str], told: Callable[[str], None]) -> None:
        self.client, self.insecure, self._told = client, insecure, told
        self.versions: Mapping[str, str] = versions_here()
        self.refused: dict[str, str] = {}
        self._facts: dict[str, Facts] = {}
        self._ready: list[Facts] = []
        self._lock = threading.Lock()
        self._looked_s = -_EVERY_S

    def ready(self, *, now: bool = False) -> list[Facts]:
        """Return the workers that may be asked; looks who is there at most once a second, unless `now`.

        Raises:
            ClusterError: If the scheduler does not answer.
        """
        with self._lock:
            if now or time.monotonic() - self._looked_s > _EVERY_S:
                there = self._announced()
                self.refused = {name: reason for name, reason in self.refused.items() if name in there}
                self._meet([name for name in there if name not in self._facts and name not in self.refused])
                there = self._announced()
                # A task that needs resources waits for ever where its worker announces them later.
                self._ready = [facts for name, facts in self._facts.items() if there.get(name)]
                self._looked_s = time.monotonic() if self._ready else -_EVERY_S
            return [facts for facts in self._ready if facts.address not in self.refused]

    def refuse(self, address: str, reason: str) -> None:
        """Ask a worker no more."""
        if address not in self.refused:
            self.refused[address] = reason
            self._told(f"{reason}: it is not used")

    def _announced(self) -> dict[str, bool]:
        """Address to whether the scheduler knows its slots, of every worker that runs."""
        try:
            identity = self.client.sync(self.client.scheduler.identity, n_workers=-1, callback_timeout=30)
        except (OSError, TimeoutError) as error:
            raise lost_scheduler(self.client, error) from error
        return {
            address: "slots" in about.get("resources", {})
            for address, about in identity["workers"].items()
            if about.get("status", "running") == "running"
        }

    def _meet(self, addresses: Sequence[str]) -> None:
        """Have new workers introduce themselves."""
        from .plugin import Introduction

        for address in addresses:
            try:
                check_address(address, self.insecure, what="worker")
            except ClusterError as error:
                self.refuse(address, f"{error.message} ({error.hint})")
        asked = [address for address in addresses if address not in self.refused]
        answers = self.client.run(_introducing(), workers=asked, on_error="return") if asked else {}
        for address, answer in answers.items():
            if isinstance(answer, OSError):
                continue  # it went away meanwhile
            if isinstance(answer, Exception):
                self.refuse(address, f"worker {address}: {type(answer).__name__}: {first_line(answer)}")
                continue
            introduction = msgspec.json.decode(answer, type=Introduction)
            if introduction.facts is None:
                self.refuse(address, f"worker {address} {introduction.problem}")
                continue
            facts = msgspec.structs.replace(introduction.facts, address=address)
            if reason := why_refused(facts, self.versions):
                self.refuse(address, reason)
            else:
                self._facts[address] = facts


def lost_scheduler(client: Any, error: BaseException | None = None) -> ClusterError:
    """Return the error of a scheduler that does not answer any more."""
    address = getattr(getattr(client, "scheduler", None), "address", "") or "the scheduler"
    reason = f" ({first_line(error)})" if error is not None and str(error) else ""
    return ClusterError(
        f"scheduler {address}: the connection is lost{reason}",
        hint="what was finished is kept: start the scheduler and its workers, and run again to go on",
        address=address,
    )


def _introducing() -> Callable[..., Awaitable[bytes]]:
    """Return what `client.run` has workers do: it is sent by value, and a worker may have no qcompile."""

    async def introduce_worker(dask_worker: Any) -> bytes:
        try:
            from qcompile.cluster.plugin import introduce
        except ImportError as error:
            import json

            return json.dumps({"problem": f"cannot import qcompile ({error})"}).encode()
        return await introduce(dask_worker)

    return introduce_worker
