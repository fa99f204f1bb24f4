"""Buffers that are reused while they are large enough: on the device, and page-locked on the host.

A copy is asynchronous only from and to page-locked memory. Both kinds must be used in an active context.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT_BYTES = 256
"""What CUDA aligns every allocation to."""


class DeviceBuffer:
    """One allocation on the device; a larger one takes its place when it is too small.

    Attributes:
        address: Where it begins; 0 before the first `reserve`.
        size_bytes: How much was allocated.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._memory: Any = None
        self.address = 0
        self.size_bytes = 0

    def reserve(self, size_bytes: int) -> int:
        """Return the address of at least `size_bytes`, and at least one byte: TensorRT takes no null.

        What the buffer held is lost when it grows.
        """
        if self._memory is None or size_bytes > self.size_bytes:
            self.free()
            self._memory = self._cuda.mem_alloc(max(size_bytes, 1))
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

    The memory itself is freed with the last array that shows it, so that no array ever shows freed memory;
    PyCUDA never frees what outlives its context.
    Whoever uses CUDA keeps such arrays out of local variables: the frames of an error would hold them.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._bytes: NDArray[np.uint8] | None = None
        self._used_bytes = 0

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array of this shape and dtype in the buffer; any earlier one shows the same memory."""
        size_bytes = math.prod(shape) * dtype.itemsize
        if self._bytes is None or size_bytes > self._bytes.nbytes:
            self._bytes = None  # before the new one is allocated, not after
            self._bytes = self._cuda.pagelocked_empty(max(size_bytes, 1), np.uint8)
        self._used_bytes = size_bytes
        array: NDArray[Any] = self._bytes[:size_bytes].view(dtype).reshape(shape)
        return array

    @property
    def used(self) -> NDArray[np.uint8]:
        """The bytes of the last view."""
        return np.empty(0, np.uint8) if self._bytes is None else self._bytes[: self._used_bytes]

    @property
    def address(self) -> int:
        """Where it begins on the host."""
        return 0 if self._bytes is None else int(self._bytes.ctypes.data)

    def free(self) -> None:
        """Let go of it; it can be viewed again."""
        self._bytes = None


def raw(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of a contiguous array: types such as bfloat16 have no buffer protocol."""
    flat: NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
    return flat
