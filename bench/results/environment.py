"""Describe the machine and the versions of a benchmark, and detect what disturbed it.

NVML (package nvidia-ml-py) provides state, memory and energy of an NVIDIA GPU. Names and units are those of
https://docs.nvidia.com/deploy/nvml-api/. Nothing here changes a setting.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ...core.artifact import tool_versions
from ...core.figures import counted
from ...core.installation import install_hint
from ...core.memory import machine_bytes
from ...core.processor import processor
from ...engines.gpu import bus_id
from ...engines.registry import names, packages_of
from ...errors import first_line


def measured_packages() -> dict[str, str]:
    """Return each package to report, with the name of the module that a worker imports."""
    return {**packages_of(names()), "pycuda": "pycuda", "numpy": "numpy"}


def environment(threads: int, gpu: int = 0) -> dict[str, Any]:
    """Return the constant facts: processor, cores, memory, the GPU of that number, system and versions."""
    nvml, why_not = find_nvml(gpu)
    return {
        **processor(),
        "cores": os.cpu_count(),
        "cores_usable": len(_affinity() or ()) or None,
        "affinity": _affinity(),
        "threads": threads,
        "governor": read_system("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo_off": read_system("/sys/devices/system/cpu/intel_pstate/no_turbo"),
        "cpu_limit": read_system("/sys/fs/cgroup/cpu.max"),
        "memory_bytes": machine_bytes(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": tool_versions(*measured_packages(), "onnx", "polygraphy"),
        **(nvml.about() if nvml else {"gpu": None, "why_no_gpu": why_not}),
    }


def state(gpu: int = 0) -> dict[str, Any]:
    """Return the facts that change during a run; a value that the system does not report is None."""
    nvml, _ = find_nvml(gpu)
    return {
        "load_average_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "frequency_mhz": _frequency_mhz(),
        "cpu_ticks": _cpu_ticks(),
        "cpu_limited_us": _cpu_limited_us(),
        "gpu": nvml.state() if nvml else None,
    }


def machine_text(environment: Mapping[str, Any]) -> str:
    cores = environment.get("cores_usable") or environment.get("cores")
    gpu = f", {environment['gpu']}" if environment.get("gpu") else ""
    return f"{environment.get('processor')}, {counted(cores, 'core')}{gpu}"


def _affinity() -> list[int] | None:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _frequency_mhz() -> float | None:
    files = [f"/sys/devices/system/cpu/cpu{n}/cpufreq/scaling_cur_freq" for n in _affinity() or ()]
    clocks_mhz = [int(text) / 1e3 for text in map(read_system, files) if text]
    if not clocks_mhz:
        lines = (read_system("/proc/cpuinfo") or "").splitlines()
        clocks_mhz = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return sum(clocks_mhz) / len(clocks_mhz) if clocks_mhz else None


def _cpu_ticks() -> dict[str, float] | None:
    """Return seconds of all cores since boot from /proc/stat, proc(5): busy, stolen by a hypervisor, idle."""
    words = (read_system("/proc/stat") or "").splitlines()[:1]
    if not words:
        return None
    user, nice, system, idle, wait, irq, soft, steal = map(float, words[0].split()[1:9])
    ticks = {"busy_s": user + nice + system + irq + soft, "stolen_s": steal, "idle_s": idle + wait}
    return {name: count / os.sysconf("SC_CLK_TCK") for name, count in ticks.items()}


def _cpu_limited_us() -> float | None:
    """Return the time for which a container's CPU limit delayed threads (cgroup v2)."""
    for line in (read_system("/sys/fs/cgroup/cpu.stat") or "").splitlines():
        if line.startswith("throttled_usec"):
            return float(line.split()[1])
    return None


def read_system(path: str) -> str | None:
    """Return the content of a kernel file, or None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


_OTHER_WORK = 0.05  # share of the time of all cores
_STOLEN = 0.01
_DRIFT = 0.05
_FREQUENCY = 0.10
_SWITCHES_PER_S = 100.0
_FEWEST_ROUNDS = 9  # three in each third


class Effort(NamedTuple):
    """Work of a benchmark between two states: processor time of all processes and of the workers alone, and
    how often a thread of a worker lost its core."""

    seconds: float
    cpu_s: float
    involuntary_switches: int
    worker_cpu_s: float


def noise(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    effort: Effort,
    baseline_medians_ms: Sequence[float],
    *,
    governor: str | None = None,
) -> dict[str, Any]:
    """Return `{"noisy", "reasons"}` for two states, the work between them, and the baseline's rounds."""
    reasons = _other_work(before, after, effort)
    old_mhz, new_mhz = before.get("frequency_mhz"), after.get("frequency_mhz")
    # With a governor that follows the load, the clock of an idle core does not predict that of a busy one.
    steady = governor in (None, "performance")
    if old_mhz and new_mhz and steady and abs(new_mhz / old_mhz - 1.0) > _FREQUENCY:
        reasons.append(
            f"the processor's clock went from {old_mhz:.0f} to {new_mhz:.0f} MHz: "
            "fix it (governor performance, turbo off), or let the machine cool down"
        )
    if governor == "powersave":
        reasons.append(
            "the processor's governor is powersave: choose performance "
            "(cpupower frequency-set --governor performance)"
        )
    if len(baseline_medians_ms) >= _FEWEST_ROUNDS:
        third = len(baseline_medians_ms) // 3
        change = median(baseline_medians_ms[-third:]) / median(baseline_medians_ms[:third]) - 1.0
        if abs(change) > _DRIFT:
            change_text = f"{abs(change):.0%} {'slower' if change > 0 else 'faster'}"
            reasons.append(
                f"the baseline became {change_text} while it was measured: "
                "let the machine cool down or settle, then measure again"
            )
    gpus = [moment.get("gpu") or {} for moment in (before, after)]
    throttled = {reason for gpu in gpus for reason in gpu.get("throttled", ())}
    if throttled:
        causes = ", ".join(sorted(throttled))
        reasons.append(
            f"the GPU was throttled ({causes}): cool it, raise its power limit, or lock lower clocks"
        )
    return {"noisy": bool(reasons), "reasons": reasons}


def _other_work(before: Mapping[str, Any], after: Mapping[str, Any], effort: Effort) -> list[str]:
    reasons = []
    first, second = before.get("cpu_ticks"), after.get("cpu_ticks")
    if first and second:
        spent = {name: second[name] - first[name] for name in first}
        capacity = max(sum(spent.values()), 1e-9)
        share = max(spent["busy_s"] - effort.cpu_s, 0.0) / capacity
        if share > _OTHER_WORK:
            reasons.append(
                f"other processes took {share:.0%} of the processor: end them, or measure at another time"
            )
        if spent["stolen_s"] / capacity > _STOLEN:
            reasons.append(
                f"the hypervisor took {spent['stolen_s'] / capacity:.1%} of the processor away: "
                "measure on a dedicated machine"
            )
    limited = (after.get("cpu_limited_us") or 0.0) - (before.get("cpu_limited_us") or 0.0)
    if limited > 0.01 * effort.seconds * 1e6:
        reasons.append(
            f"the container's CPU limit kept threads waiting for {limited / 1e6:.1f} s: "
            "give it as many cores as `threads`"
        )
    rate = effort.involuntary_switches / max(effort.worker_cpu_s, 1e-9)
    if rate > _SWITCHES_PER_S:
        reasons.append(
            f"workers lost their core {rate:.0f} times per second of work: "
            "give fewer `threads` than cores, or end other processes"
        )
    return reasons


_THROTTLING = {  # the bits of nvmlClocksThrottleReasons for a GPU that runs slower than it could
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class NvmlError(Exception):
    """NVML is missing, or one of its functions failed; the message names it and the cause."""


class Nvml:
    """NVML for one GPU, by CUDA's number: NVML numbers GPUs differently and ignores CUDA_VISIBLE_DEVICES."""

    def __init__(self, gpu: int = 0) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlError(f"nvidia-ml-py is missing; {install_hint('cpu')}") from error
        self._nvml: Any = pynvml
        self._call("nvmlInit")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        device_id, bus_address = visible[gpu].strip() if gpu < len(visible) else "", bus_id(gpu)
        if device_id.startswith("MIG-") or (device_id.startswith("GPU-") and not bus_address):
            # A slice of a GPU has no bus address.
            self._device = self._call("nvmlDeviceGetHandleByUUID", device_id)
        elif bus_address:
            self._device = self._call("nvmlDeviceGetHandleByPciBusId", bus_address)
        else:
            index = int(device_id) if device_id.isdigit() else gpu
            self._device = self._call("nvmlDeviceGetHandleByIndex", index)

    def about(self) -> dict[str, object]:
        """Return the constant facts: name, driver and memory."""
        return {
            "gpu": self._call("nvmlDeviceGetName", self._device),
            "driver": self._call("nvmlSystemGetDriverVersion"),
            "gpu_memory_bytes": self._call("nvmlDeviceGetMemoryInfo", self._device).total,
        }

    def state(self) -> dict[str, object]:
        """Return clocks, power, temperature, memory in use, causes of throttling; None if not reported."""
        # The name before driver 535; later drivers still have it.
        reasons = self._query("nvmlDeviceGetCurrentClocksThrottleReasons")
        power = self._query("nvmlDeviceGetPowerUsage")
        return {
            "sm_clock_mhz": self._query("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._query("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_MEM),
            "power_w": None if power is None else power / 1e3,
            "temperature_c": self._query("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            "memory_used_bytes": self._call("nvmlDeviceGetMemoryInfo", self._device).used,
            "throttled": [text for bit, text in _THROTTLING.items() if (reasons or 0) & bit],
        }

    def energy_mj(self) -> float | None:
        """Return the energy of the whole board in mJ since the driver was loaded; None before Volta."""
        return self._query("nvmlDeviceGetTotalEnergyConsumption")

    def process_memory_bytes(self, pid: int) -> int | None:
        """Return the GPU memory of a process; None if NVML does not see the process, as in a container."""
        try:
            processes = self._call("nvmlDeviceGetComputeRunningProcesses", self._device)
        except NvmlError:
            return None
        return next((process.usedGpuMemory for process in processes if process.pid == pid), None)

    def _query(self, function: str, *arguments: Any) -> int | None:
        try:
            return int(self._call(function, self._device, *arguments))
        except NvmlError:
            return None  # NOT_SUPPORTED on some boards

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
    """Return NVML for a GPU and an empty text, or None and the reason."""
    try:
        return Nvml(gpu), ""
    except NvmlError as error:
        return None, str(error)
