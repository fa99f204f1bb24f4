"""Figures beside the latency: times by the GPU's clock, energy, and the time of each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

from ...engines.gpu import parse_device
from ...processes.worker import Worker
from ...progress import Progress
from ..recorder import Recorder
from ..results.row import Energy, GpuLatency
from .nvml import find_nvml
from .rounds import TimingSeries
from .sweep import each_worker

_GPU_CALLS = 50


def measure_gpu_latencies(workers: Mapping[str, Worker], recorder: Recorder) -> None:
    """Measure by the GPU's clock what TensorRT and PyTorch run there; other runtimes have none."""
    for name, worker in workers.items():
        row = recorder[name]
        has_clock = row.engine == "pytorch" or row.engine.startswith("tensorrt")
        if recorder.is_measured(name) and row.device != "cpu" and has_clock:
            latency = recorder.attempt(name, partial(_gpu_latency, worker))
            if latency is not None:
                recorder.change(name, gpu_latency=latency)


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
            recorder.change(name, energy=energy)


def _gpu_latency(worker: Worker) -> GpuLatency:
    times = worker.ask("gpu_times", iterations=_GPU_CALLS)
    compute, transfers, enqueue = (
        median(times[f"{kind}_ns"]) / 1e6 for kind in ("compute", "with_transfers", "enqueue")
    )
    return GpuLatency(compute, transfers, enqueue)


# Energy of an inference: from NVML for a GPU, from RAPL for a processor, where they can be read.
#
# Counters of the whole board or package: idle power is contained, and whatever else runs.


POWERCAP = Path("/sys/class/powercap")
RUN_S = 2.0  # NVML renews its counter some ten times a second


def energy_per_sample(worker: Worker, *, call_ns: float, samples: int, gpu: int | None) -> Energy:
    """Run an artifact for two seconds between two readings of a counter.

    Returns:
        The energy, or why there is none.
    """
    read, source, why_not = rapl_counter() if gpu is None else _gpu_counter(gpu)
    if read is None:
        return Energy(unavailable=why_not)
    calls = max(int(RUN_S * 1e9 / call_ns), 1)
    before = read()
    worker.ask("time", iterations=calls)
    return Energy((read() - before) / (calls * samples), source)


def rapl_counter(folder: Path = POWERCAP) -> tuple[Callable[[], float] | None, str, str]:
    """Return a counter of millijoules over all processor packages, its source, and why there is none.

    https://docs.kernel.org/power/powercap/powercap.html. Counters that wrap around are unwrapped.
    """
    packages = sorted(
        path for path in folder.glob("intel-rapl:*") if path.name.count(":") == 1 and _is_package(path)
    )
    if not packages:
        return None, "", f"this system tells no energy (no intel-rapl in {folder})"
    limits, last, carried = {}, {}, dict.fromkeys(packages, 0)
    for path in packages:
        try:
            limits[path] = int((path / "max_energy_range_uj").read_text())
            last[path] = int((path / "energy_uj").read_text())
        except OSError as error:
            return None, "", f"{error.filename}: cannot be read ({error.strerror}); root may read it"

    def read() -> float:
        for path in packages:
            now = int((path / "energy_uj").read_text())
            if now < last[path]:
                carried[path] += limits[path]
            last[path] = now
        return sum(last[path] + carried[path] for path in packages) / 1e3

    return read, f"RAPL, {len(packages)} processor package(s), idle power contained", ""


def _gpu_counter(gpu: int) -> tuple[Callable[[], float] | None, str, str]:
    nvml, why_not = find_nvml(gpu)
    if nvml is None:
        return None, "", why_not
    if nvml.energy_mj() is None:
        return None, "", "this GPU does not tell its energy to NVML"
    return lambda: nvml.energy_mj() or 0.0, "NVML, the whole board, idle power contained", ""


def _is_package(path: Path) -> bool:
    try:
        return (path / "name").read_text().startswith("package")
    except OSError:
        return False


def measure_layer_times(workers: Mapping[str, Worker], recorder: Recorder, progress: Progress) -> None:
    """Ask for the times of all layers; where a runtime tells none, the row has the reason as a warning.

    It must come last: each worker closes what it has measured, and opens the artifact with the profiler on.
    """

    def step(name: str, worker: Worker) -> None:
        progress(f"layer times of {name}")
        times_ms = worker.ask("layer_times", engine=recorder[name].engine)["ms"]
        recorder.change(name, layer_times_ms=times_ms)

    each_worker(workers, recorder, "layer times", step)
