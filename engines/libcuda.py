"""Call NVIDIA's driver library by ctypes; no package is needed.

The functions are those of https://docs.nvidia.com/cuda/cuda-driver-api/.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from ..errors import first_line

_OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""
_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "f": ctypes.c_float}
PARAMETERS = {
    "cuCtxGetCurrent": "P", "cuCtxPopCurrent": "P", "cuCtxPushCurrent": "p", "cuCtxSynchronize": "",
    "cuDeviceGet": "Ii", "cuDeviceGetAttribute": "Iii", "cuDeviceGetCount": "I", "cuDeviceGetName": "pii",
    "cuDeviceGetPCIBusId": "pii", "cuDevicePrimaryCtxRetain": "Pi", "cuDeviceTotalMem": "Pi",
    "cuDriverGetVersion": "I", "cuEventCreate": "Pi", "cuEventDestroy": "p", "cuEventElapsedTime": "Fpp",
    "cuEventRecord": "pp", "cuEventSynchronize": "p", "cuGraphDestroy": "p", "cuGraphExecDestroy": "p",
    "cuGraphInstantiate": "Ppp", "cuGraphLaunch": "pp", "cuInit": "i",
    "cuMemAlloc": "Pp", "cuMemFree": "p", "cuMemFreeHost": "p", "cuMemHostAlloc": "Ppi",
    "cuMemcpyDtoDAsync": "pppp", "cuMemcpyDtoH": "ppp", "cuMemcpyDtoHAsync": "pppp", "cuMemcpyHtoD": "ppp",
    "cuMemcpyHtoDAsync": "pppp", "cuPointerGetAttribute": "Iip", "cuStreamBeginCapture": "pi",
    "cuStreamCreate": "Pi", "cuStreamDestroy": "p", "cuStreamEndCapture": "pP", "cuStreamSynchronize": "p",
    "cuStreamWaitEvent": "ppi",
}  # fmt: skip
"""Maps a function to its C parameters: p has 64 bits, i is an int, f a float; a capital marks a result."""
ENDINGS = {"cuGraphInstantiate": "WithFlags"} | dict.fromkeys(
    ("cuCtxPopCurrent", "cuCtxPushCurrent", "cuDeviceTotalMem", "cuEventDestroy", "cuMemAlloc", "cuMemFree",
     "cuMemcpyDtoDAsync", "cuMemcpyDtoH", "cuMemcpyDtoHAsync", "cuMemcpyHtoD", "cuMemcpyHtoDAsync",
     "cuStreamBeginCapture", "cuStreamDestroy"), "_v2",
)  # fmt: skip
"""Maps a function to its symbol's suffix in libcuda since CUDA 11.4 (`#define cuMemAlloc cuMemAlloc_v2`)."""


class CudaError(Exception):
    """A driver function failed (the message names the function and the error), or no driver is installed."""


class CudaOutOfMemory(CudaError):
    """The device's memory, or page-locked memory, is exhausted."""


@functools.cache
def load_library() -> Any:
    """Return the driver library, the same object in each call.

    Raises:
        CudaError: If no driver is installed.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError("no NVIDIA driver (libcuda.so.1 is missing)") from error


class Libcuda:
    """Calls the driver's functions by name."""

    def __init__(self) -> None:
        self.library = load_library()

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function and return its result, or None for a function without results.

        Raises:
            CudaOutOfMemory: If memory is exhausted.
            CudaError: If the function fails in another way, or this driver does not have it.
        """
        kinds = PARAMETERS[function]
        results: list[Any] = [_TYPES[kind.lower()]() for kind in kinds if kind.isupper()]
        inputs, outputs = iter(arguments), map(ctypes.byref, results)
        values = [next(outputs) if kind.isupper() else _TYPES[kind](next(inputs)) for kind in kinds]
        try:
            symbol = getattr(self.library, function + ENDINGS.get(function, ""))
        except AttributeError as error:  # the driver is older than the function
            raise CudaError(f"{function}: {first_line(error)}") from error
        if code := symbol(*values):
            raise (CudaOutOfMemory if code == _OUT_OF_MEMORY else CudaError)(self._failure(function, code))
        return results[0].value if results else None

    def _failure(self, function: str, code: int) -> str:
        name = ctypes.c_char_p()  # remains empty if the driver does not know the code
        self.library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(name))
        return f"{function}: {(name.value or b'an unknown error').decode()} ({code})"
