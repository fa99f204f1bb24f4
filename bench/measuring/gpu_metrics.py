"""GPU figures beside the latency: times by the GPU's clock, and energy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ...engines.gpu import parse_device
from ...progress import Progress
from ..recorder import Recorder
from ..results.row import GpuLatency
from ..statistics.launches import median
from ..workers.process import Worker
from .energy import energy_per_sample
from .rounds import TimingSeries

_GPU_CALLS = 50


def measure_gpu_latencies(workers: Mapping[str, Worker], recorder: Recorder) -> None:
    """Measure by the GPU's clock what TensorRT and PyTorch run there; other runtimes have none."""
    for name, worker in workers.items():
        row = recorder[name]
        has_clock = row.engine == "pytorch" or row.engine.startswith("tensorrt")
        if recorder.is_measured(name) and row.device != "cpu" and has_clock:
            latency = recorder.attempt(name, partial(_gpu_latency, worker))
            if latency is not None:
                recorder.gpu_latency(name, latency)


def measure_energy(
    workers: Mapping[str, Worker],
    recorder: Recorder,
    series: Mapping[str, TimingSeries],
    samples: int,
    progress: Progress,
) -> None:
    """Measure the energy of every artifact; where that cannot be, its row says why."""
    for name, worker in workers.items():
        warm_up = series[name].warm_up
        if not recorder.is_measured(name) or warm_up is None:
            continue
        progress(f"energy of {name}")
        step = partial(
            energy_per_sample,
            worker,
            call_ns=warm_up.call_ns,
            samples=samples,
            gpu=parse_device(recorder[name].device),
        )
        energy = recorder.attempt(name, step)
        if energy is not None:
            recorder.energy(name, energy)


def _gpu_latency(worker: Worker) -> GpuLatency:
    times = worker.ask("gpu_times", iterations=_GPU_CALLS)
    compute, transfers, enqueue = (
        median(times[f"{kind}_ns"]) / 1e6 for kind in ("compute", "with_transfers", "enqueue")
    )
    return GpuLatency(compute, transfers, enqueue)
