"""PyCUDA where it can be imported, else cuda-bindings; what only the second needs is tested here."""

from __future__ import annotations

import inspect
import re
import sys

import pytest
import simulated_pycuda
from simulated_cuda import SimulatedGpu, install
from tensorrt_simulation import PYTORCHS

from qcompile.engines.tensorrt.runner import cuda_driver
from qcompile.engines.tensorrt.runner.cuda_context import PrimaryContext
from qcompile.engines.tensorrt.runner.cuda_driver import NON_BLOCKING, CudaBindings, load_cuda
from qcompile.errors import ModelError


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    """A GPU with cuda-bindings alone."""
    gpu = install(monkeypatch, "cuda-bindings")
    gpu.stack.append(PYTORCHS)
    return gpu


def test_pycuda_is_taken_where_both_are_installed(
    bindings: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(load_cuda(), CudaBindings)
    pycuda = simulated_pycuda.make_module(bindings)
    monkeypatch.setitem(sys.modules, "pycuda", pycuda)
    monkeypatch.setitem(sys.modules, "pycuda.driver", pycuda)
    pycuda.driver = pycuda  # type: ignore[attr-defined]
    assert load_cuda() is pycuda


def test_what_is_collected_elsewhere_is_freed_in_its_context(bindings: SimulatedGpu) -> None:
    context = PrimaryContext(0, "test")
    with context.active("a test"):
        held = (context.cuda.Stream(NON_BLOCKING), context.cuda.Event(), context.cuda.mem_alloc(8))
    bindings.stack.clear()  # as a thread has it in which nothing is current
    assert sum(bindings.live.values()) == 3
    del held
    assert bindings.is_clean
    assert bindings.stack == []


@pytest.mark.usefixtures("bindings")
def test_a_function_that_an_older_driver_lacks_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        # As cuda-bindings 13.5 raises it.
        raise RuntimeError("function cuEventElapsedTime_v2 is not found")

    context = PrimaryContext(0, "m.engine")
    monkeypatch.setattr(context.cuda.driver, "cuEventElapsedTime", missing)
    said = r"m\.engine: timing: CUDA fails: cuEventElapsedTime: function cuEventElapsedTime_v2 is not found"
    with pytest.raises(ModelError, match=said), context.active("timing"):
        context.cuda.Event().time_since(context.cuda.Event())


def test_every_function_is_one_of_the_real_package() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    named = set(re.findall(r'"(cu[A-Z]\w+)"', inspect.getsource(cuda_driver).split("class CudaDriver")[0]))
    assert len(named) > 20
    assert {name for name in named if not hasattr(driver, name)} == set()
