"""Device and page-locked memory of an inference, and the callbacks through which TensorRT uses it.

Only copies from and to page-locked memory are asynchronous. Arrays on the GPU are read through
`__cuda_array_interface__` (PyTorch, CuPy, Numba), without a copy:
https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html. All functions need a CUDA context.

TensorRT's bindings print and drop exceptions of callbacks (python/src/infer/pyCore.cpp). Output allocators
and debug listeners therefore store their first exception, and the caller raises it after TensorRT returns.
"""

from __future__ import annotations

import ctypes
import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import ModelError, first_line
from ....spec.tensors import format_shape
from ...libcuda import CudaError
from .cuda import Cuda, Event, PrimaryContext
from .io_tensors import numpy_dtype, refused_input

ALIGNMENT_BYTES = 256
"""CUDA's alignment of every allocation."""
_DEVICE_ORDINAL = 9
"""CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL of cuda.h."""


class DeviceBuffer:
    """An allocation on the device, replaced by a larger one if it is too small. Its `address` and
    `size_bytes` are 0 before the first `reserve`."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._release: Callable[[], object] | None = None
        self.address = self.size_bytes = 0

    def reserve(self, size_bytes: int) -> int:
        """Return the address of at least `size_bytes`, at least one byte, because TensorRT rejects null."""
        if self._release is None or size_bytes > self.size_bytes:
            self.free()
            address, size_bytes = int(self._cuda.call("cuMemAlloc", max(size_bytes, 1))), max(size_bytes, 1)
            self._release = self._cuda.owned(self, "cuMemFree", address)
            self.address, self.size_bytes = address, size_bytes
        return self.address

    def free(self) -> None:
        release, self._release = self._release, None
        self.address = self.size_bytes = 0
        if release is not None:
            release()


class HostBuffer:
    """A page-locked allocation on the host, replaced by a larger one if it is too small.

    The memory is freed with the last array that views it, so an array never views freed memory. Code that
    calls CUDA must not hold these arrays in local variables, because an error's frames would hold them, too.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._bytes: NDArray[np.uint8] | None = None
        self._used_bytes = 0

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array of this shape and dtype in the buffer; earlier arrays share its memory."""
        size_bytes = math.prod(shape) * dtype.itemsize
        if self._bytes is None or size_bytes > self._bytes.nbytes:
            self._bytes = None  # releases the old memory before the new memory is allocated
            self._bytes = self._cuda.pagelocked_empty(max(size_bytes, 1))
        self._used_bytes = size_bytes
        array: NDArray[Any] = self._bytes[:size_bytes].view(dtype).reshape(shape)
        return array

    @property
    def used(self) -> NDArray[np.uint8]:
        return np.empty(0, np.uint8) if self._bytes is None else self._bytes[: self._used_bytes]

    @property
    def address(self) -> int:
        return 0 if self._bytes is None else int(self._bytes.ctypes.data)

    def free(self) -> None:
        self._bytes = None


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of a contiguous array, also for types without buffer protocol (bfloat16)."""
    flat: NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
    return flat


@dataclass(frozen=True)
class DeviceInput:
    """An array on the device; `dtype` and `shape` permit the same checks as for a NumPy array.

    `owner` must live while the memory is used. The event `written` marks the end of the producer's writing;
    None if the writing has already ended.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any = field(repr=False)
    written: Event | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_device_input(name: str, value: Any, context: PrimaryContext) -> DeviceInput:
    """Return the location of a feed on the device, and the event after which its producer has written it.

    Version 3 of `__cuda_array_interface__` provides the producer's stream. PyTorch implements version 2,
    without the stream, so the host waits for all work of the device.
    """
    import ml_dtypes

    try:
        interface = value.__cuda_array_interface__
    except AttributeError as error:
        required = f"a numpy array, or an array on CUDA device {context.device}, is required"
        raise refused_input(name, f"is a {type(value).__name__}; {required}", "give a numpy array") from error
    except RuntimeError as error:  # PyTorch, for a tensor that requires a gradient
        problem = f"cannot be shared: {first_line(error)}"
        raise refused_input(name, problem, "for a torch tensor, give tensor.detach()") from error
    shape = tuple(int(extent) for extent in interface["shape"])
    typestr = interface["typestr"]  # "<V2" is PyTorch's name for bfloat16, _dtype_to_typestr
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if typestr == "<V2" else typestr)
    strides = interface.get("strides")
    if strides is not None:
        _check_dense(name, shape, tuple(stride / dtype.itemsize for stride in strides))
    if interface.get("mask") is not None:
        raise refused_input(name, "has a mask; an array without a mask is required")
    address = int(interface["data"][0])
    if address:
        _check_place(name, address, context)
    written = None
    if interface["version"] >= 3 and interface.get("stream") is not None:
        written = Event(context.cuda)
        # Any stream's handle; 1 is the legacy default stream, 2 the per-thread default stream.
        context.cuda.call("cuEventRecord", written.handle, int(interface["stream"]))
    elif interface["version"] < 3:
        context.cuda.synchronize()
    return DeviceInput(address, shape, dtype, value, written)


def _check_place(name: str, address: int, context: PrimaryContext) -> None:
    at = f"lies at {address:#x}"
    try:
        device = context.cuda.call("cuPointerGetAttribute", _DEVICE_ORDINAL, address)
    except CudaError as error:
        raise refused_input(name, f"{at}, outside the memory of CUDA devices ({error})") from error
    if device != context.device:
        problem = f"is on CUDA device {device}; {context.device} is required"
        raise refused_input(name, problem, "copy it there, or load the engine for that device")
    if address % ALIGNMENT_BYTES:
        required = f"a multiple of {ALIGNMENT_BYTES} (IExecutionContext::setTensorAddress)"
        hint = "give a copy, such as tensor.clone(), in place of a slice"
        raise refused_input(name, f"{at}; TensorRT requires {required}", hint)


def _check_dense(name: str, shape: tuple[int, ...], strides: tuple[float, ...]) -> None:
    if 0 in shape:
        return
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            strided = f"of shape {format_shape(shape)} is strided on the device"
            hint = "give a contiguous copy, such as tensor.contiguous()"
            raise refused_input(name, f"{strided}; row-major without gaps is required", hint)
        expected *= extent


class _StoredError:
    """Mixin of a callback: stores its first error until TensorRT has returned."""

    _raised: BaseException | None = None

    def _store(self, error: BaseException) -> None:
        self._raised = self._raised or error.with_traceback(None)  # a traceback would hold this run's frames

    def raise_stored_error(self) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            try:
                raise raised
            finally:
                del raised  # otherwise it would hold its frame, and thus the engine


def make_profiler(module: Any) -> Any:
    """Return an `IProfiler`; its `median_ms()` is the median time of each layer so far.

    TensorRT reports each layer after each run while the profiler is attached, which makes runs slower and
    synchronous. The times are only for comparing layers, and their sum is not a latency.
    """

    class Profiler(module.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IProfiler.__init__(self)
            self._times: dict[str, list[float]] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self._times.setdefault(layer_name, []).append(ms)

        def median_ms(self) -> dict[str, float]:
            return {name: statistics.median(times) for name, times in self._times.items()}

    return Profiler()


def make_output_allocator(module: Any, buffer: DeviceBuffer) -> Any:
    """Return an `IOutputAllocator` for an output with data-dependent shape; `shape` is None before a run.

    TensorRT before 10 calls `reallocate_output`; newer versions call `reallocate_output_async`. The memory is
    ordinary device memory. Freeing the smaller buffer waits for the device, so the stream is not needed.
    """

    class OutputAllocator(_StoredError, module.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] | None = None

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            try:
                if alignment and ALIGNMENT_BYTES % alignment:
                    problem = f"TensorRT asks for alignment to {alignment} bytes"
                    raise ModelError(f"output {tensor_name!r}: {problem}")
                return buffer.reserve(size)
            except BaseException as error:  # Ctrl-C too
                self._store(error)
                return 0  # a null pointer; for None the binding complains on stderr (pyCore.cpp)

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:
            self.shape = tuple(int(extent) for extent in shape)

        def begin(self) -> None:
            self.shape = self._raised = None

    return OutputAllocator()


def make_listener(module: Any, context: PrimaryContext, names: Collection[str]) -> Any:
    """Return an `IDebugListener` that copies the tensors of these names (TensorRT 10 and newer).

    TensorRT calls it when a tensor is computed; the value is valid only during the call. The listener waits
    for the stream, and copies (samples/common/debugTensorWriter.cpp, release/10.16). TensorRT ignores the
    return value (pyCore.cpp, PyDebugListener). `tensors` omits tensors of types that NumPy lacks.
    """

    class Listener(_StoredError, module.IDebugListener):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IDebugListener.__init__(self)
            self.tensors: dict[str, NDArray[Any]] = {}

        def process_debug_tensor(
            self, addr: int, location: Any, type: Any, shape: Any, name: str, stream: int
        ) -> bool:
            if name not in names:
                return True
            try:
                try:
                    dtype = numpy_dtype(type, name)
                except ModelError:  # for instance a 4-bit type
                    return True
                array = np.empty(tuple(int(extent) for extent in shape), dtype)
                context.cuda.synchronize(stream)
                if array.nbytes and location == module.TensorLocation.HOST:
                    ctypes.memmove(array.ctypes.data, addr, array.nbytes)
                elif array.nbytes:
                    context.cuda.copy_to_host(as_bytes(array), addr)
                self.tensors[name] = array
            except BaseException as error:
                self._store(error)
            return True

    return Listener()
