"""The workers of a scheduler that a client sends stages to: they have its versions, and may be spoken to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ClusterError, first_line
from .resources import Facts, why_refused
from .security import check_address

_EVERY_S = 1.0


class Fleet:
    """The workers of a scheduler, those that join later, too.

    `insecure` are hosts that the user named as spoken to without TLS; `told` hears of every worker that is
    refused, and `refused` is address to why a worker is not used.
    """

    def __init__(self, client: Any, insecure: Sequence[str], told: Callable[[str], None]) -> None:
        self.client, self.insecure, self._told = client, insecure, told
        self.refused: dict[str, str] = {}
        self._ready: list[Facts] = []
        self._lock = threading.Lock()
        self._looked_s = -_EVERY_S
        self._has_plugin = False

    def ready(self, *, now: bool = False) -> list[Facts]:
        """Return the workers that may be asked; looks who is there at most once a second, unless `now`."""
        with self._lock:
            if now or not self._ready or time.monotonic() - self._looked_s > _EVERY_S:
                there = self._announced()
                if not self._has_plugin and any("slots" not in facts.resources for facts in there):
                    self._register()
                    there = self._announced()
                self.refused = {facts.address: self._why_not(facts) for facts in there}
                # A task that needs resources waits for ever where its worker announces them later.
                self._ready = [
                    facts
                    for facts in there
                    if "slots" in facts.resources and not self.refused.get(facts.address)
                ]
                self._looked_s = time.monotonic()
            return list(self._ready)

    def _why_not(self, facts: Facts) -> str:
        if facts.address in self.refused:
            return self.refused[facts.address]
        reason = why_refused(facts)
        try:
            check_address(facts.address, self.insecure, what="worker")
        except ClusterError as error:
            reason = f"{error.message} ({error.hint})"
        if reason:
            self._told(f"{reason}: it is not used")
        return reason

    def _announced(self) -> list[Facts]:
        """What the scheduler knows of every worker that runs."""
        try:
            identity = self.client.sync(self.client.scheduler.identity, n_workers=-1, callback_timeout=30)
        except (OSError, TimeoutError) as error:
            raise lost_scheduler(self.client, error) from error
        return [
            Facts(str(about["name"]), address, about.get("resources", {}))
            for address, about in identity["workers"].items()
            if about.get("status", "running") == "running"
        ]

    def _register(self) -> None:
        """Make workers that other tools have started take stages, those that join later, too."""
        from .plugin import NAME, StagePlugin

        try:
            self.client.register_plugin(StagePlugin(), name=NAME)
        except Exception as error:  # whatever its setup raises there
            address = self.client.scheduler.address
            raise ClusterError(
                f"scheduler {address}: a worker cannot take stages ({first_line(error)})",
                hint="install the client's version of qcompile on all workers",
            ) from error
        self._has_plugin = True


def lost_scheduler(client: Any, error: BaseException | None = None) -> ClusterError:
    """Return the error of a scheduler that does not answer any more."""
    address = getattr(getattr(client, "scheduler", None), "address", "") or "the scheduler"
    reason = f" ({first_line(error)})" if error is not None and str(error) else ""
    return ClusterError(
        f"scheduler {address}: the connection is lost{reason}",
        hint="what was finished is kept: start the scheduler and its workers, and run again to go on",
        address=address,
    )
