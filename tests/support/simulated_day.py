"""What stands for the workers of `benchmarks/gpu_day.py`: TensorRT, a GPU, and workers in this process.

Source: the tests' own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated_whole import install as install_whole
from workers_here import WorkerHere


class WorkerInProcess(WorkerHere):
    """A worker whose PyTorch is on the processor: it has no stand-in that computes."""

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        if str(arguments.get("artifact", "")).rpartition(":")[2].isidentifier():
            arguments["device"] = "cpu"
        return {"ok": True, **super().ask(do, **arguments)}


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
