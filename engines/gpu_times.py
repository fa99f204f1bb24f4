"""Times by the GPU's own clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class GpuTimes:
    """Durations of inferences that ran one after the other, each int64 nanoseconds, shape [iterations].

    CUDA events resolve about half a microsecond (cuEventElapsedTime).

    Attributes:
        compute: By CUDA events on the stream, from after the last copy to the device until before the first
            copy from it: the kernels, and the gaps in which the device waits for the host to enqueue them.
        with_transfers: By CUDA events, from before the first copy to the device until after the last copy
            from it. Inputs that were on the device are copied for a CUDA graph alone. Filling page-locked
            memory with the feeds, and copies out of it, are not contained.
        enqueue: By the host's clock, inside `execute_async_v3`, the launch of the CUDA graph, or `forward()`.
    """

    compute: NDArray[np.int64]
    with_transfers: NDArray[np.int64]
    enqueue: NDArray[np.int64]


def nanoseconds(milliseconds: float) -> int:
    """Return whole nanoseconds: CUDA tells the time between two events in milliseconds."""
    return round(float(milliseconds) * _NS_PER_MS)


def collect(runs: Sequence[tuple[int, int, int]]) -> GpuTimes:
    """Return the times of runs that are (compute, with transfers, enqueue), in nanoseconds."""
    columns = np.asarray(runs, np.int64).reshape(-1, 3).T
    return GpuTimes(columns[0].copy(), columns[1].copy(), columns[2].copy())
