"""What `run`, `auto`, `tune` and `sweep` share: the workers of `--scheduler`, and a line for each stage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidOption
from ..spec.cluster import LOCAL, SchedulerOptions
from .session import Session

if TYPE_CHECKING:
    from ..pipeline.run import StageListener
    from ..pipeline.stage import Executor

_WORKER = "worker"


@contextlib.contextmanager
def executor_of(session: Session, given: SchedulerOptions, output: Path) -> Iterator[Executor | None]:
    """Connect to the scheduler that was typed; None without one: this process carries the stages out.

    Args:
        session: Is told of workers that are not used.
        given: What was typed.
        output: Folder of the artifacts: local workers keep their files in it.
    """
    if not given.scheduler:
        for option in ("tls_ca", "tls_cert", "tls_key", "insecure", "store"):
            if getattr(given, option):
                raise InvalidOption(f"`{option}` is for `scheduler`, which is missing", option=option)
        yield None
        return
    from ..cluster.connection import connect
    from ..pipeline.store import FOLDER

    session.progress("connect to the scheduler")
    with connect(
        given.scheduler,
        tls_ca=given.tls_ca,
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        insecure=given.insecure,
        store=output / FOLDER / _WORKER if given.scheduler == LOCAL else given.store or None,
        told=lambda text: session.warn([text]),
    ) as executor:
        names = ", ".join(sorted(facts.name for facts in executor.workers.values()))
        session.note(f"workers: {names}")
        yield executor


def listener_of(session: Session, executor: Executor | None = None) -> StageListener:
    """Return what prints a line for each stage that was carried out, and where."""
    did: Mapping[str, str] = getattr(executor, "did", {})

    def listener(stage: str, state: str, seconds: float, /) -> None:
        if state != "skipped" or session.verbose:
            worker = did.get(stage) if state != "failed" else ""
            session.note(f"{state:>7}  {stage}  {seconds:.1f} s{f'  on {worker}' if worker else ''}")

    return listener
