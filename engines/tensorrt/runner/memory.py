"""Memory of an inference: buffers, outputs that stay on the GPU, and inputs that already lie there.

Buffers are reused while they are large enough. A copy is asynchronous only from and to page-locked memory.
Arrays on the GPU are read and shown by `__cuda_array_interface__` (PyTorch, CuPy, Numba), without a copy:
https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html. All of it needs an active context.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DataError, first_line
from ....tensors import format_shape
from .cuda import Cuda, CudaError, DeviceMemory, Stream
from .io_tensors import extended_dtype, refused_input
from .primary_context import PrimaryContext

ALIGNMENT_BYTES = 256
"""What CUDA aligns every allocation to."""


class DeviceBuffer:
    """One allocation on the device; a larger one takes its place when it is too small.

    Its `address` and `size_bytes` are 0 before the first `reserve`.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._memory: DeviceMemory | None = None
        self.address = 0
        self.size_bytes = 0

    def reserve(self, size_bytes: int) -> int:
        """Return the address of at least `size_bytes`, and at least one byte: TensorRT takes no null."""
        if self._memory is None or size_bytes > self.size_bytes:
            self.free()
            self._memory = DeviceMemory(self._cuda, max(size_bytes, 1))
            self.address, self.size_bytes = int(self._memory), max(size_bytes, 1)
        return self.address

    def free(self) -> None:
        """Free it; it can be reserved again."""
        memory, self._memory = self._memory, None
        self.address = self.size_bytes = 0
        if memory is not None:
            memory.free()


class HostBuffer:
    """One page-locked allocation on the host; a larger one takes its place when it is too small.

    The memory itself is freed with the last array that shows it, so that no array ever shows freed memory.
    Whoever uses CUDA keeps such arrays out of local variables: the frames of an error would hold them.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._bytes: NDArray[np.uint8] | None = None
        self._used_bytes = 0

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array of this shape and dtype in the buffer; any earlier one shows the same memory."""
        size_bytes = math.prod(shape) * dtype.itemsize
        if self._bytes is None or size_bytes > self._bytes.nbytes:
            self._bytes = None  # before the new one is allocated, not after
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
        """Let go of it; it can be viewed again."""
        self._bytes = None


def raw(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of a contiguous array: types such as bfloat16 have no buffer protocol."""
    flat: NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
    return flat


class DeviceArray:
    """One output in the memory of its runner, for libraries that know `__cuda_array_interface__`.

    Nothing is copied: `torch.as_tensor(array, device="cuda")` shows the same memory. It holds this output
    until the runner is used again or closed; then this object says so, and what was made of it shows
    whatever is there.

    Its elements are row-major.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        context: PrimaryContext,
        is_valid: Callable[[], bool],
    ) -> None:
        self._address, self.shape, self.dtype = address, shape, dtype
        self._context, self._is_valid = context, is_valid

    @property
    def address(self) -> int:
        """Where it begins."""
        if not self._is_valid():
            raise DataError(
                f"output of shape {self.shape} on the device: its runner was used again or closed since; "
                "it is valid until then",
                hint="copy it before, with copy_to_host() or on the device",
            )
        return self._address

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The array by version 3 of the protocol: the run is over, so there is no stream to wait for."""
        if self.dtype.kind not in "fiub":
            # AttributeError, so that hasattr() says that there is no such interface.
            raise AttributeError(f"__cuda_array_interface__ has no word for {self.dtype}")
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "strides": None,
            "stream": None, "version": 3,
        }  # fmt: skip

    def copy_to_host(self) -> NDArray[Any]:
        """Return a copy on the host."""
        address = self.address
        array = np.empty(self.shape, self.dtype)
        if array.nbytes:
            with self._context.active("copying an output to the host"):
                self._context.cuda.copy_to_host(raw(array), address)
        return array

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self._context.device})"


@dataclass(frozen=True)
class DeviceInput:
    """An array on the device; `dtype` and `shape` are as an array's, so that it is checked like one.

    The owner must live as long as the memory is used.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any = field(repr=False)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_device_input(name: str, value: Any, context: PrimaryContext, stream: Stream) -> DeviceInput:
    """Return where a feed lies on the device, and wait for what still writes it.

    The protocol's version 3 tells the stream that writes, and ours waits for it. PyTorch has version 2,
    which tells none: the host waits for the device.
    """
    try:
        interface = value.__cuda_array_interface__
    except AttributeError as error:
        required = f"a numpy array, or an array on CUDA device {context.device}, is required"
        problem = f"is a {type(value).__name__}; {required}"
        raise refused_input(name, problem, "give a numpy array") from error
    except RuntimeError as error:  # PyTorch, for a tensor that requires a gradient
        problem = f"cannot be shared: {first_line(error)}"
        raise refused_input(name, problem, "for a torch tensor, give tensor.detach()") from error
    shape = tuple(int(extent) for extent in interface["shape"])
    typestr = interface["typestr"]  # "<V2" is PyTorch's name for bfloat16, _dtype_to_typestr
    is_bfloat16 = typestr == "<V2"
    dtype = extended_dtype("bfloat16", f"feeds: input {name!r}", name) if is_bfloat16 else np.dtype(typestr)
    strides = interface.get("strides")
    if strides is not None:
        _check_dense(name, shape, tuple(stride / dtype.itemsize for stride in strides))
    if interface.get("mask") is not None:
        raise refused_input(name, "has a mask; an array without a mask is required")
    address = int(interface["data"][0])
    if address:
        _check_place(name, address, context)
    if interface["version"] >= 3 and interface.get("stream") is not None:
        context.cuda.wait_for_stream(stream, int(interface["stream"]))
    elif interface["version"] < 3:
        context.cuda.synchronize()
    return DeviceInput(address, shape, dtype, value)


def _check_place(name: str, address: int, context: PrimaryContext) -> None:
    try:
        device = context.cuda.device_of(address)
    except CudaError as error:
        problem = f"lies at {address:#x}, outside the memory of CUDA devices ({error})"
        raise refused_input(name, problem) from error
    if device != context.device:
        problem = f"is on CUDA device {device}; {context.device} is required"
        raise refused_input(name, problem, "copy it there, or load the engine for that device")
    if address % ALIGNMENT_BYTES:
        required = f"a multiple of {ALIGNMENT_BYTES} (IExecutionContext::setTensorAddress)"
        problem = f"lies at {address:#x}; TensorRT requires {required}"
        raise refused_input(name, problem, "give a copy, such as tensor.clone(), in place of a slice")


def _check_dense(name: str, shape: tuple[int, ...], strides: tuple[float, ...]) -> None:
    if 0 in shape:
        return
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            required = "row-major without gaps is required"
            problem = f"of shape {format_shape(shape)} is strided on the device; {required}"
            raise refused_input(name, problem, "give .contiguous() or its like; nothing is copied silently")
        expected *= extent
