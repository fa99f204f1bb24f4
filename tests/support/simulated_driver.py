# ruff: noqa: N802 - the names are the driver's
"""The CUDA driver by cuda-bindings and by PyCUDA, on a simulated GPU, and libcuda as ctypes calls it.

Sources: those of `simulated_cuda`; src/cpp/cuda.hpp ("cuda.hpp") and src/wrapper/wrap_cudadrv.cpp of
inducer/pycuda 2026.1."""

from __future__ import annotations

import ctypes
import enum
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from simulated_cuda import COPY_NS, Error, Event, Misuse, OutOfMemory, SimulatedGpu, Stream


class CUresult(enum.IntEnum):
    """Source: driver API, CUresult."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_UNKNOWN = 999


class Handle:
    """`CUstream`, `CUdeviceptr` and their like; `__int__` is the handle.

    Source: documentation of cuda-bindings, and driver.pyx.
    """

    def __init__(self, value: int) -> None:
        self._value = value

    def __int__(self) -> int:
        return self._value


_NEVER_FAIL = ("CtxP", "CtxGet", "ErrorName", "Free", "Destroy", "PointerGet", "ElapsedTime", "EndCapture")


def answering(gpu: SimulatedGpu, name: str, function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """Answer by an error code, without frames in a traceback.

    Source: documentation of cuda-bindings, and driver.pyx, which is compiled: a function returns a tuple of
    `CUresult` and its results, None in their place where it fails, and takes handles as integers, too.
    """

    def call(*arguments: Any) -> tuple[Any, ...]:
        try:
            if not any(part in name for part in _NEVER_FAIL):
                gpu.check(name)
            result = function(*arguments)
        except Error as error:
            kind = "OUT_OF_MEMORY" if isinstance(error, OutOfMemory) else "UNKNOWN"
            return CUresult[f"CUDA_ERROR_{kind}"], None
        return (CUresult.CUDA_SUCCESS,) if result is None else (CUresult.CUDA_SUCCESS, result)

    return call


_DEVICE, _LOCKED = "device memory", "page-locked memory"


class Functions:
    """The functions. Source: driver API, each function's page."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu

    def cuGetErrorName(self, error: Any) -> bytes:
        return CUresult(error).name.encode()

    def cuInit(self, flags: int) -> None:
        pass

    def cuDeviceGet(self, ordinal: int) -> Handle:
        # Source: driver API, cuDeviceGet: CUDA_ERROR_INVALID_DEVICE beyond the last.
        if ordinal >= self._gpu.devices:
            raise Error
        return Handle(ordinal)

    def cuDevicePrimaryCtxRetain(self, device: Any) -> Handle:
        self._gpu.retained[int(device)] += 1
        return Handle(self._gpu.primary(int(device)))

    def cuCtxPushCurrent(self, context: Any) -> None:
        self._gpu.stack.append(int(context))

    def cuCtxPopCurrent(self) -> Handle:
        self._gpu.require_context()
        return Handle(self._gpu.stack.pop())

    def cuCtxGetCurrent(self) -> Handle:
        return Handle(self._gpu.stack[-1] if self._gpu.stack else 0)

    def cuCtxSynchronize(self) -> None:
        self._gpu.require_context()
        self._gpu.run_all()

    def cuMemAlloc(self, size: int) -> Handle:
        # Source: driver API, cuMemAlloc: "if bytesize is 0 [it] returns CUDA_ERROR_INVALID_VALUE".
        self._gpu.require_context()
        if size < 1:
            raise Error
        return Handle(self._gpu.allocate(size))

    def cuMemFree(self, address: Any) -> None:
        self._gpu.require_context()
        self._gpu.release(int(address), _DEVICE)

    def cuMemHostAlloc(self, size: int, flags: int) -> int:
        self._gpu.require_context()
        return self._gpu.allocate(size, _LOCKED)

    def cuMemFreeHost(self, address: int) -> None:
        self._gpu.require_context()
        self._gpu.release(address, _LOCKED)

    # Source: driver API, "API synchronization behavior": copies without a stream are on the legacy default
    # stream, which streams made with CU_STREAM_NON_BLOCKING neither wait for nor are waited for by; others
    # are asynchronous from and to page-locked memory alone, and so are a Misuse from and to any other.

    def cuMemcpyHtoD(self, target: Any, source: int, size: int) -> None:
        self._gpu.run_blocking()
        self._copy(self._gpu.bytes_at(int(target), size), _on_host(source, size))

    def cuMemcpyDtoH(self, target: int, source: Any, size: int) -> None:
        self._gpu.run_blocking()
        self._copy(_on_host(target, size), self._gpu.bytes_at(int(source), size))

    def cuMemcpyHtoDAsync(self, target: Any, source: int, size: int, stream: Any) -> None:
        self._tell(stream, (int(target), _DEVICE), (source, _LOCKED), size)

    def cuMemcpyDtoHAsync(self, target: int, source: Any, size: int, stream: Any) -> None:
        self._tell(stream, (target, _LOCKED), (int(source), _DEVICE), size)

    def cuMemcpyDtoDAsync(self, target: Any, source: Any, size: int, stream: Any) -> None:
        self._tell(stream, (int(target), _DEVICE), (int(source), _DEVICE), size)

    def cuPointerGetAttribute(self, attribute: Any, address: Any) -> int:
        assert attribute is Enumerations.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        if not self._gpu.is_memory(int(address)):
            raise Error
        return self._gpu.placed.get(int(address), 0)

    def cuStreamCreate(self, flags: int) -> Handle:
        self._gpu.require_context()
        stream = Stream(self._gpu, self._gpu.handle(), non_blocking=bool(flags & 1))
        self._gpu.streams[stream.handle] = stream
        self._gpu.count("stream", 1)
        return Handle(stream.handle)

    def cuStreamDestroy(self, stream: Any) -> None:
        self._gpu.require_context()
        self._gpu.streams.pop(int(stream)).run()
        self._gpu.count("stream", -1)

    def cuStreamSynchronize(self, stream: Any) -> None:
        self._gpu.require_context()
        self._gpu.streams[int(stream)].refuse_while_captured()
        self._gpu.streams[int(stream)].run()

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None:
        self._gpu.streams[int(stream)].tell(self._gpu.events[int(event)].wait)

    def cuEventCreate(self, flags: int) -> Handle:
        self._gpu.require_context()
        handle = self._gpu.handle()
        self._gpu.events[handle] = Event()
        self._gpu.count("event", 1)
        return Handle(handle)

    def cuEventDestroy(self, event: Any) -> None:
        del self._gpu.events[int(event)]
        self._gpu.count("event", -1)

    def cuEventRecord(self, event: Any, stream: Any) -> None:
        self._gpu.events[int(event)].record(self._gpu.streams[int(stream)])

    def cuEventSynchronize(self, event: Any) -> None:
        self._gpu.events[int(event)].wait()

    def cuEventElapsedTime(self, start: Any, end: Any) -> float:
        # Source: driver API, cuEventElapsedTime: CUDA_ERROR_NOT_READY before both have happened.
        first, last = (self._gpu.events[int(event)].time_ns for event in (start, end))
        if first is None or last is None:
            raise Error
        return (last - first) / 1e6

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> None:
        assert mode is Enumerations.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        found = self._gpu.streams[int(stream)]
        if found.queue:
            raise Misuse("a stream is captured while something is under way on it")
        found.captured, found.void = [], False

    def cuStreamEndCapture(self, stream: Any) -> Handle:
        # Source: cuStreamEndCapture: "if the capture was invalidated [...] a NULL graph will be returned".
        found = self._gpu.streams[int(stream)]
        if found.captured is None:
            raise Error
        actions, found.captured = found.captured, None
        if self._gpu.enter("cuStreamEndCapture") or found.void:
            raise Error
        return self._graph("graph", actions)

    def cuGraphInstantiate(self, graph: Any, flags: int) -> Handle:
        return self._graph("executable graph", list(self._gpu.graphs[int(graph)]))

    def cuGraphLaunch(self, executable: Any, stream: Any) -> None:
        for action in self._gpu.graphs[int(executable)]:
            self._gpu.streams[int(stream)].tell(action)
        self._gpu.launches += 1

    def cuGraphDestroy(self, graph: Any) -> None:
        del self._gpu.graphs[int(graph)]
        self._gpu.count("graph", -1)

    def cuGraphExecDestroy(self, executable: Any) -> None:
        # Source: cuGraphExecDestroy: "if the executable graph is in-flight, it will not be terminated, but
        # rather freed asynchronously on completion".
        self._gpu.run_all()
        del self._gpu.graphs[int(executable)]
        self._gpu.count("executable graph", -1)

    def _graph(self, kind: str, actions: list[Callable[[], None]]) -> Handle:
        handle = self._gpu.handle()
        self._gpu.graphs[handle] = actions
        self._gpu.count(kind, 1)
        return Handle(handle)

    def _tell(self, stream: Any, target: tuple[int, str], source: tuple[int, str], size: int) -> None:
        self._gpu.require_context()
        memory = self._gpu.bytes_at
        self._gpu.streams[int(stream)].tell(
            lambda: self._copy(memory(target[0], size, target[1]), memory(source[0], size, source[1]))
        )

    def _copy(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        target[:] = source
        self._gpu.clock_ns += COPY_NS


class Enumerations:
    """What cuda-bindings takes as its own enumerations alone. Source: driver.pyx; cuda.h for the numbers."""

    CUpointer_attribute = enum.IntEnum("CUpointer_attribute", {"CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL": 9})
    CUstreamCaptureMode = enum.IntEnum("CUstreamCaptureMode", {"CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": 1})


def _on_host(address: int, size: int) -> np.ndarray[Any, Any]:
    if not address:
        raise Misuse("a null pointer")
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)


def make_module(gpu: SimulatedGpu, driver: Any) -> types.ModuleType:
    """Return the module. Source: wrap_cudadrv.cpp, the names; cuda.hpp, what each calls."""
    module: Any = types.ModuleType("pycuda.driver")
    module.Error = type("Error", (Exception,), {})
    module.MemoryError = type("MemoryError", (module.Error,), {})

    def call(function: str, *arguments: Any) -> Any:
        # Source: cuda.hpp, error::make_message, and wrap_cudadrv.cpp, translate_cuda_error.
        code, *results = getattr(driver, function)(*arguments)
        if code:
            raise (module.MemoryError if code == 2 else module.Error)(f"{function} failed: {code.name}")
        return results[0] if results else None

    class Context:
        """Source: cuda.hpp, context_push and context::pop: of the stack's contexts CUDA has the top alone."""

        def __init__(self, handle: Any) -> None:
            self.handle = handle

        def push(self) -> None:
            if gpu.pycuda_stack:
                call("cuCtxPopCurrent")
            call("cuCtxPushCurrent", self.handle)
            gpu.pycuda_stack.append(self)

        @staticmethod
        def pop() -> None:
            gpu.pycuda_stack.pop()
            call("cuCtxPopCurrent")
            if gpu.pycuda_stack:
                call("cuCtxPushCurrent", gpu.pycuda_stack[-1].handle)

        @staticmethod
        def get_current() -> Context | None:
            return gpu.pycuda_stack[-1] if gpu.pycuda_stack else None

    class Device:
        def __init__(self, number: int) -> None:
            self.handle = call("cuDeviceGet", number)

        def retain_primary_context(self) -> Context:
            return Context(call("cuDevicePrimaryCtxRetain", self.handle))

    module.init = lambda: call("cuInit", 0)
    module.Device, module.Context = Device, Context
    return module


def install_libcuda(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    """Put libcuda where ctypes loads it. Source: the tests' own."""
    from qcompile.engines.tensorrt.runner import cuda

    library: Any = types.ModuleType("libcuda")
    library.__getattr__ = lambda symbol: partial(_call_by_ctypes, driver, symbol)
    monkeypatch.setattr(cuda, "load_library", lambda: library)


def _call_by_ctypes(driver: Any, symbol: str, *arguments: Any) -> int:
    """Source: driver API: functions return an error code, and write results where a pointer shows."""
    name = symbol.removesuffix("_v2").removesuffix("WithFlags")
    outputs = [value._obj for value in arguments if hasattr(value, "_obj")]
    inputs = [value.value for value in arguments if not hasattr(value, "_obj")]
    if name == "cuPointerGetAttribute":
        inputs[0] = driver.CUpointer_attribute(inputs[0])
    elif name == "cuStreamBeginCapture":
        inputs[1] = driver.CUstreamCaptureMode(inputs[1])
    code, *results = getattr(driver, name)(*inputs)
    for output, result in zip(outputs, results if not code else (), strict=False):
        output.value = result if isinstance(result, bytes | float) else int(result)
    return int(code)
