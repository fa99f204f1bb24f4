"""Describe the machine and the versions that a benchmark ran with."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...artifact import tool_versions
from ...machine_memory import machine_bytes
from ...processor import processor
from .nvml import find_nvml

MEASURED_PACKAGES = {
    "torch": "torch",
    "onnxruntime": "onnxruntime",
    "onnxruntime-gpu": "onnxruntime",
    "openvino": "openvino",
    "tensorrt": "tensorrt",
    "tensorrt-rtx": "tensorrt_rtx",
    "pycuda": "pycuda",
    "cuda-bindings": "cuda.bindings",
    "numpy": "numpy",
}
"""Package to the module by which a worker has loaded it."""

_MACHINE = ("processor", "architecture", "features", "cores_usable", "gpu")


def environment(threads: int, gpu: int = 0) -> dict[str, Any]:
    """Return what stays as it is: processor, cores, memory, the GPU of that number, system and versions."""
    nvml, why_not = find_nvml(gpu)
    return {
        **processor(),
        "cores": os.cpu_count(),
        "cores_usable": len(_affinity() or ()) or None,
        "affinity": _affinity(),
        "threads": threads,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo_off": _read("/sys/devices/system/cpu/intel_pstate/no_turbo"),
        "cpu_limit": _read("/sys/fs/cgroup/cpu.max"),
        "memory_bytes": machine_bytes(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": tool_versions(*MEASURED_PACKAGES, "onnx", "polygraphy"),
        **(nvml.about() if nvml else {"gpu": None, "why_no_gpu": why_not}),
    }


def state(gpu: int = 0) -> dict[str, Any]:
    """Return what changes while measuring; a value that the system does not tell is None.

    `cpu_ticks` are those of /proc/stat, proc(5): all that is not idle, and what a hypervisor took away.
    """
    nvml, _ = find_nvml(gpu)
    return {
        "load_average_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "frequency_mhz": _frequency_mhz(),
        "cpu_ticks": _cpu_ticks(),
        "cpu_limited_us": _cpu_limited_us(),
        "gpu": nvml.state() if nvml else None,
    }


def machine_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two environments must share for their numbers to be compared.

    The model of processor, its instruction sets, the cores in use and the GPU; not the host's name, which
    changes with every machine that a CI service lends.
    """
    return {name: environment.get(name) for name in _MACHINE}


def machine_text(environment: Mapping[str, Any]) -> str:
    """Return the machine in one line."""
    cores = environment.get("cores_usable") or environment.get("cores")
    gpu = f", {environment['gpu']}" if environment.get("gpu") else ""
    return f"{environment.get('processor')}, {cores} cores{gpu}"


def _affinity() -> list[int] | None:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _frequency_mhz() -> float | None:
    """Mean over the usable cores."""
    files = [f"/sys/devices/system/cpu/cpu{n}/cpufreq/scaling_cur_freq" for n in _affinity() or ()]
    clocks_mhz = [int(text) / 1e3 for text in map(_read, files) if text]
    if not clocks_mhz:
        lines = (_read("/proc/cpuinfo") or "").splitlines()
        clocks_mhz = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return sum(clocks_mhz) / len(clocks_mhz) if clocks_mhz else None


def _cpu_ticks() -> dict[str, float] | None:
    """Seconds of all cores since the start of the system."""
    words = (_read("/proc/stat") or "").splitlines()[:1]
    if not words:
        return None
    user, nice, system, idle, wait, irq, soft, steal = map(float, words[0].split()[1:9])
    hertz = os.sysconf("SC_CLK_TCK")
    busy = user + nice + system + irq + soft
    return {"busy_s": busy / hertz, "stolen_s": steal / hertz, "idle_s": (idle + wait) / hertz}


def _cpu_limited_us() -> float | None:
    """Time that a container's limit has kept threads waiting, cgroup v2."""
    for line in (_read("/sys/fs/cgroup/cpu.stat") or "").splitlines():
        if line.startswith("throttled_usec"):
            return float(line.split()[1])
    return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None  # this system does not tell
