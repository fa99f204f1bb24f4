"""Times by the GPU's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class GpuTimes:
    """Durations of inferences on one stream, each int64 nanoseconds, shape [iterations].

    CUDA events resolve about half a microsecond (cuEventElapsedTime).

    Attributes:
        compute: By events between the copies: the kernels, and gaps between them where the host takes longer
            to enqueue an inference than the device to compute one: compare with `enqueue`.
        with_transfers: By events around the copies, but not filling page-locked memory with the feeds, nor
            copies out of it. Inputs that were on the device are copied for a CUDA graph alone.
        enqueue: By the host's clock, inside `execute_async_v3`, the launch of the CUDA graph, or `forward()`.
    """

    compute: NDArray[np.int64]
    with_transfers: NDArray[np.int64]
    enqueue: NDArray[np.int64]


def time_runs(
    iterations: int,
    make_event: Callable[[], Any],
    stream: Any,
    upload: Callable[[], None],
    compute: Callable[[], None],
    download: Callable[[], None],
) -> GpuTimes:
    """Time inferences on a stream as trtexec does, which enqueues one before it waits for the one before.

    trtexec: samples/common/sampleInference.cpp of 10.16, `IterationBase`, whose depth is 2 and whose `sync`
    waits for an event. More in flight would fill the driver's queue of launches, on which an enqueue waits.
    """
    events = [[make_event() for _ in range(4)] for _ in range(2)]
    times = np.zeros((3, iterations), np.int64)
    for turn in range(iterations + 1):
        if turn < iterations:
            before, uploaded, computed, downloaded = events[turn % 2]
            before.record(stream)
            upload()
            uploaded.record(stream)
            start = time.perf_counter_ns()
            compute()
            times[2, turn] = time.perf_counter_ns() - start
            computed.record(stream)
            download()
            downloaded.record(stream)
        if turn > 0:
            before, uploaded, computed, downloaded = events[(turn - 1) % 2]
            downloaded.synchronize()
            times[0, turn - 1] = round(uploaded.elapsed_time(computed) * _NS_PER_MS)
            times[1, turn - 1] = round(before.elapsed_time(downloaded) * _NS_PER_MS)
    return GpuTimes(*times)
