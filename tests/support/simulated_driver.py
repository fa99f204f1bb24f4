# ruff: noqa: N802 - the names are the driver's
"""libcuda as ctypes calls it, and PyCUDA on it, on a simulated GPU.

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
from simulated_cuda import COPY_NS, Error, Event, Misuse, OutOfMemory, SimulatedGpu, Stream


class CUresult(enum.IntEnum):
    """Source: driver API, CUresult."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_UNKNOWN = 999


_NEVER_FAIL = (
    "CtxP", "CtxGet", "ErrorName", "Free", "Destroy", "PointerGet", "ElapsedTime", "EndCapture",
    "DeviceGetC", "DeviceGetN", "DeviceGetA", "DeviceGetP", "TotalMem", "GetVersion",
)  # fmt: skip
_DEVICE, _LOCKED = "device memory", "page-locked memory"


class Functions:
    """The functions. Source: driver API, each function's page."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu

    def cuGetErrorName(self, error: int) -> bytes:
        return CUresult(error).name.encode()

    def cuInit(self, flags: int) -> None:
        # Source: driver API, CUDA_ERROR_NO_DEVICE.
        if not self._gpu.devices:
            raise Error

    def cuDriverGetVersion(self) -> int:
        return 12040  # Source: driver API, cuDriverGetVersion: "(1000 * major + 10 * minor)"

    def cuDeviceGetCount(self) -> int:
        return self._gpu.devices

    def cuDeviceGet(self, ordinal: int) -> int:
        # Source: driver API, cuDeviceGet: CUDA_ERROR_INVALID_DEVICE beyond the last.
        if ordinal >= self._gpu.devices:
            raise Error
        return ordinal

    def cuDeviceGetName(self, text: int, length: int, device: int) -> None:
        _write_text(text, self._gpu.name, length)

    def cuDeviceGetPCIBusId(self, text: int, length: int, device: int) -> None:
        # Source: driver API, cuDeviceGetPCIBusId: "[domain]:[bus]:[device].[function]".
        _write_text(text, f"0000:{device:02x}:00.0", length)

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> int:
        # Source: cuda.h, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
        return {75: 8, 76: 6}[attribute]

    def cuDeviceTotalMem(self, device: int) -> int:
        return self._gpu.memory_bytes

    def cuDevicePrimaryCtxRetain(self, device: int) -> int:
        self._gpu.retained[device] += 1
        return self._gpu.primary(device)

    def cuCtxPushCurrent(self, context: int) -> None:
        self._gpu.stack.append(context)

    def cuCtxPopCurrent(self) -> int:
        self._gpu.require_context()
        return self._gpu.stack.pop()

    def cuCtxGetCurrent(self) -> int:
        return self._gpu.stack[-1] if self._gpu.stack else 0

    def cuCtxSynchronize(self) -> None:
        self._gpu.require_context()
        self._gpu.run_all()

    def cuMemAlloc(self, size: int) -> int:
        # Source: driver API, cuMemAlloc: "if bytesize is 0 [it] returns CUDA_ERROR_INVALID_VALUE".
        self._gpu.require_context()
        if size < 1:
            raise Error
        return self._gpu.allocate(size)

    def cuMemFree(self, address: int) -> None:
        self._gpu.require_context()
        self._gpu.release(address, _DEVICE)

    def cuMemHostAlloc(self, size: int, flags: int) -> int:
        self._gpu.require_context()
        return self._gpu.allocate(size, _LOCKED)

    def cuMemFreeHost(self, address: int) -> None:
        self._gpu.require_context()
        self._gpu.release(address, _LOCKED)

    # Source: driver API, "API synchronization behavior": copies without a stream are on the legacy default
    # stream, which streams made with CU_STREAM_NON_BLOCKING neither wait for nor are waited for by; others
    # are asynchronous from and to page-locked memory alone, and so are a Misuse from and to any other.

    def cuMemcpyHtoD(self, target: int, source: int, size: int) -> None:
        self._gpu.run_blocking()
        self._copy(self._gpu.bytes_at(target, size), _on_host(source, size))

    def cuMemcpyDtoH(self, target: int, source: int, size: int) -> None:
        self._gpu.run_blocking()
        self._copy(_on_host(target, size), self._gpu.bytes_at(source, size))

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self._tell(stream, (target, _DEVICE), (source, _LOCKED), size)

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self._tell(stream, (target, _LOCKED), (source, _DEVICE), size)

    def cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self._tell(stream, (target, _DEVICE), (source, _DEVICE), size)

    def cuPointerGetAttribute(self, attribute: int, address: int) -> int:
        assert attribute == 9  # Source: cuda.h, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        if not self._gpu.is_memory(address):
            raise Error
        return self._gpu.placed.get(address, 0)

    def cuStreamCreate(self, flags: int) -> int:
        self._gpu.require_context()
        stream = Stream(self._gpu, self._gpu.handle(), non_blocking=bool(flags & 1))
        self._gpu.streams[stream.handle] = stream
        self._gpu.count("stream", 1)
        return stream.handle

    def cuStreamDestroy(self, stream: int) -> None:
        self._gpu.require_context()
        self._gpu.streams.pop(stream).run()
        self._gpu.count("stream", -1)

    def cuStreamSynchronize(self, stream: int) -> None:
        self._gpu.require_context()
        self._gpu.streams[stream].refuse_while_captured()
        self._gpu.streams[stream].run()

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        self._gpu.streams[stream].tell(self._gpu.events[event].wait)

    def cuEventCreate(self, flags: int) -> int:
        self._gpu.require_context()
        handle = self._gpu.handle()
        self._gpu.events[handle] = Event()
        self._gpu.count("event", 1)
        return handle

    def cuEventDestroy(self, event: int) -> None:
        del self._gpu.events[event]
        self._gpu.count("event", -1)

    def cuEventRecord(self, event: int, stream: int) -> None:
        self._gpu.events[event].record(self._gpu.streams[stream])

    def cuEventSynchronize(self, event: int) -> None:
        self._gpu.events[event].wait()

    def cuEventElapsedTime(self, start: int, end: int) -> float:
        # Source: driver API, cuEventElapsedTime: CUDA_ERROR_NOT_READY before both have happened.
        first, last = (self._gpu.events[event].time_ns for event in (start, end))
        if first is None or last is None:
            raise Error
        return (last - first) / 1e6

    def cuStreamBeginCapture(self, stream: int, mode: int) -> None:
        assert mode == 1  # Source: cuda.h, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        found = self._gpu.streams[stream]
        if found.queue:
            raise Misuse("a stream is captured while something is under way on it")
        found.captured, found.void = [], False

    def cuStreamEndCapture(self, stream: int) -> int:
        # Source: cuStreamEndCapture: "if the capture was invalidated [...] a NULL graph will be returned".
        found = self._gpu.streams[stream]
        if found.captured is None:
            raise Error
        actions, found.captured = found.captured, None
        if self._gpu.enter("cuStreamEndCapture") or found.void:
            raise Error
        return self._graph("graph", actions)

    def cuGraphInstantiate(self, graph: int, flags: int) -> int:
        return self._graph("executable graph", list(self._gpu.graphs[graph]))

    def cuGraphLaunch(self, executable: int, stream: int) -> None:
        for action in self._gpu.graphs[executable]:
            self._gpu.streams[stream].tell(action)
        self._gpu.launches += 1

    def cuGraphDestroy(self, graph: int) -> None:
        del self._gpu.graphs[graph]
        self._gpu.count("graph", -1)

    def cuGraphExecDestroy(self, executable: int) -> None:
        # Source: cuGraphExecDestroy: "if the executable graph is in-flight, it will not be terminated, but
        # rather freed asynchronously on completion".
        self._gpu.run_all()
        del self._gpu.graphs[executable]
        self._gpu.count("executable graph", -1)

    def _graph(self, kind: str, actions: list[Callable[[], None]]) -> int:
        handle = self._gpu.handle()
        self._gpu.graphs[handle] = actions
        self._gpu.count(kind, 1)
        return handle

    def _tell(self, stream: int, target: tuple[int, str], source: tuple[int, str], size: int) -> None:
        self._gpu.require_context()
        memory = self._gpu.bytes_at
        self._gpu.streams[stream].tell(
            lambda: self._copy(memory(target[0], size, target[1]), memory(source[0], size, source[1]))
        )

    def _copy(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        target[:] = source
        self._gpu.clock_ns += COPY_NS


def _on_host(address: int, size: int) -> np.ndarray[Any, Any]:
    if not address:
        raise Misuse("a null pointer")
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)


def _write_text(address: int, text: str, length: int) -> None:
    data = text.encode()[: length - 1] + b"\0"
    ctypes.memmove(address, data, len(data))


class Library:
    """libcuda as ctypes loads it.

    Source: driver API: functions return an error code, and write results where a pointer shows.
    """

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu, self._functions = gpu, Functions(gpu)

    def __getattr__(self, symbol: str) -> Callable[..., int]:
        return partial(self._call, symbol.removesuffix("_v2").removesuffix("WithFlags"))

    def ask(self, name: str, *arguments: Any) -> tuple[CUresult, Any]:
        """Return the code and the result of a function: a code has no frames, as an exception has."""
        try:
            if not any(part in name for part in _NEVER_FAIL):
                self._gpu.check(name)
            return CUresult.CUDA_SUCCESS, getattr(self._functions, name)(*arguments)
        except Error as error:
            kind = "OUT_OF_MEMORY" if isinstance(error, OutOfMemory) else "UNKNOWN"
            return CUresult[f"CUDA_ERROR_{kind}"], None

    def _call(self, name: str, *arguments: Any) -> int:
        outputs = [value._obj for value in arguments if hasattr(value, "_obj")]
        code, result = self.ask(
            name, *(value.value or 0 for value in arguments if not hasattr(value, "_obj"))
        )
        if outputs and not code:
            outputs[0].value = result
        return int(code)


def make_pycuda(gpu: SimulatedGpu, library: Library) -> types.ModuleType:
    """Return `pycuda.driver`. Source: wrap_cudadrv.cpp, the names; cuda.hpp, what each calls."""
    module: Any = types.ModuleType("pycuda.driver")
    module.Error = type("Error", (Exception,), {})
    module.MemoryError = type("MemoryError", (module.Error,), {})

    def call(function: str, *arguments: Any) -> Any:
        # Source: cuda.hpp, error::make_message, and wrap_cudadrv.cpp, translate_cuda_error.
        code, result = library.ask(function, *arguments)
        if code:
            raise (module.MemoryError if code == 2 else module.Error)(f"{function} failed: {code.name}")
        return result

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

    class Allocation:
        """Source: cuda.hpp, device_allocation: it is freed with its last reference."""

        def __init__(self, size: int) -> None:
            self._address = call("cuMemAlloc", size)

        def __int__(self) -> int:
            return int(self._address)

        def __del__(self) -> None:
            call("cuMemFree", self._address)

    class Stream:
        """Source: cuda.hpp, stream, whose flags are 0."""

        def __init__(self) -> None:
            self.handle = call("cuStreamCreate", 0)

        def synchronize(self) -> None:
            call("cuStreamSynchronize", self.handle)

        def __del__(self) -> None:
            call("cuStreamDestroy", self.handle)

    # Source: wrap_cudadrv.cpp, py_memcpy_htod and py_memcpy_dtoh: the buffer's bytes, whatever their type.
    module.memcpy_htod = lambda to, array: call("cuMemcpyHtoD", int(to), array.ctypes.data, array.nbytes)
    module.memcpy_dtoh = lambda array, at: call("cuMemcpyDtoH", array.ctypes.data, int(at), array.nbytes)
    module.init = lambda: call("cuInit", 0)
    module.Device, module.Context = Device, Context
    module.mem_alloc, module.Stream = Allocation, Stream
    return module
