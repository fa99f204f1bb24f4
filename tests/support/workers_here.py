"""Workers of a bench in this process, where the stand-ins of TensorRT are."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from qcompile.bench import worker
from qcompile.bench.measure import runnables
from qcompile.core.processes.serve import failure
from qcompile.core.processes.worker import error_from_answer


class WorkersHere:
    """Makes workers.

    Attributes:
        asked: Name of the artifact and what was asked, with the mode of a load, in order.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def __call__(self, name: str, **_: Any) -> WorkerHere:
        return WorkerHere(name, self.asked)


class WorkerHere:
    """What `core.processes.worker.Worker` is, without a process."""

    def __init__(self, name: str, asked: list[tuple[str, str]] | None = None, **_: Any) -> None:
        self.name, self.pid, self._asked = name, os.getpid(), asked if asked is not None else []
        self._session = worker.WorkerSession(lambda _: None)

    def hello(self) -> dict[str, Any]:
        return {"started_ms": 1.0}

    def ask(self, do: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        self._asked.append((self.name, " ".join([do, *([arguments["mode"]] if "mode" in arguments else [])])))
        try:
            return json.loads(json.dumps(self._session.answer({"do": do, **arguments})))
        except Exception as error:  # as `serve` does
            raise error_from_answer(failure(error), self.name, "") from error

    def freeze(self) -> None:
        pass

    def kill(self) -> None:
        self.close()

    def close(self) -> None:
        if self._session.runner is not None:
            self._session.runner.close()

    def __enter__(self) -> WorkerHere:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def install(monkeypatch: pytest.MonkeyPatch) -> WorkersHere:
    """Let a bench start its workers here."""
    made = WorkersHere()
    monkeypatch.setattr(runnables, "Worker", made)
    monkeypatch.setattr(worker, "_wait_for_rest", lambda: True)
    return made
