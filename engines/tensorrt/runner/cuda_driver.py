"""CUDA's driver: through PyCUDA where it is installed, else through cuda-bindings; and CUDA graphs.

The interface is the part of `pycuda.driver` that is used here. `CudaBindings` has the same names over
cuda-bindings, which is a wheel: PyCUDA is compiled with CUDA's headers. What PyCUDA 2026.1 lacks, graphs and
foreign streams, `CudaDriver` has for both, by ctypes. Functions are named as in the driver API,
https://docs.nvidia.com/cuda/cuda-driver-api/; all are in drivers of CUDA 11.4 and newer.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....errors import first_line

NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: nothing waits for the default stream, or makes it wait."""

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may go on allocating
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


class DriverError(Exception):
    """A driver function failed; the message names it and the error."""


class OutOfMemory(DriverError):
    """The device's memory, or page-locked memory, does not suffice."""


def load_cuda() -> Any:
    """Return `pycuda.driver`, or its names over cuda-bindings.

    Raises:
        ImportError: If neither can be imported.
    """
    try:
        import pycuda.driver
    except Exception as error:  # ImportError, of a library of the toolkit too, or a driver that is too old
        reason = first_line(error)
    else:
        return pycuda.driver
    try:
        from cuda.bindings import driver
    except Exception as error:
        raise ImportError(
            f"neither cuda-bindings nor PyCUDA can be imported ({first_line(error)}; {reason})"
        ) from error
    return CudaBindings(driver)


@dataclass(frozen=True)
class CudaBindings:
    """The names of `pycuda.driver` that are used here; objects free what they hold when they are collected.

    Attributes:
        driver: The module `cuda.bindings.driver`; each function returns an error code, then its results.
    """

    driver: Any
    Error: ClassVar = DriverError
    MemoryError: ClassVar = OutOfMemory

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the driver and return its result, None where it has none.

        Raises:
            DriverError: If it fails.
        """
        try:
            code, *results = getattr(self.driver, function)(*arguments)
        except RuntimeError as error:  # cuda-bindings: the driver is older, and has no such function
            raise DriverError(f"{function}: {first_line(error)}") from error
        if int(code):
            kind = OutOfMemory if int(code) == _OUT_OF_MEMORY else DriverError
            raise kind(f"{function}: {code.name} ({int(code)})")
        return results[0] if results else None

    def owned(self, owner: object, function: str, handle: int) -> Callable[[], object]:
        """Let a function free a handle, once, in the context of now, at the latest with the owner."""
        driver, context = self.driver, self.call("cuCtxGetCurrent")

        def free() -> None:
            if not int(driver.cuCtxPushCurrent(context)[0]):
                getattr(driver, function)(handle)
                driver.cuCtxPopCurrent()

        finalize = weakref.finalize(owner, free)
        finalize.atexit = False  # the process gives all back
        return finalize

    def init(self) -> None:
        """Load the driver."""
        self.call("cuInit", 0)

    @property
    def Device(self) -> Callable[[int], _Device]:  # noqa: N802
        """A device, by its number."""
        return partial(_Device, self)

    @property
    def Context(self) -> _Context:  # noqa: N802
        """What concerns the current context."""
        return _Context(self, None)

    @property
    def Stream(self) -> Callable[[int], _Stream]:  # noqa: N802
        """A new stream, by its flags."""
        return partial(_Stream, self)

    @property
    def Event(self) -> Callable[[], _Event]:  # noqa: N802
        """A new event, which knows the time."""
        return partial(_Event, self)

    def mem_alloc(self, size_bytes: int) -> _DeviceMemory:
        """Allocate on the device."""
        return _DeviceMemory(self, size_bytes)

    def pagelocked_empty(self, size_bytes: int, dtype: Any) -> NDArray[Any]:
        """Return an array in page-locked memory, which is freed with the last view of it."""
        address = self.call("cuMemHostAlloc", size_bytes, 0)
        memory = (ctypes.c_uint8 * size_bytes).from_address(address)
        self.owned(memory, "cuMemFreeHost", address)
        array: NDArray[Any] = np.frombuffer(memoryview(memory), dtype)
        return array

    def memcpy_htod(self, target: int, source: NDArray[np.uint8]) -> None:
        """Copy to the device, and wait."""
        self.call("cuMemcpyHtoD", target, source.ctypes.data, source.nbytes)

    def memcpy_dtoh(self, target: NDArray[np.uint8], source: int) -> None:
        """Copy from the device, and wait."""
        self.call("cuMemcpyDtoH", target.ctypes.data, source, target.nbytes)

    def memcpy_htod_async(self, target: int, source: NDArray[np.uint8], stream: _Stream) -> None:
        """Enqueue a copy to the device from page-locked memory."""
        self.call("cuMemcpyHtoDAsync", target, source.ctypes.data, source.nbytes, stream.handle)

    def memcpy_dtoh_async(self, target: NDArray[np.uint8], source: int, stream: _Stream) -> None:
        """Enqueue a copy from the device to page-locked memory."""
        self.call("cuMemcpyDtoHAsync", target.ctypes.data, source, target.nbytes, stream.handle)

    def memcpy_dtod_async(self, target: int, source: int, size_bytes: int, stream: _Stream) -> None:
        """Enqueue a copy on the device."""
        self.call("cuMemcpyDtoDAsync", target, source, size_bytes, stream.handle)


class _Device:
    def __init__(self, cuda: CudaBindings, number: int) -> None:
        self._cuda, self._device = cuda, cuda.call("cuDeviceGet", number)

    def retain_primary_context(self) -> _Context:
        return _Context(self._cuda, self._cuda.call("cuDevicePrimaryCtxRetain", self._device))


class _Context:
    def __init__(self, cuda: CudaBindings, handle: Any) -> None:
        self._cuda, self._handle = cuda, handle

    def push(self) -> None:
        self._cuda.call("cuCtxPushCurrent", self._handle)

    def pop(self) -> None:
        self._cuda.call("cuCtxPopCurrent")

    def synchronize(self) -> None:
        self._cuda.call("cuCtxSynchronize")


class _Stream:
    def __init__(self, cuda: CudaBindings, flags: int) -> None:
        self._cuda, self.handle = cuda, int(cuda.call("cuStreamCreate", flags))
        cuda.owned(self, "cuStreamDestroy", self.handle)

    def synchronize(self) -> None:
        self._cuda.call("cuStreamSynchronize", self.handle)

    def wait_for_event(self, event: _Event) -> None:
        self._cuda.call("cuStreamWaitEvent", self.handle, event.handle, 0)


class _Event:
    def __init__(self, cuda: CudaBindings) -> None:
        self._cuda, self.handle = cuda, int(cuda.call("cuEventCreate", 0))
        cuda.owned(self, "cuEventDestroy", self.handle)

    def record(self, stream: _Stream) -> None:
        self._cuda.call("cuEventRecord", self.handle, stream.handle)

    def synchronize(self) -> None:
        self._cuda.call("cuEventSynchronize", self.handle)

    def time_since(self, start: _Event) -> float:
        return float(self._cuda.call("cuEventElapsedTime", start.handle, self.handle))


class _DeviceMemory:
    def __init__(self, cuda: CudaBindings, size_bytes: int) -> None:
        self._address = int(cuda.call("cuMemAlloc", size_bytes))
        self.free = cuda.owned(self, "cuMemFree", self._address)

    def __int__(self) -> int:
        return self._address


class CudaDriver:
    """libcuda, loaded. A context must be current where its functions are called.

    Raises:
        OSError: If there is none.
    """

    def __init__(self) -> None:
        self._library = load_library()

    def wait(self, stream: int, producer: int) -> None:
        """Let a stream wait for the work enqueued on another one so far; the host does not wait.

        Args:
            stream: Handle of the stream that waits.
            producer: Handle of any stream of this context; 1 is the legacy default one, 2 the thread's.
        """
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_DISABLE_TIMING))
        try:
            self._call("cuEventRecord", event, ctypes.c_void_p(producer))
            self._call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, ctypes.c_uint(0))
        finally:
            self._call("cuEventDestroy_v2", event)

    def synchronize(self, stream: int) -> None:
        """Let the host wait for the work enqueued on a stream of this context."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def device_of(self, address: int) -> int:
        """Return the number of the device whose memory an address is in.

        Raises:
            DriverError: If the driver does not know the address.
        """
        device = ctypes.c_int()
        self._call(
            "cuPointerGetAttribute",
            ctypes.byref(device),
            ctypes.c_int(_DEVICE_ORDINAL),
            ctypes.c_uint64(address),
        )
        return device.value

    def begin_capture(self, stream: int) -> None:
        """Begin to capture the work enqueued on a stream instead of executing it."""
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_THREAD_LOCAL))

    def end_capture(self, stream: int) -> int:
        """Return the captured graph of the stream; the caller destroys it.

        Raises:
            DriverError: If something was done meanwhile that cannot be captured.
        """
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        return int(graph.value or 0)

    def instantiate(self, graph: int) -> int:
        """Return an executable graph; to be destroyed."""
        made = ctypes.c_void_p()
        self._call(
            "cuGraphInstantiateWithFlags", ctypes.byref(made), ctypes.c_void_p(graph), ctypes.c_uint64(0)
        )
        return int(made.value or 0)

    def launch(self, executable: int, stream: int) -> None:
        """Enqueue an executable graph."""
        self._call("cuGraphLaunch", ctypes.c_void_p(executable), ctypes.c_void_p(stream))

    def destroy_graph(self, graph: int) -> None:
        """Free a graph."""
        self._call("cuGraphDestroy", ctypes.c_void_p(graph))

    def destroy_executable(self, executable: int) -> None:
        """Free an executable graph."""
        self._call("cuGraphExecDestroy", ctypes.c_void_p(executable))

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(name))
            raise DriverError(f"{function}: {(name.value or b'unknown error').decode()} ({code})")


def load_library() -> Any:
    """Return the driver's library.

    Raises:
        OSError: If there is none.
    """
    return ctypes.CDLL("libcuda.so.1")


class CudaGraph:
    """The work that `enqueue` puts on a stream, captured as a graph.

    Args:
        driver: The driver; its context is active.
        stream: Handle of the stream; nothing may be under way on it.
        enqueue: Tells the stream what is to be captured; must not wait for it.

    Raises:
        DriverError: If something in between cannot be captured.
    """

    def __init__(self, driver: CudaDriver, stream: int, enqueue: Callable[[], None]) -> None:
        self._driver, self._stream = driver, stream
        with _no_collection():
            driver.begin_capture(stream)
            try:
                enqueue()
            except BaseException:
                # The stream must leave capture mode; that the capture is void is what is being raised.
                with suppress(DriverError):
                    driver.destroy_graph(driver.end_capture(stream))
                raise
            graph = driver.end_capture(stream)
        try:
            self._executable = driver.instantiate(graph)
        finally:
            driver.destroy_graph(graph)

    def launch(self) -> None:
        """Replay it on the stream it was captured from."""
        self._driver.launch(self._executable, self._stream)

    def free(self) -> None:
        """Free it; it cannot be launched afterwards."""
        self._driver.destroy_executable(self._executable)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from collecting garbage: what that frees on the device voids a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
