"""The part of `pycuda.driver` that is used here, on a simulated GPU; each name is one of PyCUDA 2026.1.

Sources: src/cpp/cuda.hpp ("cuda.hpp") and src/wrapper/wrap_cudadrv.cpp of inducer/pycuda; "driver API" as in
`simulated_cuda`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from simulated_cuda import (
    COPY_NS,
    Error,
    Event,
    LogicError,
    Misuse,
    OutOfMemory,
    SimulatedGpu,
    Stream,
    pointer,
)


def native(function: Callable[..., Any]) -> Callable[..., Any]:
    """Leave no frame with arguments in an error's traceback.

    Source: wrap_cudadrv.cpp: PyCUDA's functions are C++, whose frames no traceback has.
    """

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Error as error:
            del args, named
            raise error.with_traceback(None) from None

    return call


def make_module(gpu: SimulatedGpu) -> types.ModuleType:
    """Return the module. Its objects release what they hold when they are collected, as PyCUDA's do."""

    def current() -> Any:
        # Source: cuda.hpp, explicit_context_dependent::acquire_context: PyCUDA's own stack decides.
        gpu.require_context()
        if not gpu.pycuda_stack:
            raise LogicError("explicit_context_dependent failed: no currently active context?")
        return gpu.pycuda_stack[-1]

    class Owned:
        """What belongs to a context and is released once.

        Source: cuda.hpp, explicit_context_dependent and scoped_context_activation.
        """

        def _own(self) -> None:
            current()
            self._valid = True

        def _disown(self) -> bool:
            was, self._valid = getattr(self, "_valid", False), False
            return was

    class Context:
        def __init__(self, device: int) -> None:
            self.handle = gpu.primary(device)

        def push(self) -> None:
            # Source: cuda.hpp, context_push: "we maintain all contexts floating other than the top one".
            if gpu.pycuda_stack:
                gpu.stack.pop()
            gpu.stack.append(self.handle)
            gpu.pycuda_stack.append(self)

        @staticmethod
        def pop() -> None:
            # Source: cuda.hpp, context::pop and context::current_context, which drops invalid contexts.
            if not gpu.pycuda_stack:
                raise LogicError("context::pop failed: cannot pop non-current context")
            gpu.stack.pop()
            gpu.pycuda_stack.pop()
            if gpu.pycuda_stack:
                gpu.stack.append(gpu.pycuda_stack[-1].handle)

        @staticmethod
        def synchronize() -> None:
            gpu.require_context()
            gpu.check("Context.synchronize")
            gpu.run_all()

    class Device:
        def __init__(self, number: int) -> None:
            # Source: driver API, cuDeviceGet: CUDA_ERROR_INVALID_DEVICE beyond the last.
            gpu.check("Device")
            if number >= gpu.devices:
                raise LogicError("cuDeviceGet failed: invalid device ordinal")
            self._number = number

        def retain_primary_context(self) -> Context:
            # Source: cuda.hpp, device::retain_primary_context: retained, not pushed.
            gpu.check("retain_primary_context")
            gpu.retained[self._number] += 1
            return Context(self._number)

    class DeviceAllocation(Owned):
        def __init__(self, size: int) -> None:
            # Source: driver API, cuMemAlloc: "if bytesize is 0 [it] returns CUDA_ERROR_INVALID_VALUE".
            if size < 1:
                raise LogicError("cuMemAlloc failed: invalid argument")
            self._own()
            self._valid = False
            self._address = gpu.allocate(size)
            self._valid = True

        def __int__(self) -> int:
            return self._address

        __index__ = __int__

        def free(self) -> None:
            # Source: cuda.hpp, device_allocation::free: a second time throws CUDA_ERROR_INVALID_HANDLE.
            if not self._valid:
                raise Misuse("device_allocation::free: invalid handle")
            if self._disown():
                gpu.release(self._address, "device memory")

        def __del__(self) -> None:
            if self._disown():
                gpu.release(self._address, "device memory")

    class PagelockedHostAllocation(Owned):
        """Source: wrap_cudadrv.cpp, numpy_empty<pagelocked_host_allocation>: the array's base owns it."""

        def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
            self._own()
            self._valid = False
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            self._address = gpu.allocate(size, "page-locked memory")
            self._valid = True
            self.__array_interface__ = {
                "shape": shape,
                "typestr": np.dtype(dtype).str,
                "data": (self._address, False),
                "version": 3,
            }

        def __del__(self) -> None:
            if self._disown():
                gpu.release(self._address, "page-locked memory")

    class PyStream(Owned):
        def __init__(self, flags: int = 0) -> None:
            gpu.check("Stream")
            self._own()
            self.flags = flags
            self._stream = Stream(gpu, gpu.handle(), non_blocking=bool(flags & 1))
            gpu.streams[self._stream.handle] = self._stream
            gpu.count("stream", 1)

        @property
        def handle(self) -> int:
            return self._stream.handle

        @native
        def synchronize(self) -> None:
            gpu.require_context()
            self._stream.refuse_while_captured()
            gpu.check("Stream.synchronize")
            self._stream.run()

        @native
        def wait_for_event(self, event: PyEvent) -> None:
            gpu.check("wait_for_event")
            self._stream.tell(event._event.wait)

        def __del__(self) -> None:
            if self._disown():
                self._stream.run()
                del gpu.streams[self._stream.handle]
                gpu.count("stream", -1)

    class PyEvent(Owned):
        def __init__(self, flags: int = 0) -> None:
            gpu.check("Event")
            self._own()
            self._event = Event()
            gpu.count("event", 1)

        @native
        def record(self, stream: PyStream) -> PyEvent:
            gpu.check("Event.record")
            self._event.record(stream._stream)
            return self

        @native
        def synchronize(self) -> None:
            gpu.check("Event.synchronize")
            self._event.wait()

        def time_since(self, start: PyEvent) -> float:
            # Source: driver API, cuEventElapsedTime: CUDA_ERROR_NOT_READY before both have happened.
            if self._event.time_ns is None or start._event.time_ns is None:
                raise LogicError("cuEventElapsedTime failed: device not ready")
            return (self._event.time_ns - start._event.time_ns) / 1e6

        def __del__(self) -> None:
            if self._disown():
                gpu.count("event", -1)

    @native
    def mem_alloc(size: int) -> DeviceAllocation:
        gpu.check("mem_alloc")
        return DeviceAllocation(size)

    @native
    def pagelocked_empty(shape: int | Sequence[int], dtype: Any) -> Any:
        gpu.check("pagelocked_empty alloc")
        return np.asarray(
            PagelockedHostAllocation((shape,) if isinstance(shape, int) else tuple(shape), dtype)
        )

    def copy(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        target[:] = source
        gpu.clock_ns += COPY_NS

    def buffer(array: Any) -> tuple[int, int]:
        # Source: wrap_cudadrv.cpp, py_buffer_wrapper.
        view = memoryview(array)  # only what has the buffer protocol, as PyCUDA asks for it
        return pointer(np.asarray(array)), view.nbytes

    @native
    def memcpy_htod(dest: int, src: Any) -> None:
        # Source: driver API, "API synchronization behavior": on the legacy default stream, which streams made
        # with CU_STREAM_NON_BLOCKING neither wait for nor are waited for by.
        gpu.require_context()
        gpu.check("memcpy_htod")
        gpu.run_blocking()
        copy(gpu.bytes_at(int(dest), buffer(src)[1]), np.asarray(src).reshape(-1).view(np.uint8))

    @native
    def memcpy_dtoh(dest: Any, src: int) -> None:
        gpu.require_context()
        gpu.check("memcpy_dtoh")
        gpu.run_blocking()
        copy(np.asarray(dest).reshape(-1).view(np.uint8), gpu.bytes_at(int(src), buffer(dest)[1]))

    @native
    def memcpy_htod_async(dest: int, src: Any, stream: PyStream) -> None:
        # Source: driver API, "API synchronization behavior": asynchronous from page-locked memory alone, and
        # so an error from any other.
        gpu.require_context()
        gpu.check("memcpy_htod_async")
        address, size = buffer(src)
        stream._stream.tell(
            lambda: copy(gpu.bytes_at(int(dest), size), gpu.bytes_at(address, size, "page-locked memory"))
        )

    @native
    def memcpy_dtoh_async(dest: Any, src: int, stream: PyStream) -> None:
        gpu.require_context()
        gpu.check("memcpy_dtoh_async")
        address, size = buffer(dest)
        stream._stream.tell(
            lambda: copy(gpu.bytes_at(address, size, "page-locked memory"), gpu.bytes_at(int(src), size))
        )

    @native
    def memcpy_dtod_async(dest: int, src: int, size: int, stream: PyStream) -> None:
        # Source: PyCUDA's documentation, pycuda.driver.memcpy_dtod_async(dest, src, size, stream=None).
        gpu.require_context()
        gpu.check("memcpy_dtod_async")
        stream._stream.tell(
            lambda: copy(gpu.bytes_at(int(dest), int(size)), gpu.bytes_at(int(src), int(size)))
        )

    module: Any = types.ModuleType("pycuda.driver")
    module.init = lambda: gpu.check("init")
    module.Error, module.MemoryError, module.LogicError = Error, OutOfMemory, LogicError
    module.Device, module.Context, module.Stream, module.Event = Device, Context, PyStream, PyEvent
    module.mem_alloc, module.pagelocked_empty = mem_alloc, pagelocked_empty
    module.memcpy_htod, module.memcpy_dtoh = memcpy_htod, memcpy_dtoh
    module.memcpy_htod_async, module.memcpy_dtoh_async = memcpy_htod_async, memcpy_dtoh_async
    module.memcpy_dtod_async = memcpy_dtod_async
    return module
