"""The GPU of this machine, asked of the driver itself: no package is needed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device.

    Attributes:
        name: Such as "NVIDIA H200".
        architecture: Compute capability, such as "sm90".
        memory_bytes: All of its memory.
        cuda: The newest CUDA its driver runs, such as "12.8".
    """

    name: str
    architecture: str
    memory_bytes: int
    cuda: str

    def as_json(self) -> dict[str, object]:
        """Return the form kept in manifests."""
        return {
            "gpu": self.name,
            "gpus": [self.architecture],
            "memory_bytes": self.memory_bytes,
            "cuda": self.cuda,
        }


def why_no_gpu() -> str:
    """Return why no CUDA device can be used here; empty when one can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1 is missing)"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver finds no device"
    return ""


def find_gpu(index: int = 0) -> Gpu | None:
    """Return a device; None where there is none of that number."""
    if why_no_gpu():
        return None
    driver = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    name = ctypes.create_string_buffer(256)
    total, version = ctypes.c_size_t(), ctypes.c_int()
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    driver.cuDriverGetVersion(ctypes.byref(version))
    major, minor = (_attribute(driver, kind, device) for kind in (_MAJOR, _MINOR))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return Gpu(name.value.decode(errors="replace"), f"sm{major}{minor}", total.value, cuda)


def _attribute(driver: Any, kind: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), kind, device)
    return value.value
