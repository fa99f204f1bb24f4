"""`qcompile worker`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spec.cluster import WorkerCommand
from .session import Session
from .verb import verb

if TYPE_CHECKING:
    from ..cluster.resources import Facts


@verb(
    WorkerCommand,
    "qcompile worker tcp://127.0.0.1:8786",
    "qcompile worker tls://10.0.0.1:8786 --tls-ca ca.pem --tls-cert worker.pem --tls-key worker.key",
    "qcompile worker scheduler.json --store /scratch/qcompile --slots 2",
    files=False,
)
def worker(session: Session, given: WorkerCommand) -> None:
    """Print what the worker announces, and work until a signal ends it."""
    from ..cluster.serve import serve

    joined: list[str] = []

    def announced(facts: Facts) -> None:
        joined.append(facts.address)
        if len(joined) > 1:
            session.note(f"joined again, at {facts.address}")
            return
        session.json({"name": facts.name, "address": facts.address, "resources": dict(facts.resources)})
        session.say(f"worker {facts.name} at {facts.address}, store {given.store}")
        shown = sorted(name for name in facts.resources if name != "slots" and "=" not in name)
        stages = "stage" if given.slots == 1 else "stages"
        session.say(f"  {given.slots} {stages} at a time; announces {', '.join(shown)}")

    serve(given, announced=announced, told=session.note)
