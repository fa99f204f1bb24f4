"""Figures beside the latency: what the GPU's own clock says, and energy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..engines.gpu import parse_device
from ..progress import Progress
from .energy import energy_per_sample
from .launches import median
from .measure import Timed
from .process import Worker
from .results import Entry

_GPU_CALLS = 50

Guard = Callable[[Entry, Callable[[], Any]], Any]


def record_gpu_times(workers: Mapping[str, Worker], entries: Mapping[str, Entry], guard: Guard) -> None:
    """Write `gpu_latency_ms` of TensorRT's engines; other runtimes have no such clock."""
    for name, worker in workers.items():
        if entries[name].status == "measured" and entries[name].engine.startswith("tensorrt"):
            times = guard(entries[name], partial(worker.ask, "gpu_times", iterations=_GPU_CALLS))
            if times is not None:
                entries[name].gpu_latency_ms = {
                    kind: median(times[f"{kind}_ns"]) / 1e6
                    for kind in ("compute", "with_transfers", "enqueue")
                }


def record_energy(
    workers: Mapping[str, Worker],
    entries: Mapping[str, Entry],
    timed: Mapping[str, Timed],
    samples: int,
    guard: Guard,
    progress: Progress,
) -> None:
    """Write `energy` of every entry, or why there is none."""
    for name, worker in workers.items():
        entry, warm_up = entries[name], timed[name].warm_up
        if entry.status != "measured" or warm_up is None:
            continue
        progress(f"energy of {name}")
        step = partial(
            energy_per_sample,
            worker,
            call_ns=warm_up.call_ns,
            samples=samples,
            gpu=parse_device(entry.device),
        )
        entry.energy = guard(entry, step)
