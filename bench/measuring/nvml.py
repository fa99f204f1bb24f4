"""State, memory and energy of an NVIDIA GPU, asked of NVML by ctypes: no package is needed.

Names and units are those of https://docs.nvidia.com/deploy/nvml-api/. Nothing here changes a setting.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

from ...engines.gpu import bus_id

_TEXT_BYTES = 96
_MOST_PROCESSES = 256
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_THROTTLING = {  # nvmlClocksThrottleReasons: those that mean the GPU is slower than it could be
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class NvmlError(Exception):
    """NVML is missing, or a function of it failed; the message says which and why."""


class Nvml:
    """NVML, initialized, and a GPU.

    Args:
        gpu: Its number, as CUDA counts: NVML counts in another order, and knows no CUDA_VISIBLE_DEVICES.

    Raises:
        NvmlError: If there is no NVML or no such GPU.
    """

    def __init__(self, library: str = "libnvidia-ml.so.1", gpu: int = 0) -> None:
        try:
            self._library: Any = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlError(f"no NVIDIA driver ({library} is missing)") from error
        self._call("nvmlInit_v2")
        self._device = ctypes.c_void_p()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        named, place = visible[gpu].strip() if gpu < len(visible) else "", bus_id(gpu)
        if named.startswith("MIG-") or (named.startswith("GPU-") and not place):
            # A slice of a GPU has no place of its own.
            self._call("nvmlDeviceGetHandleByUUID", named.encode(), ctypes.byref(self._device))
        elif place:
            self._call("nvmlDeviceGetHandleByPciBusId_v2", place.encode(), ctypes.byref(self._device))
        else:
            index = ctypes.c_uint(int(named) if named.isdigit() else gpu)
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(self._device))

    def about(self) -> dict[str, object]:
        """Return what does not change: name, driver, memory_bytes."""
        name, driver = (ctypes.create_string_buffer(_TEXT_BYTES) for _ in range(2))
        self._call("nvmlDeviceGetName", self._device, name, ctypes.c_uint(_TEXT_BYTES))
        self._call("nvmlSystemGetDriverVersion", driver, ctypes.c_uint(_TEXT_BYTES))
        return {
            "gpu": name.value.decode(errors="replace"),
            "driver": driver.value.decode(errors="replace"),
            "gpu_memory_bytes": self._memory().total,
        }

    def state(self) -> dict[str, object]:
        """Return what changes: clocks, power, temperature, memory in use, and why it is throttled.

        A value that this GPU does not tell is None.
        """
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        power = self._ask("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return {
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", ctypes.c_uint, ctypes.c_int(_SM)),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", ctypes.c_uint, ctypes.c_int(_MEMORY)),
            "power_w": None if power is None else power / 1e3,
            "temperature_c": self._ask("nvmlDeviceGetTemperature", ctypes.c_uint, ctypes.c_int(0)),
            "memory_used_bytes": self._memory().used,
            "throttled": [text for bit, text in _THROTTLING.items() if (reasons or 0) & bit],
        }

    def energy_mj(self) -> float | None:
        """Return the millijoules of the whole board since the driver was loaded; None before Volta."""
        return self._ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)

    def process_memory_bytes(self, pid: int) -> int | None:
        """Return what a process has on the GPU; None where NVML does not see it, as in a container."""
        count = ctypes.c_uint(_MOST_PROCESSES)
        processes = (_Process * _MOST_PROCESSES)()
        try:
            self._call(
                "nvmlDeviceGetComputeRunningProcesses_v3", self._device, ctypes.byref(count), processes
            )
        except NvmlError:
            return None
        # All ones stands for "not available".
        used = [one.used for one in processes[: count.value] if one.pid == pid and one.used != 2**64 - 1]
        return used[0] if used else None

    def _memory(self) -> _Memory:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(memory))
        return memory

    def _ask(self, function: str, kind: Any, *arguments: Any) -> int | None:
        value = kind()
        try:
            self._call(function, self._device, *arguments, ctypes.byref(value))
        except NvmlError:
            return None  # some boards do not tell; NVML says NOT_SUPPORTED
        return int(value.value)

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError as error:
            raise NvmlError(f"{function}: this driver does not have it") from error
        if code:
            text = self._library.nvmlErrorString
            text.restype = ctypes.c_char_p
            raise NvmlError(f"{function}: {(text(code) or b'').decode(errors='replace')} ({code})")


@functools.cache
def find_nvml(gpu: int = 0) -> tuple[Nvml | None, str]:
    """Return NVML for a GPU and an empty text, or None and why it cannot be used."""
    try:
        return Nvml(gpu=gpu), ""
    except NvmlError as error:
        return None, str(error)


def process_memory_bytes(pid: int, gpu: int = 0) -> int | None:
    """Return what a process has on a GPU; None where there is none or nobody tells."""
    nvml, _ = find_nvml(gpu)
    return nvml.process_memory_bytes(pid) if nvml else None
