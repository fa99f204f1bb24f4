"""On stand-ins: the tests of tests/engines/gpu, which are written for a real TensorRT, and the day on a GPU.

What is no fault of TensorRT's shows here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import simulated_machine
from simulated_cuda import SimulatedGpu
from simulated_cuda import install as install_cuda
from workers_here import WorkerHere


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> SimulatedGpu:
    """Put a version of TensorRT and a GPU into this process. Source: the tests' own."""
    gpu = install_cuda(monkeypatch)
    gpu.stack.append(0xBEEF)  # PyTorch's context: as in a process where somebody else uses the GPU
    simulated_machine.install(monkeypatch, folder, version, gpu)
    return gpu


_NOT_HERE = {
    "test_ten_thousand_inferences_take_no_memory": "the driver counts the memory",
    "test_a_hundred_loads_give_everything_back": "the driver counts the memory",
    "test_no_context_stays_current": "asks libcuda itself",
}


def gpu_tests(name: str) -> dict[str, Any]:
    """Return the tests and fixtures of a file of tests/engines/gpu, without its mark.

    Source: the tests' own.
    """
    path = Path(__file__).parents[1] / f"engines/gpu/{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_on_stand_ins", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = {}
    for key, value in vars(module).items():
        if type(value).__name__ == "FixtureFunctionDefinition":
            # For one version alone, whatever its scope.
            found[key] = pytest.fixture(value._get_wrapped_function())
        elif key.startswith("test_") and key not in _NOT_HERE:
            found[key] = value
    return found


class WorkerInProcess(WorkerHere):
    """A worker of `tests/performance/gpu_day.py` with PyTorch on the processor. Source: the tests' own."""

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        if str(arguments.get("artifact", "")).rpartition(":")[2].isidentifier():
            arguments["device"] = "cpu"
        return {"ok": True, **super().ask(do, **arguments)}


def install_day(folder: Path, version: str) -> None:
    """Put everything in place, for the rest of the process; rounds are short. Source: the tests' own."""
    import headline

    from qcompile.core.processes import worker

    patch = pytest.MonkeyPatch()
    install(patch, folder, version)
    patch.setattr(worker, "Worker", WorkerInProcess)
    for name, value in {"ROUNDS": 3, "BLOCK_MS": 1.0, "LOADS_AT_ONCE": 1, "BATCHES": (1, 2)}.items():
        patch.setattr(headline, name, value)
