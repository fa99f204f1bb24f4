"""What the numbers were measured in: a figure without its machine is not repeatable."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ..artifact import tool_versions
from ..engines.processor import processor


def environment(threads: int) -> dict[str, object]:
    """Return processor, cores, memory, load, system and versions."""
    import psutil

    return {
        **processor(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "threads": threads,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": tool_versions("torch", "onnxruntime", "onnx", "numpy", "polygraphy", "tensorrt-rtx"),
    }


def _read(path: str) -> str | None:
    file = Path(path)
    return file.read_text().strip() if file.is_file() else None
