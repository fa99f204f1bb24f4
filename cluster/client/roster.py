"""The workers of a cluster: who takes part, and who is refused and why; those that join later, too."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...errors import ClusterError, first_line
from ..facts import why_refused
from ..messages import Facts
from ..security import check_address
from .introduction import Introduction, asking

Told = Callable[[str], None]
_EVERY_S = 1.0
_NAMES_A_STEP = 64
_STEPS = 4096


class Roster:
    """The workers that a client may send steps to.

    Args:
        client: A synchronous `distributed.Client`.
        versions: Package to version that workers must have.
        insecure: Hosts that the user named as spoken to without TLS.
        told: Of every worker that is refused.
    """

    def __init__(self, client: Any, versions: Mapping[str, str], insecure: Sequence[str], told: Told) -> None:
        self.client, self.versions, self.insecure, self.told = client, versions, insecure, told
        self.accepted: dict[str, Facts] = {}
        self.refused: dict[str, str] = {}
        self._counted: set[str] = set()
        self._finished: OrderedDict[str, OrderedDict[str, str]] = OrderedDict()
        self._lock = threading.Lock()
        self._names = threading.Lock()
        self._looked_s = -_EVERY_S

    def refresh(self, *, now: bool = False) -> None:
        """Look who is there, at most once a second unless `now`.

        Raises:
            ClusterError: If the scheduler does not answer.
        """
        with self._lock:
            if not now and time.monotonic() - self._looked_s < _EVERY_S:
                return
            there = self._announced()
            for gone in [address for address in self.accepted if address not in there]:
                self.accepted = {name: facts for name, facts in self.accepted.items() if name != gone}
            self.refused = {name: reason for name, reason in self.refused.items() if name in there}
            new = [name for name in there if name not in self.accepted and name not in self.refused]
            if new:
                self._meet(new)
                there = self._announced()
            # Dask never looks again at a task that came before the resources it asks for.
            self._counted = {address for address, has_slots in there.items() if has_slots}
            self._looked_s = time.monotonic() if self._counted.issuperset(self.accepted) else -_EVERY_S

    def ready(self) -> list[Facts]:
        """Return the workers that may be asked: accepted, and known to the scheduler with their resources."""
        return [facts for address, facts in self.accepted.items() if address in self._counted]

    def refuse(self, address: str, reason: str) -> None:
        """Ask a worker no more."""
        with self._lock:
            if address in self.refused:
                return
            self.accepted = {name: facts for name, facts in self.accepted.items() if name != address}
            self.refused[address] = reason
        self.told(f"{reason}: it is not used")

    def note_finished(self, names: Sequence[str], address: str) -> None:
        """Remember that a worker holds finished stages, the latest last."""
        with self._names:
            for name in names:
                stages = self._finished.setdefault(name.rpartition("-")[0], OrderedDict())
                stages[name] = address
                stages.move_to_end(name)
                self._finished.move_to_end(name.rpartition("-")[0])
                if len(stages) > _NAMES_A_STEP:
                    stages.popitem(last=False)
            while len(self._finished) > _STEPS:
                self._finished.popitem(last=False)

    def finished(self, step: str) -> dict[str, str]:
        """Return the finished stages of a step that workers hold, name to address."""
        with self._names:
            stages = dict(self._finished.get(step, {}))
        return {name: address for name, address in stages.items() if address in self.accepted}

    def forget_finished(self, name: str) -> None:
        """A worker does not hold a stage any more."""
        with self._names:
            self._finished.get(name.rpartition("-")[0], OrderedDict()).pop(name, None)

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
        for address in addresses:
            try:
                check_address(address, self.insecure, what="worker")
            except ClusterError as error:
                self._turn_away(address, f"{error.message} ({error.hint})")
        asked = [address for address in addresses if address not in self.refused]
        if not asked:
            return
        answers = self.client.run(asking(), workers=asked, on_error="return")
        for address, answer in answers.items():
            if isinstance(answer, OSError):
                continue  # it went away meanwhile
            if isinstance(answer, Exception):
                self._turn_away(address, f"worker {address}: {type(answer).__name__}: {first_line(answer)}")
                continue
            self._hear(address, msgspec.json.decode(answer, type=Introduction))

    def _hear(self, address: str, said: Introduction) -> None:
        if said.facts is None:
            self._turn_away(address, f"worker {address} {said.problem}")
            return
        reason = why_refused(said.facts, self.versions)
        if reason:
            self._turn_away(address, reason)
            return
        self.accepted = {**self.accepted, address: msgspec.structs.replace(said.facts, address=address)}
        self.note_finished(said.finished[::-1], address)

    def _turn_away(self, address: str, reason: str) -> None:
        self.refused[address] = reason
        self.told(f"{reason}: it is not used")


def lost_scheduler(client: Any, error: BaseException | None = None) -> ClusterError:
    """Return the error of a scheduler that does not answer any more."""
    address = getattr(getattr(client, "scheduler", None), "address", "") or "the scheduler"
    reason = f" ({first_line(error)})" if error is not None and str(error) else ""
    return ClusterError(
        f"scheduler {address}: the connection is lost{reason}",
        hint="what was finished is kept: start the scheduler and its workers, and run again to go on",
        address=address,
    )
