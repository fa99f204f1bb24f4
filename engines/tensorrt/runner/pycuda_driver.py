"""CUDA's driver by PyCUDA; what PyCUDA 2026.1 lacks, graphs and foreign streams, by ctypes on libcuda."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import first_line
from .cuda import NON_BLOCKING, Cuda, CudaError, OutOfMemory

_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "c": ctypes.c_char_p}
_PARAMETERS = {
    "cuCtxSynchronize": "", "cuEventCreate": "Pi", "cuEventDestroy": "p", "cuEventRecord": "pp",
    "cuGetErrorName": "iC", "cuGraphDestroy": "p", "cuGraphExecDestroy": "p", "cuGraphInstantiate": "Ppp",
    "cuGraphLaunch": "pp", "cuPointerGetAttribute": "Iip", "cuStreamBeginCapture": "pi",
    "cuStreamEndCapture": "pP", "cuStreamSynchronize": "p", "cuStreamWaitEvent": "ppi",
}  # fmt: skip
"""Function of cuda-bindings to its parameters in C, p what has 64 bits; capitals are results."""
_ENDINGS = {"cuEventDestroy": "_v2", "cuGraphInstantiate": "WithFlags", "cuStreamBeginCapture": "_v2"}
"""Function to what its symbol in libcuda ends with since CUDA 11.4."""


@cache
def load_library() -> Any:
    """Return libcuda."""
    return ctypes.CDLL("libcuda.so.1")


class PyCuda(Cuda):
    """The interface of `Cuda` over the module `pycuda.driver`."""

    def __init__(self, package: Any) -> None:
        self.package, self.driver = package, _Libcuda(load_library())

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of PyCUDA, and translate its errors."""
        natives = (value.native if isinstance(value, _Object) else value for value in arguments)
        try:
            return function(*natives)
        except self.package.Error as error:
            kind = OutOfMemory if isinstance(error, self.package.MemoryError) else CudaError
            raise kind(first_line(error)) from error.with_traceback(None)  # it would keep callers' frames

    def retain(self, device: int) -> Any:
        self.run(self.package.init)
        return self.run(self.run(self.package.Device, device).retain_primary_context)

    def push(self, context: Any) -> None:
        self.run(context.push)

    def pop(self) -> None:
        self.run(self.package.Context.pop)

    def stream(self) -> Any:
        return _Object(self, self.package.Stream, NON_BLOCKING)

    def event(self) -> Any:
        return _Object(self, self.package.Event)

    def mem_alloc(self, size_bytes: int) -> Any:
        return _Object(self, self.package.mem_alloc, size_bytes)

    def pagelocked_empty(self, size_bytes: int) -> NDArray[np.uint8]:
        held = _Object(self, self.package.pagelocked_empty, size_bytes, np.uint8)
        memory = (ctypes.c_uint8 * size_bytes).from_address(held.native.ctypes.data)
        weakref.finalize(memory, held.free).atexit = False
        return np.frombuffer(memoryview(memory), np.uint8)

    def copy_to_device(self, target: int, source: NDArray[np.uint8], stream: Any = None) -> None:
        self._copy("memcpy_htod", target, source, stream=stream)

    def copy_to_host(self, target: NDArray[np.uint8], source: int, stream: Any = None) -> None:
        self._copy("memcpy_dtoh", target, source, stream=stream)

    def copy_on_device(self, target: int, source: int, size_bytes: int, stream: Any) -> None:
        self._copy("memcpy_dtod", target, source, size_bytes, stream=stream)

    def _copy(self, function: str, *arguments: Any, stream: Any) -> None:
        if stream is not None:
            function, arguments = f"{function}_async", (*arguments, stream)
        self.run(getattr(self.package, function), *arguments)


class _Object:
    """An object of PyCUDA, which ends with its context current: else PyCUDA leaks it in another thread."""

    def __init__(self, cuda: PyCuda, create: Callable[..., Any], *arguments: Any) -> None:
        self.native: Any = None
        self._cuda, self._context = cuda, cuda.package.Context.get_current()
        self.native = cuda.run(create, *arguments)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.native, name)
        return partial(self._cuda.run, value) if callable(value) else value

    def __int__(self) -> int:
        return int(self.native)

    def free(self) -> None:
        if self.native is not None:
            with suppress(CudaError):
                self._cuda.push(self._context)
                self.native = None
                self._cuda.pop()

    __del__ = free


class _Libcuda:
    """Functions of libcuda, called as those of cuda-bindings."""

    CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL=9)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        kinds = _PARAMETERS[name]
        function = getattr(self._library, name + _ENDINGS.get(name, ""))

        def call(*arguments: Any) -> tuple[Any, ...]:
            inputs = iter(arguments)
            results: list[Any] = [_TYPES[kind.lower()]() for kind in kinds if kind.isupper()]
            outputs = iter(map(ctypes.byref, results))
            values = (next(outputs) if kind.isupper() else _TYPES[kind](next(inputs)) for kind in kinds)
            code = function(*values)
            return (code, *(result.value for result in results))

        return call
