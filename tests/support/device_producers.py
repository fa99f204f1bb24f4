"""Arrays on a simulated GPU as other libraries show them: by `__cuda_array_interface__` and by DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from simulated_cuda import Event, SimulatedGpu

_CODES = {"i": 0, "u": 1, "f": 2, "V": 4, "b": 6}
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """`DLManagedTensor` of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class Producer:
    """Values on the device, written there by a stream of another library that nobody has waited for yet."""

    def __init__(self, gpu: SimulatedGpu, values: np.ndarray[Any, Any], *, offset: int = 0) -> None:
        self.gpu, self.shape, self.dtype = gpu, values.shape, values.dtype
        self.stream = gpu.foreign_stream()
        self.address, self.free = gpu.array_on_device(np.zeros_like(values), offset)
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).copy()

        def write() -> None:
            gpu.bytes_at(self.address, data.size)[:] = data

        self.stream.tell(write)


class InterfaceArray(Producer):
    """As Numba's arrays."""

    def __init__(self, gpu: SimulatedGpu, values: np.ndarray[Any, Any], **about: Any) -> None:
        super().__init__(gpu, values, offset=about.pop("offset", 0))
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "stream": self.stream.handle,
        } | about


class DlpackArray(Producer):
    """As PyTorch's tensors: asked for a capsule, it makes the asking stream wait for its own.

    Attributes:
        given_back: Capsules that were collected without having been taken over.
    """

    def __init__(
        self,
        gpu: SimulatedGpu,
        values: np.ndarray[Any, Any],
        *,
        device: tuple[int, int] = (2, 0),
        strides: tuple[int, ...] | None = None,
        byte_offset: int = 0,
        refuses: str = "",
    ) -> None:
        super().__init__(gpu, values, offset=byte_offset)
        self._device, self._strides, self._byte_offset = device, strides, byte_offset
        self._refuses = refuses
        self.given_back = 0
        self._kept: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, stream: int) -> Any:
        if self._refuses:
            raise BufferError(self._refuses)
        event = Event()
        event.record(self.stream)
        self.gpu.streams[stream].tell(event.wait)
        rank = len(self.shape)
        extents = ctypes.c_int64 * rank
        strides = None if self._strides is None else extents(*self._strides)
        bits = 8 if self.dtype.kind == "b" else self.dtype.itemsize * 8
        tensor = _Managed(
            self.address - self._byte_offset, *self._device, rank, _CODES[self.dtype.kind], bits, 1,
            extents(*self.shape), strides, self._byte_offset, None, None,
        )  # fmt: skip
        destructor = _DESTRUCTOR(self._give_back)
        self._kept.append((tensor, destructor))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)
        return new(ctypes.addressof(tensor), b"dltensor", destructor)

    def _give_back(self, capsule: int) -> None:
        self.given_back += 1
