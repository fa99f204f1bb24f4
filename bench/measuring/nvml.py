"""Read state, memory and energy of an NVIDIA GPU from NVML (package nvidia-ml-py).

Names and units are those of https://docs.nvidia.com/deploy/nvml-api/. Nothing here changes a setting.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from ...engines.gpu import bus_id
from ...errors import first_line

_INSTALL = "pip install 'qcompile[cpu]'"
_THROTTLING = {  # nvmlClocksThrottleReasons: those that mean the GPU is slower than it could be
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class NvmlError(Exception):
    """NVML is missing, or a function of it failed; the message says which and why."""


class Nvml:
    """NVML, initialized, and a GPU.

    Args:
        gpu: Its number, as CUDA counts: NVML counts in another order, and ignores CUDA_VISIBLE_DEVICES.

    Raises:
        NvmlError: If there is no NVML or no such GPU.
    """

    def __init__(self, gpu: int = 0) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlError(f"nvidia-ml-py is missing; {_INSTALL}") from error
        self._nvml: Any = pynvml
        self._call("nvmlInit")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        named, place = visible[gpu].strip() if gpu < len(visible) else "", bus_id(gpu)
        if named.startswith("MIG-") or (named.startswith("GPU-") and not place):
            # A slice of a GPU has no place of its own.
            self._device = self._call("nvmlDeviceGetHandleByUUID", named)
        elif place:
            self._device = self._call("nvmlDeviceGetHandleByPciBusId", place)
        else:
            index = int(named) if named.isdigit() else gpu
            self._device = self._call("nvmlDeviceGetHandleByIndex", index)

    def about(self) -> dict[str, object]:
        """Return what does not change: name, driver, memory_bytes."""
        return {
            "gpu": self._call("nvmlDeviceGetName", self._device),
            "driver": self._call("nvmlSystemGetDriverVersion"),
            "gpu_memory_bytes": self._call("nvmlDeviceGetMemoryInfo", self._device).total,
        }

    def state(self) -> dict[str, object]:
        """Return what changes: clocks, power, temperature, memory in use, and why it is throttled.

        A value that this GPU does not tell is None.
        """
        # The name before driver 535; later drivers keep it.
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        power = self._ask("nvmlDeviceGetPowerUsage")
        return {
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_MEM),
            "power_w": None if power is None else power / 1e3,
            "temperature_c": self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            "memory_used_bytes": self._call("nvmlDeviceGetMemoryInfo", self._device).used,
            "throttled": [text for bit, text in _THROTTLING.items() if (reasons or 0) & bit],
        }

    def energy_mj(self) -> float | None:
        """Return the millijoules of the whole board since the driver was loaded; None before Volta."""
        return self._ask("nvmlDeviceGetTotalEnergyConsumption")

    def process_memory_bytes(self, pid: int) -> int | None:
        """Return what a process has on the GPU; None where NVML does not see it, as in a container."""
        try:
            processes = self._call("nvmlDeviceGetComputeRunningProcesses", self._device)
        except NvmlError:
            return None
        return next((one.usedGpuMemory for one in processes if one.pid == pid), None)

    def _ask(self, function: str, *arguments: Any) -> int | None:
        try:
            return int(self._call(function, self._device, *arguments))
        except NvmlError:
            return None  # some boards do not tell; NVML says NOT_SUPPORTED

    def _call(self, function: str, *arguments: Any) -> Any:
        call: Callable[..., Any] = getattr(self._nvml, function)
        try:
            return call(*arguments)
        except self._nvml.NVMLError_LibraryNotFound as error:
            raise NvmlError("no NVIDIA driver (libnvidia-ml.so.1 is missing)") from error
        except self._nvml.NVMLError_FunctionNotFound as error:
            raise NvmlError(f"{function}: this driver does not have it") from error
        except self._nvml.NVMLError as error:
            raise NvmlError(f"{function}: {first_line(error)} ({error.value})") from error


@functools.cache
def find_nvml(gpu: int = 0) -> tuple[Nvml | None, str]:
    """Return NVML for a GPU and an empty text, or None and why it cannot be used."""
    try:
        return Nvml(gpu), ""
    except NvmlError as error:
        return None, str(error)


def process_memory_bytes(pid: int, gpu: int = 0) -> int | None:
    """Return what a process has on a GPU; None where there is none or nobody tells."""
    nvml, _ = find_nvml(gpu)
    return nvml.process_memory_bytes(pid) if nvml else None
