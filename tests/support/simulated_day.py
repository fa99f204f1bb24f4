"""Stand-ins for a process of `benchmarks/gpu_day.py`: TensorRT, a GPU, and workers inside this process.

Source: the tests' own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated_whole import install as install_whole


class WorkerInProcess:
    """`qcompile.bench.workers.process.Worker`, without a process: another one has no stand-ins."""

    def __init__(self, name: str, **_: Any) -> None:
        from qcompile.bench.worker import WorkerSession

        self.name, self._session = name, WorkerSession(lambda _: None)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Answer a request."""
        if str(arguments.get("artifact", "")).rpartition(":")[2].isidentifier():
            arguments["device"] = "cpu"  # PyTorch has no stand-in that computes
        return {"ok": True, **self._session.answer({"do": do, **arguments})}

    def freeze(self) -> None:
        """Nothing is there to be frozen."""

    def __enter__(self) -> WorkerInProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session.runner is not None:
            self._session.runner.close()


def install(folder: Path, version: str) -> None:
    """Put everything in place, for the rest of the process; rounds are short."""
    import headline

    from qcompile.bench.workers import process

    patch = pytest.MonkeyPatch()
    install_whole(patch, folder, version)
    patch.setattr(process, "Worker", WorkerInProcess)
    patch.setattr(headline, "ROUNDS", 3)
    patch.setattr(headline, "BLOCK_MS", 1.0)
    patch.setattr(headline, "LOADS_AT_ONCE", 1)
    patch.setattr(headline, "BATCHES", (1, 2))
