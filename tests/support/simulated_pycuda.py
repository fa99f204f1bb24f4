"""The part of `pycuda.driver` that is used here, on the simulated driver; and libcuda as ctypes calls it.

Sources: src/cpp/cuda.hpp ("cuda.hpp") and src/wrapper/wrap_cudadrv.cpp of inducer/pycuda 2026.1.
"""

from __future__ import annotations

import threading
import types
from functools import partial
from typing import Any

import numpy as np
import pytest
from simulated_cuda import SimulatedGpu


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
            self.handle, self.thread = handle, threading.get_ident()

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

    class Owned:
        """What a context owns. Source: cuda.hpp, explicit_context_dependent, scoped_context_activation."""

        def __init__(self, create: str, destroy: str, *arguments: Any) -> None:
            self._context, self._destroy = Context.get_current(), ""
            if self._context is None:
                raise module.Error("explicit_context_dependent failed")
            self.handle = int(call(create, *arguments))
            self._destroy = destroy

        def __int__(self) -> int:
            return self.handle

        def __del__(self) -> None:
            switch = Context.get_current() is not self._context
            if self._destroy and switch and self._context.thread != threading.get_ident():
                gpu.complaints.append("an object in out-of-thread context could not be cleaned up")
            elif self._destroy:
                if switch:
                    self._context.push()
                call(self._destroy, self.handle)
                if switch:
                    Context.pop()

    class Stream(Owned):
        def __init__(self, flags: int = 0) -> None:
            super().__init__("cuStreamCreate", "cuStreamDestroy", flags)
            self.synchronize = partial(call, "cuStreamSynchronize", self.handle)

        def wait_for_event(self, event: Event) -> None:
            call("cuStreamWaitEvent", self.handle, event.handle, 0)

    class Event(Owned):
        def __init__(self, flags: int = 0) -> None:
            super().__init__("cuEventCreate", "cuEventDestroy", flags)
            self.synchronize = partial(call, "cuEventSynchronize", self.handle)

        def record(self, stream: Stream) -> None:
            call("cuEventRecord", self.handle, stream.handle)

        def time_till(self, end: Event) -> float:
            return float(call("cuEventElapsedTime", self.handle, end.handle))

    def pagelocked_empty(shape: int, dtype: Any) -> Any:
        # Source: wrap_cudadrv.cpp, numpy_empty<pagelocked_host_allocation>: the array's base owns it.
        owner: Any = Owned("cuMemHostAlloc", "cuMemFreeHost", shape * np.dtype(dtype).itemsize, 0)
        data, kind = (owner.handle, False), np.dtype(dtype).str
        owner.__array_interface__ = {"shape": (shape,), "typestr": kind, "data": data, "version": 3}
        return np.asarray(owner)

    def copy(function: str, *arguments: Any) -> None:
        # Source: wrap_cudadrv.cpp, py_buffer_wrapper: what has the buffer protocol is its address and size.
        arrays = [value for value in arguments if isinstance(value, np.ndarray)]
        plain = [value.ctypes.data if isinstance(value, np.ndarray) else value for value in arguments]
        stream = [plain.pop().handle] if isinstance(arguments[-1], Stream) else []
        call(function, *plain, *(array.nbytes for array in arrays), *stream)

    module.init = lambda: call("cuInit", 0)
    module.Device, module.Context, module.Stream, module.Event = Device, Context, Stream, Event
    module.mem_alloc = lambda size: Owned("cuMemAlloc", "cuMemFree", size)
    module.pagelocked_empty = pagelocked_empty
    for kind in ("HtoD", "DtoH", "DtoD"):
        setattr(module, f"memcpy_{kind.lower()}", partial(copy, f"cuMemcpy{kind}"))
        setattr(module, f"memcpy_{kind.lower()}_async", partial(copy, f"cuMemcpy{kind}Async"))
    return module


def install_libcuda(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    """Put libcuda where ctypes loads it. Source: the tests' own."""
    from qcompile.engines.tensorrt.runner import pycuda_driver

    library: Any = types.ModuleType("libcuda")
    library.__getattr__ = lambda symbol: partial(_call_by_ctypes, driver, symbol)
    monkeypatch.setattr(pycuda_driver, "load_library", lambda: library)


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
        output.value = result if isinstance(result, bytes) else int(result)
    return int(code)
