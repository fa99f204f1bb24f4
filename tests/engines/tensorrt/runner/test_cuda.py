"""The primary context is shared: whatever is done in it, the thread has its own contexts back afterwards.

Inputs that are on the GPU: not copied, not converted, and waited for.
"""

from __future__ import annotations

import re
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from simulated_cuda import COPY_NS, KERNEL_NS, SimulatedGpu, install
from tensorrt_simulation import PYTORCHS, InterfaceArray, Simulation, assert_negates, values

from qcompile.engines import libcuda
from qcompile.engines.gpu import bus_id, find_gpus, why_no_gpu
from qcompile.engines.libcuda import CudaError
from qcompile.engines.tensorrt.builder.calibration import DeviceBuffers
from qcompile.engines.tensorrt.runner import cuda
from qcompile.engines.tensorrt.runner.cuda import Event, PrimaryContext, Stream, current_device
from qcompile.engines.tensorrt.runner.memory import DeviceBuffer, read_device_input
from qcompile.errors import DataError, EngineUnavailable, ModelError


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


def test_without_a_driver_device_0_alone_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "load_cuda", missing)
    with current_device(0, "m.onnx"):
        pass
    with pytest.raises(EngineUnavailable, match="device 1: no driver"), current_device(1, "m.onnx"):
        pass


def missing() -> None:
    raise CudaError("no driver")


def test_cudas_errors_become_ours_with_what_was_being_done(gpu: SimulatedGpu) -> None:
    context = PrimaryContext(0, "m.engine")
    said = r"m\.engine: loading: not enough memory on CUDA device 0"
    with pytest.raises(EngineUnavailable, match=said), context.active("loading"):
        DeviceBuffer(context.cuda).reserve(1 << 40)
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
    device = DeviceBuffers()
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
        driver = context.cuda
        buffer = DeviceBuffer(driver)
        buffer.reserve(8)
        assert getattr(buffer._release, "atexit", True) is False  # the driver may be gone by then
        held = [Stream(driver), Event(driver), buffer, driver.pagelocked_empty(8)[2:]]
        del buffer
    assert sum(gpu.live.values()) == 4
    other = threading.Thread(target=held.clear)
    other.start()
    other.join()


def test_a_function_that_an_older_driver_lacks_is_an_error_of_ours(
    gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Source: ctypes of CPython, CDLL.__getattr__, which raises AttributeError with the message of dlsym.
    context = PrimaryContext(0, "m.engine")
    library = context.cuda.library

    class Older:
        def __getattr__(self, symbol: str) -> Any:
            if symbol == "cuGraphLaunch":
                raise AttributeError(f"undefined symbol: {symbol}")
            return getattr(library, symbol)

    monkeypatch.setattr(context.cuda, "library", Older())
    said = r"m\.engine: replaying: CUDA fails: cuGraphLaunch: undefined symbol: cuGraphLaunch"
    with pytest.raises(ModelError, match=said), context.active("replaying"):
        context.cuda.call("cuGraphLaunch", 1, 1)
    assert gpu.stack == [PYTORCHS]


def test_pycuda_is_taken_where_it_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert type(cuda.load_cuda()) is cuda.Cuda
    install(monkeypatch, pycuda=True)
    assert cuda.load_cuda().package is sys.modules["pycuda.driver"]


def test_gpus_are_found_by_the_driver_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = install(monkeypatch, devices=2)
    gpu.name = "A GPU of a test"
    about = {"gpu": gpu.name, "gpus": ["sm86"], "memory_bytes": gpu.memory_bytes, "cuda": "12.4"}
    assert [found.as_json() for found in find_gpus()] == [about] * 2
    assert [bus_id(index) for index in range(3)] == ["0000:00:00.0", "0000:01:00.0", ""]
    assert why_no_gpu() == ""
    assert not gpu.stack, "no context is made"


def test_without_a_gpu_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    load_library = libcuda.load_library.__wrapped__
    install(monkeypatch, devices=0)
    assert why_no_gpu() == "the NVIDIA driver finds no device"
    assert (find_gpus(), bus_id(0)) == ([], "")
    monkeypatch.setattr(libcuda, "load_library", load_library)
    monkeypatch.setattr(libcuda.ctypes, "CDLL", no_library)
    assert why_no_gpu() == "no NVIDIA driver (libcuda.so.1 is missing)"
    assert (find_gpus(), bus_id(0)) == ([], "")


def test_a_context_that_pycuda_has_current_is_current_again(gpu: SimulatedGpu) -> None:
    pycuda = pytest.importorskip("pycuda.driver", reason="without PyCUDA there are no contexts of its own")
    theirs = pycuda.Device(1).retain_primary_context()
    theirs.push()
    with PrimaryContext(0, "test").active("a test"):
        assert gpu.stack == [PYTORCHS, gpu.primary(0)]
        assert pycuda.Context.get_current() is not theirs
    assert gpu.stack == [PYTORCHS, gpu.primary(1)]
    theirs.pop()


def test_the_functions_with_parameters_are_those_that_are_called() -> None:
    files = [path for path in ENGINES.rglob("*.py") if path.name != "libcuda.py"]
    named = set(re.findall(r'"(cu[A-Z][a-z]\w+)"', "".join(path.read_text() for path in files)))
    copies = {f"{name}Async" for name in named if re.fullmatch("cuMemcpy(HtoD|DtoH)", name)}
    assert named | copies == set(libcuda.PARAMETERS)


ENGINES = Path(libcuda.__file__).parent
HEADER = Path("/usr/local/cuda/include/cuda.h")


@pytest.mark.skipif(not HEADER.exists(), reason="CUDA's headers are not installed")
@pytest.mark.parametrize("name", libcuda.PARAMETERS)
def test_a_function_of_libcuda_is_called_as_cudas_header_declares_it(name: str) -> None:
    text = HEADER.read_text()
    symbol = re.search(rf"#define +{name} +(?:__CUDA_API_PT..\()?(\w+)", text)
    if name != "cuEventElapsedTime":  # whose newer form older drivers lack
        assert name + libcuda.ENDINGS.get(name, "") == (symbol[1] if symbol else name)
    declared = re.search(rf"CUDAAPI {name}\((.*?)\);", text, re.DOTALL)
    assert declared is not None
    kinds = "".join(_kind(parameter) for parameter in declared[1].split(",") if parameter != "void")
    assert libcuda.PARAMETERS[name] == kinds.replace("pip", "Iip" if "Pointer" in name else "pip")


def _kind(parameter: str) -> str:
    """A letter of `libcuda.PARAMETERS`; what a `void *` shows is not declared, and `char *` is filled in."""
    if re.search(r"\b(void|char) \*\w", parameter):
        return "p"
    small = re.search(r"\b(float|int|CUresult|CUdevice|\w+_attribute|CUstreamCaptureMode) ", parameter)
    kind = ("f" if small[1] == "float" else "i") if small else "p"
    return kind.upper() if "*" in parameter else kind


def test_an_array_on_the_device_is_used_where_it_lies(simulation: Simulation) -> None:
    x = values(3, 4)
    producer = InterfaceArray(simulation.gpu, x)
    with simulation.open("negate") as runner:
        times = runner.gpu_times({"x": producer}, 1)
        np.testing.assert_array_equal(runner.infer({"x": producer})["y"], -x)
    assert ("x", producer.address) in simulation.told("set_tensor_address")
    assert times.with_transfers.tolist() == [KERNEL_NS + COPY_NS]  # the output alone
    assert simulation.gpu.made["page-locked memory"] == 1
    producer.free()


@pytest.mark.parametrize(
    ("about", "waits"), [({}, True), ({"version": 2, "stream": None}, True), ({"stream": None}, False)]
)
def test_what_its_producer_still_writes_is_waited_for_unless_it_says_nothing(
    newest: Simulation, about: dict[str, Any], waits: bool
) -> None:
    # A Producer's stream has written nothing until somebody waits for it: without, zeros are read.
    x = values(3, 4)
    producer = InterfaceArray(newest.gpu, x, **about)
    with newest.open("negate") as runner:
        np.testing.assert_array_equal(runner.infer({"x": producer})["y"], -x * waits)
        assert bool(producer.stream.queue) != waits
    producer.free()


def test_an_array_is_held_while_its_memory_is_used(newest: Simulation) -> None:
    producer = InterfaceArray(newest.gpu, values(3, 4))
    alive, free = weakref.ref(producer), producer.free
    with newest.open("negate") as runner:
        runner.infer({"x": producer})
        del producer
        assert alive() is not None
        runner.infer({"x": values(2, 4)})
        assert alive() is None
    free()


class NoArray:
    """What has no interface, or raises in its place, as a tensor that requires a gradient does."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    @property
    def __cuda_array_interface__(self) -> Any:
        raise self._error or AttributeError("no such interface")

    def free(self) -> None:
        """Nothing is on the device."""


def array(*shape: int, **about: Any) -> Callable[[SimulatedGpu], InterfaceArray]:
    """What makes an array on the device, of shape [3,4] unless said."""
    return lambda gpu: InterfaceArray(gpu, values(*(shape or (3, 4))), **about)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (array(strides=(4, 12)), "is strided on the device"),
        (array(device=1), "on CUDA device 1; 0 is required"),
        (lambda _: NoArray(), "is a NoArray; a numpy array, or an array on CUDA device 0, is"),
        (lambda _: NoArray(RuntimeError("requires grad")), "cannot be shared: requires grad"),
        (array(offset=16), "requires a multiple of 256"),
        (array(mask=object()), "has a mask"),
        (array(data=(256, False)), "outside the memory of CUDA devices"),
        (array(typestr="<f2"), "float16; float32 is required"),
        (array(3, 5), r"has shape 3x5; \[\?,4\] is required"),
    ],
)
def test_what_would_have_to_be_copied_or_converted_is_refused(
    newest: Simulation, make: Callable[[SimulatedGpu], InterfaceArray], said: str
) -> None:
    producer = make(newest.gpu)
    with newest.open("negate") as runner:
        with pytest.raises(DataError, match=f"input 'x' .*{said}"):
            runner.infer({"x": producer})
        assert_negates(runner, 2)
    producer.free()


@pytest.mark.parametrize("strides", [(999, 4), (16, 4)])
def test_strides_that_mean_row_major_are_taken(newest: Simulation, strides: tuple[int, int]) -> None:
    x = values(1, 4)  # the stride of an axis of extent 1 means nothing
    producer = InterfaceArray(newest.gpu, x, strides=strides)
    with newest.open("negate") as runner:
        np.testing.assert_array_equal(runner.infer({"x": producer})["y"], -x)
    producer.free()


def test_a_shape_input_is_refused_on_the_device(newest: Simulation) -> None:
    size = InterfaceArray(newest.gpu, np.array([2, 4], np.int32))
    with (
        newest.open("shaped", host=["size"]) as runner,
        pytest.raises(DataError, match="input 'size' is on the device; TensorRT reads it on the host"),
    ):
        runner.infer({"x": values(1, 4), "size": size})
    size.free()


class OnGpu:
    """A tensor of PyTorch on the CPU that says it is on the GPU: the interface is PyTorch's own."""

    is_cuda, is_sparse, requires_grad = True, False, False

    def __init__(self, gpu: SimulatedGpu, tensor: torch.Tensor) -> None:
        self._tensor, self._address = tensor, gpu.allocate(tensor.nbytes)
        self.free = lambda: gpu.release(self._address, "device memory")

    def __getattr__(self, name: str) -> Any:
        if name == "__torch_function__":
            raise AttributeError(name)
        return getattr(self._tensor, name)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface: dict[str, Any] = torch.Tensor.__cuda_array_interface__.fget(self)  # type: ignore[attr-defined]
        return interface | {"data": (self._address, False)}


@pytest.mark.parametrize(
    "name", ["float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"]
)
def test_tensors_of_pytorch_are_read_as_it_shows_them(gpu: SimulatedGpu, name: str) -> None:
    tensor = torch.zeros(3, 1, 5, 64, dtype=getattr(torch, name))
    context = PrimaryContext(0, "test")
    whole, strided = OnGpu(gpu, tensor), OnGpu(gpu, tensor.transpose(0, 2))
    with context.active("a test"):
        found = read_device_input("x", whole, context)
        assert found.shape == (3, 1, 5, 64)
        assert found.dtype == np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
        with pytest.raises(DataError, match="is strided"):
            read_device_input("x", strided, context)
    whole.free()
    strided.free()


def test_an_output_on_the_host_is_returned(newest: Simulation) -> None:
    with newest.open("negate", host=["y"]) as runner:
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))
