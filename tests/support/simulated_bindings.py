# ruff: noqa: N802 - the names are the driver's
"""The part of `cuda.bindings.driver` that is used here, on a simulated GPU.

Sources: NVIDIA/cuda-python, cuda_bindings/cuda/bindings/driver.pyx ("driver.pyx"): each function returns a
tuple of `CUresult` and its results, None in their place where it fails, and takes handles as its own types
or as integers; "driver API" as in `simulated_cuda`. What a call that fails is counted as is named as in
`simulated_pycuda`, for tests of both.
"""

from __future__ import annotations

import ctypes
import enum
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from simulated_cuda import COPY_NS, Error, Event, LogicError, Misuse, OutOfMemory, SimulatedGpu, Stream


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


def answering(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """Answer by an error code, without frames in a traceback.

    Source: documentation of cuda-bindings, and driver.pyx, which is compiled.
    """

    def call(*arguments: Any) -> tuple[Any, ...]:
        try:
            result = function(*arguments)
        except Error as error:
            kind = "OUT_OF_MEMORY" if isinstance(error, OutOfMemory) else "UNKNOWN"
            return CUresult[f"CUDA_ERROR_{kind}"], None
        return (CUresult.CUDA_SUCCESS,) if result is None else (CUresult.CUDA_SUCCESS, result)

    return call


class Functions:
    """The functions. Source: driver API, each function's page; what a copy may touch: `simulated_pycuda`."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu

    def cuInit(self, flags: int) -> None:
        self._gpu.check("init")

    def cuDeviceGet(self, ordinal: int) -> Handle:
        # Source: driver API, cuDeviceGet: CUDA_ERROR_INVALID_DEVICE beyond the last.
        self._gpu.check("Device")
        if ordinal >= self._gpu.devices:
            raise LogicError("invalid device ordinal")
        return Handle(ordinal)

    def cuDevicePrimaryCtxRetain(self, device: Any) -> Handle:
        self._gpu.check("retain_primary_context")
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
        self._gpu.check("Context.synchronize")
        self._gpu.run_all()

    def cuMemAlloc(self, size: int) -> Handle:
        # Source: driver API, cuMemAlloc: "if bytesize is 0 [it] returns CUDA_ERROR_INVALID_VALUE".
        self._gpu.require_context()
        self._gpu.check("mem_alloc")
        if size < 1:
            raise LogicError("invalid argument")
        return Handle(self._gpu.allocate(size))

    def cuMemFree(self, address: Any) -> None:
        self._gpu.require_context()
        self._gpu.release(int(address), "device memory")

    def cuMemHostAlloc(self, size: int, flags: int) -> int:
        self._gpu.require_context()
        self._gpu.check("pagelocked_empty alloc")
        return self._gpu.allocate(size, "page-locked memory")

    def cuMemFreeHost(self, address: int) -> None:
        self._gpu.require_context()
        self._gpu.release(address, "page-locked memory")

    def cuMemcpyHtoD(self, target: Any, source: int, size: int) -> None:
        self._blocking("memcpy_htod")
        self._copy(self._gpu.bytes_at(int(target), size), _on_host(source, size))

    def cuMemcpyDtoH(self, target: int, source: Any, size: int) -> None:
        self._blocking("memcpy_dtoh")
        self._copy(_on_host(target, size), self._gpu.bytes_at(int(source), size))

    def cuMemcpyHtoDAsync(self, target: Any, source: int, size: int, stream: Any) -> None:
        self._tell("memcpy_htod_async", stream, (int(target), "device memory"), (source, _LOCKED), size)

    def cuMemcpyDtoHAsync(self, target: int, source: Any, size: int, stream: Any) -> None:
        self._tell("memcpy_dtoh_async", stream, (target, _LOCKED), (int(source), "device memory"), size)

    def cuMemcpyDtoDAsync(self, target: Any, source: Any, size: int, stream: Any) -> None:
        places = (int(target), "device memory"), (int(source), "device memory")
        self._tell("memcpy_dtod_async", stream, *places, size)

    def cuStreamCreate(self, flags: int) -> Handle:
        self._gpu.require_context()
        self._gpu.check("Stream")
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
        self._gpu.check("Stream.synchronize")
        self._gpu.streams[int(stream)].run()

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None:
        self._gpu.check("wait_for_event")
        self._gpu.streams[int(stream)].tell(self._gpu.events[int(event)].wait)

    def cuEventCreate(self, flags: int) -> Handle:
        self._gpu.require_context()
        self._gpu.check("Event")
        handle = self._gpu.handle()
        self._gpu.events[handle] = Event()
        self._gpu.count("event", 1)
        return Handle(handle)

    def cuEventDestroy(self, event: Any) -> None:
        del self._gpu.events[int(event)]
        self._gpu.count("event", -1)

    def cuEventRecord(self, event: Any, stream: Any) -> None:
        self._gpu.check("Event.record")
        self._gpu.events[int(event)].record(self._gpu.streams[int(stream)])

    def cuEventSynchronize(self, event: Any) -> None:
        self._gpu.check("Event.synchronize")
        self._gpu.events[int(event)].wait()

    def cuEventElapsedTime(self, start: Any, end: Any) -> float:
        # Source: driver API, cuEventElapsedTime: CUDA_ERROR_NOT_READY before both have happened.
        first, last = (self._gpu.events[int(event)].time_ns for event in (start, end))
        if first is None or last is None:
            raise LogicError("device not ready")
        return (last - first) / 1e6

    def _blocking(self, call: str) -> None:
        self._gpu.require_context()
        self._gpu.check(call)
        self._gpu.run_blocking()

    def _tell(
        self, call: str, stream: Any, target: tuple[int, str], source: tuple[int, str], size: int
    ) -> None:
        self._gpu.require_context()
        self._gpu.check(call)
        memory = self._gpu.bytes_at
        self._gpu.streams[int(stream)].tell(
            lambda: self._copy(memory(target[0], size, target[1]), memory(source[0], size, source[1]))
        )

    def _copy(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        target[:] = source
        self._gpu.clock_ns += COPY_NS


_LOCKED = "page-locked memory"


def _on_host(address: int, size: int) -> np.ndarray[Any, Any]:
    if not address:
        raise Misuse("a null pointer")
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)


def make_module(gpu: SimulatedGpu) -> types.ModuleType:
    """Return the module.

    Source: the tests' own.
    """
    module: Any = types.ModuleType("cuda.bindings.driver")
    module.CUresult = CUresult
    functions = Functions(gpu)
    for name in vars(Functions):
        if name.startswith("cu"):
            setattr(module, name, answering(getattr(functions, name)))
    return module  # type: ignore[no-any-return]
