"""Figures beside the latency: times by the GPU's clock, energy, times of layers, and curves over batch sizes,
clients that call at once, and inferences in flight, each point one second after a short warm-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ...core.processes.arrays import save_arrays
from ...core.processes.worker import Worker
from ...core.progress import Progress
from ...engines.gpu import parse_device
from ...errors import QCompileError, WorkerError
from ...spec.tensors import Feeds
from ..results.environment import find_nvml, read_system
from ..results.row import Curve, CurvePoint, Energy, GpuLatency
from .recorder import Recorder, latency_of
from .rounds import TimingSeries, Workers, ask_timing, warm_up

_GPU_CALLS = 50


def measure_gpu_latencies(workers: Workers, recorder: Recorder) -> None:
    """Measure by the GPU's clock what TensorRT and PyTorch run there; other runtimes have none."""
    for name, worker in workers.items():
        row = recorder[name]
        has_clock = row.engine == "pytorch" or row.engine.startswith("tensorrt")
        if recorder.is_measured(name) and row.device != "cpu" and has_clock:
            recorder.attempt(name, partial(_gpu_latency, worker), "gpu_latency")


def _gpu_latency(worker: Worker) -> GpuLatency:
    times = worker.ask("gpu_times", iterations=_GPU_CALLS)
    return GpuLatency(*(median(times[f"{k}_ns"]) / 1e6 for k in ("compute", "with_transfers", "enqueue")))


def measure_energy(
    workers: Workers, recorder: Recorder, series: Mapping[str, TimingSeries], samples: int, progress: Progress
) -> None:
    for name, worker in workers.items():
        warm_up = series[name].warm_up
        if not recorder.is_measured(name) or warm_up is None:
            continue
        progress(f"energy of {name}")
        gpu = parse_device(recorder[name].device)
        recorder.attempt(name, partial(_energy, worker, warm_up.call_ns, samples, gpu), "energy")


# Energy is that of counters of the whole board (NVML) or package (RAPL): whatever else runs is contained.
POWERCAP = Path("/sys/class/powercap")
RUN_S = 2.0  # NVML renews its counter some ten times a second


def _energy(worker: Worker, call_ns: float, samples: int, gpu: int | None) -> Energy:
    """Run an artifact for two seconds between two readings of a counter; return the energy, or why not."""
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
        zone for zone in folder.glob("intel-rapl:*")
        if zone.name.count(":") == 1 and (read_system(str(zone / "name")) or "").startswith("package")
    )  # fmt: skip
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


def measure_layer_times(workers: Workers, recorder: Recorder, progress: Progress) -> None:
    """Ask for the times of all layers; where a runtime tells none, the row has the reason as a warning.

    It must come last: each worker closes what it has measured, and opens the artifact with the profiler on.
    """

    def step(name: str, worker: Worker) -> None:
        progress(f"layer times of {name}")
        times_ms = worker.ask("layer_times", engine=recorder[name].engine)["ms"]
        recorder.change(name, layer_times_ms=times_ms)

    each_worker(workers, recorder, "layer times", step)


POINT_S = 1.0
_WARM_UP_S = 2.0
_FEWEST_CALLS = 5
_AT_ONCE: dict[str, tuple[str, Curve, str]] = {
    "clients": ("clients", "concurrency", "clients"),
    "streams": ("in_flight", "in_flight", "in flight"),
}
"""Option to the request of the worker, the curve of the row, and words."""


def sweep_batches(
    workers: Workers, recorder: Recorder, feeds_of: Mapping[int, Feeds], folder: Path, progress: Progress
) -> None:
    """Measure over batch sizes; afterwards the workers have the feeds in the folder again."""
    for batch_size, feeds in feeds_of.items():
        path = folder / f"batch-{batch_size}.npz"
        save_arrays(path, feeds)

        def step(name: str, worker: Worker, path: Path = path, batch_size: int = batch_size) -> None:
            worker.ask("feed", path=str(path))
            warm = warm_up(lambda n: worker.ask("time", iterations=n, rest=False)["ns"], limit_s=_WARM_UP_S)
            call_ns = warm.call_ns
            calls = max(int(POINT_S * 1e9 / call_ns), _FEWEST_CALLS)
            durations, _ = ask_timing(worker, calls * call_ns / 1e9, iterations=calls)
            throughput_per_s = batch_size * len(durations) / (sum(durations) / 1e9)
            _add_point(recorder, name, "batches", "batch_size", batch_size, durations, throughput_per_s)

        progress(f"batch size {batch_size}")
        each_worker(workers, recorder, f"batch size {batch_size}", step)

    if feeds_of:
        each_worker(
            workers, recorder, "feeds", lambda _, worker: worker.ask("feed", path=f"{folder}/feeds.npz")
        )


def sweep_at_once(
    workers: Workers,
    recorder: Recorder,
    counts_of: Mapping[str, Sequence[int]],
    samples: int,
    progress: Progress,
) -> None:
    """Measure over numbers of clients, threads that call one artifact in a closed loop; and, of what runs on
    a GPU, over numbers of inferences that one thread keeps in flight ("streams").

    The latency of a point of the latter is from the start of an inference until its outputs were waited for.
    """
    on_gpu = {name: worker for name, worker in workers.items() if recorder[name].device.startswith("cuda")}
    for option, counts in counts_of.items():
        _, _, words = _AT_ONCE[option]
        for count in counts:
            progress(f"{count} {words}")
            step = partial(_at_once, recorder, option, count, samples)
            each_worker(workers if option == "clients" else on_gpu, recorder, f"{count} {words}", step)


def _at_once(recorder: Recorder, option: str, count: int, samples: int, name: str, worker: Worker) -> None:
    do, curve, _ = _AT_ONCE[option]
    arguments: dict[str, Any] = {option: count, "seconds": POINT_S}
    answer = worker.ask(do, **arguments)
    if not answer["at_rest"]:
        worker.freeze()
    throughput_per_s = samples * len(answer["ns"]) / (answer["wall_ns"] / 1e9)
    _add_point(recorder, name, curve, option, count, answer["ns"], throughput_per_s)


def each_worker(
    workers: Workers, recorder: Recorder, what: str, step: Callable[[str, Worker], object]
) -> None:
    """Do a step with every worker that can be asked.

    One that fails is a warning: the artifact's other figures stand. A dead worker is asked no more.
    """
    for name, worker in workers.items():
        if not recorder.is_measured(name) or recorder[name].output_tail:
            continue
        try:
            step(name, worker)
        except QCompileError as error:
            recorder.warn(name, f"{what}: {error.message.removeprefix(f'{name}: ')}")
            if isinstance(error, WorkerError):
                recorder.change(name, output_tail=str(error.data.get("output", "")) or error.message)
                worker.kill()


def _add_point(
    recorder: Recorder, name: str, curve: Curve, axis: str, count: int, durations_ns: Sequence[int],
    throughput_per_s: float,
) -> None:  # fmt: skip
    latency = latency_of([ns / 1e6 for ns in durations_ns])
    point = CurvePoint(
        median_ms=latency.median_ms, p90_ms=latency.p90_ms, p99_ms=latency.p99_ms,
        throughput_per_s=throughput_per_s, **{axis: count},
    )  # fmt: skip
    recorder.change(name, **{curve: (*getattr(recorder[name], curve), point)})
