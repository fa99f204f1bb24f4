"""CUDA contexts, streams, events and graphs through libcuda; contexts through PyCUDA if it is installed.

PyCUDA maintains a separate stack of contexts: if it is installed, contexts must be made current through it.
Streams, events, graphs and memory need a current context. The block of `PrimaryContext.active` makes the
primary context, which PyTorch also uses, current, and afterwards restores the thread's previous context. No
other context is created.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from traceback import clear_frames
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import EngineUnavailable, InvalidOption, ModelError, first_line
from ...libcuda import CudaError, CudaOutOfMemory, Libcuda

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: no synchronization with the default stream."""
_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate during a capture."""


class Cuda(Libcuda):
    """The driver functions that are used here; resources from `owned` are freed with their owner. `package`
    is the module that retains primary contexts: libcuda, or `pycuda.driver`."""

    def __init__(self) -> None:
        super().__init__()
        self.package = self.library

    def retain(self, device: int) -> Any:
        self.call("cuInit", 0)
        return self.call("cuDevicePrimaryCtxRetain", self.call("cuDeviceGet", device))

    def push(self, context: Any) -> None:
        self.call("cuCtxPushCurrent", context)

    def pop(self) -> None:
        self.call("cuCtxPopCurrent")

    def owned(self, owner: object, function: str, handle: int) -> Callable[[], object]:
        """Return a function that frees a handle once, in this context; it also runs when `owner` ends."""
        context = self.call("cuCtxGetCurrent")

        def free() -> None:
            with suppress(CudaError):  # every CUDA call repeats an error of an earlier kernel
                self.call("cuCtxPushCurrent", context)
                try:
                    self.call(function, handle)
                finally:
                    self.call("cuCtxPopCurrent")

        finalize = weakref.finalize(owner, free)
        finalize.atexit = False  # the end of the process frees everything
        return finalize

    def pagelocked_empty(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return bytes in page-locked memory, which is freed with its last view."""
        address = self.call("cuMemHostAlloc", size_bytes, 0)
        memory = (ctypes.c_uint8 * size_bytes).from_address(address)
        self.owned(memory, "cuMemFreeHost", address)
        array: NDArray[np.uint8] = np.frombuffer(memoryview(memory), np.uint8)
        return array

    def copy_to_device(self, target: int, source: NDArray[np.uint8], stream: Stream | None = None) -> None:
        """Copy to the device, and wait; with a stream, only enqueue the copy, from page-locked memory."""
        self._copy("cuMemcpyHtoD", target, source.ctypes.data, source.nbytes, stream=stream)

    def copy_to_host(self, target: NDArray[np.uint8], source: int, stream: Stream | None = None) -> None:
        """Copy from the device, and wait; with a stream, only enqueue the copy, to page-locked memory."""
        self._copy("cuMemcpyDtoH", target.ctypes.data, source, target.nbytes, stream=stream)

    def _copy(self, function: str, *arguments: int, stream: Stream | None) -> None:
        ending, last = ("", ()) if stream is None else ("Async", (stream.handle,))
        self.call(function + ending, *arguments, *last)

    def synchronize(self, stream: int | None = None) -> None:
        """Make the host wait for the work on a stream, by its handle, or for all work of the context."""
        self.call("cuCtxSynchronize") if stream is None else self.call("cuStreamSynchronize", stream)


class PyCuda(Cuda):
    """The driver with contexts of `pycuda.driver`. PyCUDA frees the user's arrays in its current context."""

    def __init__(self, package: Any) -> None:
        super().__init__()
        self.package = package

    def retain(self, device: int) -> Any:
        self._run(self.package.init)
        return self._run(self._run(self.package.Device, device).retain_primary_context)

    def push(self, context: Any) -> None:
        self._run(context.push)

    def pop(self) -> None:
        self._run(self.package.Context.pop)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self.package.Error as error:
            # Without its traceback, which would hold the callers' frames.
            raise CudaError(first_line(error)) from error.with_traceback(None)


def load_cuda() -> Cuda:
    """Return the driver, with PyCUDA's contexts if PyCUDA can be imported.

    Raises:
        CudaError: If no driver is installed.
    """
    try:
        import pycuda.driver
    except Exception:  # ImportError: no PyCUDA or no CUDA toolkit; OSError: no libcuda
        return Cuda()
    return PyCuda(pycuda.driver)


class Stream:
    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self.handle = cuda, int(cuda.call("cuStreamCreate", _NON_BLOCKING))
        cuda.owned(self, "cuStreamDestroy", self.handle)

    def synchronize(self) -> None:
        self._cuda.synchronize(self.handle)

    def wait_for_event(self, event: Event) -> None:
        self._cuda.call("cuStreamWaitEvent", self.handle, event.handle, 0)


class Event:
    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self.handle = cuda, int(cuda.call("cuEventCreate", 0))
        cuda.owned(self, "cuEventDestroy", self.handle)

    def record(self, stream: Stream) -> None:
        self._cuda.call("cuEventRecord", self.handle, stream.handle)

    def synchronize(self) -> None:
        self._cuda.call("cuEventSynchronize", self.handle)

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from this event to `end`; both must have happened."""
        return float(self._cuda.call("cuEventElapsedTime", self.handle, end.handle))


class CudaGraph:
    """The work that `enqueue` puts on a stream, captured as a graph. The context must be active, and the
    stream must be idle. `enqueue` must not wait for the stream."""

    def __init__(self, cuda: Cuda, stream: Stream, enqueue: Callable[[], None]) -> None:
        self._cuda, self._stream = cuda, stream
        with _gc_disabled():
            cuda.call("cuStreamBeginCapture", stream.handle, _THREAD_LOCAL)
            try:
                enqueue()
            except BaseException:
                # End the stream's capture mode; the error raised here already reports the failed capture.
                with suppress(CudaError):
                    cuda.call("cuGraphDestroy", cuda.call("cuStreamEndCapture", stream.handle))
                raise
            graph = cuda.call("cuStreamEndCapture", stream.handle)
        try:
            self._executable = cuda.call("cuGraphInstantiate", graph, 0)
        finally:
            cuda.call("cuGraphDestroy", graph)

    def launch(self) -> None:
        self._cuda.call("cuGraphLaunch", self._executable, self._stream.handle)

    def free(self) -> None:
        self._cuda.call("cuGraphExecDestroy", self._executable)


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable garbage collection: freeing device memory would invalidate a capture."""
    restore = gc.enable if gc.isenabled() else gc.disable
    gc.disable()
    try:
        yield
    finally:
        restore()


_retained: dict[tuple[Any, int], Any] = {}
"""Maps package and device to the handle of the primary context, which is retained until the process ends."""


class PrimaryContext:
    """A device's primary context, which the whole process shares, PyTorch included. `subject`, the file or
    the purpose that needs the device, begins every message."""

    def __init__(self, device: int, subject: str, *, engine: str = "tensorrt") -> None:
        if device < 0:
            raise InvalidOption(f"device: {device}; 0 or more is required", option="devices")
        self.device, self.subject, self._engine = device, subject, engine
        try:
            self.cuda = load_cuda()
            key = self.cuda.package, device
            if key not in _retained:
                _retained[key] = self.cuda.retain(device)
            self._handle = _retained[key]
        except CudaError as error:
            problem = f"no CUDA device can be used for {subject} (device {device}: {error})"
            hint = "run it on a machine with an NVIDIA GPU and its driver"
            raise EngineUnavailable(problem, hint=hint, engine=engine) from error

    @contextmanager
    def active(self, doing: str) -> Iterator[None]:
        """Make the context current in the block, and translate CUDA errors; `doing` names the operation.

        Finished frames in the tracebacks of an error and its causes lose their locals, because a stored error
        would otherwise hold device memory and TensorRT's objects.
        """
        outer = sys.exc_info()[1]
        self.cuda.push(self._handle)
        try:
            yield
        except BaseException as error:
            chained: BaseException | None = error
            while chained is not None and chained is not outer:
                clear_frames(chained.__traceback__)
                chained = chained.__cause__ or chained.__context__
            if isinstance(error, CudaOutOfMemory):
                problem = f"{self.subject}: {doing}: not enough memory on CUDA device {self.device}"
                hint = "free memory on the GPU, or give a smaller batch"
                raise EngineUnavailable(problem, hint=hint, engine=self._engine) from error
            if isinstance(error, CudaError):
                raise ModelError(f"{self.subject}: {doing}: CUDA fails: {first_line(error)}") from error
            raise
        finally:
            self.cuda.pop()


@contextmanager
def current_device(device: int, subject: str) -> Iterator[None]:
    """Make a device's context current in the block, because TensorRT builds on the thread's current device.
    Device 0 is CUDA's default. If it cannot be made current, for instance without a GPU, the block runs
    anyway."""
    active: AbstractContextManager[None] = nullcontext()
    try:
        active = PrimaryContext(device, subject).active("building")
    except EngineUnavailable:
        if device != 0:
            raise
    with active:
        yield
