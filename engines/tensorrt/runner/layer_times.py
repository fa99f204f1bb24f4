"""Layer times from TensorRT's profiler."""

from __future__ import annotations

import statistics
from typing import Any


def make_profiler(module: Any) -> Any:
    """Return an `IProfiler` with `median_ms()`, layer to its median time so far.

    TensorRT reports each layer after each run while the profiler is attached, which makes runs slower and
    synchronous: the times compare layers with each other, and their sum is no latency.
    """

    class Profiler(module.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IProfiler.__init__(self)
            self._times: dict[str, list[float]] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self._times.setdefault(layer_name, []).append(ms)

        def median_ms(self) -> dict[str, float]:
            return {name: statistics.median(times) for name, times in self._times.items()}

    return Profiler()
