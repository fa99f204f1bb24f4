"""`qcompile worker`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..figures import bytes_text
from ..spec.cluster import WorkerCommand
from .session import Session
from .verb import verb

if TYPE_CHECKING:
    from ..cluster.facts import Facts


@verb(
    WorkerCommand,
    "qcompile worker tcp://127.0.0.1:8786",
    "qcompile worker tls://10.0.0.1:8786 --tls-ca ca.pem --tls-cert worker.pem --tls-key worker.key",
    "qcompile worker scheduler.json --store /scratch/qcompile --slots 2 --memory 32GB",
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
        session.json(msgspec.to_builtins(facts))
        session.say(f"worker {facts.name} at {facts.address}, store {given.store}")
        cores = "core" if facts.cores == 1 else "cores"
        session.say(f"  {facts.cores} {cores}, {bytes_text(facts.memory_bytes)} of memory")
        for gpu in facts.gpus:
            session.say(f"  GPU {gpu['index']}: {gpu['name']} ({gpu['capability']})")
        shown = [name for name in facts.resources if name not in ("slots", "memory")]
        stages = "stage" if given.slots == 1 else "stages"
        session.say(f"  {given.slots} {stages} at a time; announces {', '.join(sorted(shown))}")
        for engine, reason in facts.why_not.items():
            session.note(f"  not {engine}: {reason}")

    serve(given, announced=announced, told=session.note)
