"""The primary context is shared: whatever is done in it, the thread has its own contexts back afterwards."""

from __future__ import annotations

import inspect
import re
import sys
import threading

import numpy as np
import pytest
from simulated_cuda import SimulatedGpu, install
from tensorrt_simulation import PYTORCHS

from qcompile.engines.tensorrt.builder.calibration import Device
from qcompile.engines.tensorrt.runner import cuda, pycuda_driver
from qcompile.engines.tensorrt.runner.cuda import CudaError, PrimaryContext, current_device
from qcompile.errors import EngineUnavailable, ModelError


def test_it_is_current_in_the_block_alone_and_retained_once(gpu: SimulatedGpu) -> None:
    for device in (1, 1, 0):
        context = PrimaryContext(device, "test")
        for _ in range(2):
            assert gpu.stack == [PYTORCHS]
            with context.active("a test"):
                assert gpu.stack == [PYTORCHS, gpu.primary(device)]
    assert gpu.stack == [PYTORCHS]
    assert gpu.retained == {0: 1, 1: 1}


@pytest.mark.parametrize("device", [0, 1])
def test_a_build_has_its_device_current_whatever_a_caller_has(gpu: SimulatedGpu, device: int) -> None:
    with current_device(1 - device, "another"), current_device(device, "m.onnx"):
        assert gpu.stack[-1] == gpu.primary(device)


def test_without_a_package_device_0_alone_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "load_cuda", missing)
    with current_device(0, "m.onnx"):
        pass
    with pytest.raises(EngineUnavailable, match="device 1: no package"), current_device(1, "m.onnx"):
        pass


def missing() -> None:
    raise ImportError("no package")


def test_cudas_errors_become_ours_with_what_was_being_done(gpu: SimulatedGpu) -> None:
    context = PrimaryContext(0, "m.engine")
    said = r"m\.engine: loading: not enough memory on CUDA device 0"
    with pytest.raises(EngineUnavailable, match=said), context.active("loading"):
        context.cuda.mem_alloc(1 << 40)
    said = r"m\.engine: copying: CUDA fails: .*was refused"
    with pytest.raises(ModelError, match=said) as caught, context.active("copying"):
        raise CudaError("this was refused")
    assert isinstance(caught.value.__cause__, CudaError)
    gpu.fail_on = gpu.calls + 1
    said = r"CUDA fails: cuGraphLaunch: CUDA_ERROR_UNKNOWN \(999\)"
    with pytest.raises(ModelError, match=said), context.active("replaying"):
        context.cuda.call("cuGraphLaunch", 1, 1)


@pytest.mark.usefixtures("gpu")
def test_an_error_that_was_being_handled_before_keeps_its_frames() -> None:
    def work() -> None:
        kept = "kept"
        raise ValueError(kept)

    context = PrimaryContext(0, "test")
    try:
        work()
    except ValueError as outer:
        with pytest.raises(KeyError), context.active("a test"):
            {}["nothing"]
        trace = outer.__traceback__
        assert trace is not None
        assert trace.tb_next is not None
        assert trace.tb_next.tb_frame.f_locals == {"kept": "kept"}


def test_batches_for_tensorrts_calibrator_go_to_buffers_of_that_context(gpu: SimulatedGpu) -> None:
    device = Device()
    for batch in (np.ones((2, 3), np.float32), np.full((4, 3), 2, np.float32)):
        address = device.copy("x", batch)
        np.testing.assert_array_equal(gpu.bytes_at(address, batch.nbytes).view(np.float32), batch.reshape(-1))
        assert gpu.stack == [PYTORCHS]
    assert gpu.live["device memory"] == 1
    device.close()
    device.close()


def test_what_is_collected_in_another_thread_is_freed_in_its_context(gpu: SimulatedGpu) -> None:
    context = PrimaryContext(0, "test")
    with context.active("a test"):
        cuda = context.cuda
        held = [cuda.stream(), cuda.event(), cuda.mem_alloc(8), cuda.pagelocked_empty(8)[2:]]
    assert sum(gpu.live.values()) == 4
    other = threading.Thread(target=held.clear)
    other.start()
    other.join()


@pytest.mark.parametrize("kind", [RuntimeError, AttributeError], ids=["cuda-bindings 13.5", "ctypes"])
@pytest.mark.usefixtures("gpu")
def test_a_function_that_an_older_driver_lacks_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def missing(*_: object) -> None:
        raise kind("function cuGraphLaunch is not found")

    context = PrimaryContext(0, "m.engine")
    monkeypatch.setattr(context.cuda.driver, "cuGraphLaunch", missing)
    said = r"m\.engine: replaying: CUDA fails: cuGraphLaunch: function cuGraphLaunch is not found"
    with pytest.raises(ModelError, match=said), context.active("replaying"):
        context.cuda.call("cuGraphLaunch", 1, 1)


def test_pycuda_is_taken_where_both_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "pycuda")
    pycuda = {name: sys.modules[name] for name in ("pycuda", "pycuda.driver")}
    install(monkeypatch, "cuda-bindings")
    assert type(cuda.load_cuda()) is cuda.Cuda
    for name, module in pycuda.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert cuda.load_cuda().package is pycuda["pycuda.driver"]


def test_a_context_that_pycuda_has_current_is_current_again(gpu: SimulatedGpu) -> None:
    pycuda = pytest.importorskip("pycuda.driver", reason="the other package has no contexts of its own")
    theirs = pycuda.Device(1).retain_primary_context()
    theirs.push()
    with PrimaryContext(0, "test").active("a test"):
        assert gpu.stack == [PYTORCHS, gpu.primary(0)]
    assert gpu.stack == [PYTORCHS, gpu.primary(1)]
    theirs.pop()


def test_every_function_is_one_of_the_real_package() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    source = inspect.getsource(cuda) + "".join(f'"{name}"' for name in pycuda_driver._PARAMETERS)
    named = set(re.findall(r'"(cu[A-Z]\w+)"', source)) | set(re.findall(r"driver\.(CU\w+)", source))
    assert len(named) > 25
    assert {name for name in named if not hasattr(driver, name)} == set()
