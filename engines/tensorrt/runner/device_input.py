"""Inputs that already lie on the GPU (PyTorch, CuPy, Numba, ...), used without a copy.

DLPack comes first where an object has both protocols: its producer makes our stream wait, and it has a word
for bfloat16. Both are read as their documents say, without the libraries:
https://data-apis.org/array-api/latest/design_topics/data_interchange.html, dlpack.h, and
https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....errors import DataError, first_line
from ....tensors import format_shape
from .buffers import ALIGNMENT_BYTES
from .cuda_context import PrimaryContext
from .cuda_driver import DriverError

_CUDA_DEVICES = (2, 13)
"""kDLCUDA and kDLCUDAManaged."""

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
"""kDLInt, kDLUInt, kDLFloat, kDLBfloat, kDLBool."""


class _Tensor(ctypes.Structure):
    """`DLTensor` of dlpack.h; it is the first member of `DLManagedTensor`."""

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
    )


@dataclass(frozen=True)
class DeviceInput:
    """An array on the device; `dtype` and `shape` are as an array's, so that it is checked like one.

    Attributes:
        address: Where its elements begin.
        shape: Its extents.
        dtype: numpy's type of its elements.
        owner: What must live as long as the memory is used.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_device_input(name: str, value: Any, context: PrimaryContext, stream: int) -> DeviceInput:
    """Return where a feed lies on the device, and let a stream wait for what still writes it.

    Args:
        name: The input's, for messages.
        value: Anything with `__dlpack__` or `__cuda_array_interface__`.
        context: Whose device it must be on; active.
        stream: Handle of the stream that is to wait.

    Raises:
        DataError: If it is no array on this device, or not row-major without gaps.
    """
    array = _by_dlpack(name, value, context, stream)
    if array is None and hasattr(value, "__cuda_array_interface__"):
        array = _by_interface(name, value, context, stream)
    if array is None:
        raise DataError(
            f"feeds: input {name!r} is a {type(value).__name__}; a numpy array, or an array on CUDA device "
            f"{context.device}, is required",
            hint="give a numpy array",
            tensor=name,
        )
    if array.address % ALIGNMENT_BYTES:
        raise DataError(
            f"feeds: input {name!r} lies at {array.address:#x}; TensorRT requires a multiple of "
            f"{ALIGNMENT_BYTES} (IExecutionContext::setTensorAddress)",
            hint="give a copy, such as tensor.clone(), in place of a slice",
            tensor=name,
        )
    return array


def _by_dlpack(name: str, value: Any, context: PrimaryContext, stream: int) -> DeviceInput | None:
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        return None
    kind, device = (int(number) for number in value.__dlpack_device__())
    if kind not in _CUDA_DEVICES:
        return None
    _check_device(name, device, context)
    try:
        capsule = value.__dlpack__(stream=stream)
    except Exception as error:  # each library has its own; a tensor that requires a gradient, mostly
        raise DataError(
            f"feeds: input {name!r} cannot be shared: {first_line(error)}",
            hint="for a torch tensor, give tensor.detach()",
            tensor=name,
        ) from error
    tensor = _Tensor.from_address(_pointer(capsule))
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    dtype = _dlpack_dtype(name, tensor)
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else None
    _check_dense(name, shape, strides)
    # The capsule is kept and never renamed, so it gives the memory back itself when it is collected.
    return DeviceInput((tensor.data or 0) + tensor.byte_offset, shape, dtype, (value, capsule))


def _by_interface(name: str, value: Any, context: PrimaryContext, stream: int) -> DeviceInput:
    interface = value.__cuda_array_interface__
    shape = tuple(int(extent) for extent in interface["shape"])
    dtype = np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is not None:
        strides = tuple(stride / dtype.itemsize for stride in strides)
    _check_dense(name, shape, strides)
    if interface.get("mask") is not None:
        raise DataError(f"feeds: input {name!r} has a mask; an array without a mask is required", tensor=name)
    address = int(interface["data"][0])
    if address:
        try:
            _check_device(name, context.driver.device_of(address), context)
        except DriverError as error:
            raise DataError(
                f"feeds: input {name!r} lies at {address:#x}, outside the memory of CUDA devices ({error})",
                tensor=name,
            ) from error
    if interface["version"] >= 3 and interface.get("stream") is not None:
        context.driver.wait(stream, int(interface["stream"]))
    elif interface["version"] < 3:
        context.cuda.Context.synchronize()  # older versions do not tell which stream writes it
    return DeviceInput(address, shape, dtype, value)


def _check_device(name: str, device: int, context: PrimaryContext) -> None:
    if device != context.device:
        raise DataError(
            f"feeds: input {name!r} is on CUDA device {device}; {context.device} is required",
            hint="copy it there, or load the engine for that device",
            tensor=name,
        )


def _check_dense(name: str, shape: tuple[int, ...], strides: tuple[float, ...] | None) -> None:
    if strides is None or 0 in shape:
        return
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            raise DataError(
                f"feeds: input {name!r} of shape {format_shape(shape)} is strided on the device; row-major "
                "without gaps is required",
                hint="give .contiguous() or its like; nothing is copied silently",
                tensor=name,
            )
        expected *= extent


def _dlpack_dtype(name: str, tensor: _Tensor) -> np.dtype[Any]:
    kind = _KINDS.get(tensor.code)
    try:
        if kind == "bfloat":
            import ml_dtypes

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        if kind is None or tensor.lanes != 1:
            raise TypeError(f"DLPack type code {tensor.code}, {tensor.lanes} lanes")
        return np.dtype("bool" if kind == "bool" else f"{kind}{tensor.bits}")
    except (ImportError, TypeError) as error:
        raise DataError(
            f"feeds: input {name!r} has elements that numpy has no type for ({error})", tensor=name
        ) from error


def _pointer(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(get(capsule, b"dltensor"))
