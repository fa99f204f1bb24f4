"""A simulated GPU for each version of TensorRT, which must be left as it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import simulated_machine
from recorded_tensorrt import VERSIONS
from simulated_cuda import SimulatedGpu, install
from tensorrt_simulation import PYTORCHS, Simulation, make_adapter


@contextmanager
def clean_gpu(monkeypatch: pytest.MonkeyPatch, *, pycuda: bool) -> Iterator[SimulatedGpu]:
    """A GPU with PyTorch's context current, where nothing may be left at the end but that."""
    found = install(monkeypatch, pycuda=pycuda)
    found.stack.append(PYTORCHS)
    yield found
    assert found.is_clean, (+found.live, found.complaints, found.retained)
    assert (found.stack, found.pycuda_stack) == ([PYTORCHS], [])


@pytest.fixture(params=[True, False], ids=["pycuda", "ctypes"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGpu]:
    with clean_gpu(monkeypatch, pycuda=request.param) as found:
        yield found


@pytest.fixture(params=[*VERSIONS, "11.4-pycuda"])
def simulation(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Simulation]:
    """Each version of TensorRT, and one beside PyCUDA: no version knows who calls the driver."""
    version, _, package = request.param.partition("-")
    with clean_gpu(monkeypatch, pycuda=bool(package)) as found:
        yield Simulation(version, found, make_adapter(version, found), tmp_path)


@pytest.fixture(params=["8.5.3", "10.16", "11.4"])
def version(request: pytest.FixtureRequest) -> str:
    """Each version of TensorRT that builds for its own GPU."""
    return str(request.param)


@pytest.fixture
def newest(gpu: SimulatedGpu, tmp_path: Path) -> Simulation:
    """One version, for what does not depend on it."""
    return Simulation("11.4", gpu, make_adapter("11.4", gpu), tmp_path)


@pytest.fixture
def oldest(gpu: SimulatedGpu, tmp_path: Path) -> Simulation:
    """TensorRT 8.5.3, where each execution context needs a profile of its own."""
    return Simulation("8.5.3", gpu, make_adapter("8.5.3", gpu), tmp_path)


@pytest.fixture
def model(tiny_file: Callable[..., Path]) -> Path:
    """The tiny residual model, opset 17: x [batch,4,8,8]."""
    return tiny_file("residual")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., simulated_machine.Machine]:
    """`machine("8.5.3", dla_cores=1)` is a machine with a GPU and that TensorRT, as far as building goes."""
    return lambda version, **about: simulated_machine.install(monkeypatch, tmp_path, version, **about)


@pytest.fixture
def here(version: str, machine: Callable[..., simulated_machine.Machine]) -> simulated_machine.Machine:
    """The machine with each version."""
    return machine(version)
