"""Measure figures beside the latency: GPU-clock times, energy, layer times, and curves over batch sizes,
concurrent clients, and inferences in flight. Each point takes one second after a short warm-up."""

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
    """Measure latencies by the GPU's clock for TensorRT and PyTorch; other runtimes have no such clock."""
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
    for number, (name, worker) in enumerate(workers.items()):
        warm_up = series[name].warm_up
        if not recorder.is_measured(name) or warm_up is None:
            continue
        progress(f"energy of {name}", number, len(workers))
        gpu = parse_device(recorder[name].device)
        recorder.attempt(name, partial(_energy, worker, warm_up.call_ns, samples, gpu), "energy")


# NVML counts the energy of the whole board, RAPL that of the whole package, other programs included.
POWERCAP = Path("/sys/class/powercap")
RUN_S = 2.0  # NVML updates its counter about ten times per second


def _energy(worker: Worker, call_ns: float, samples: int, gpu: int | None) -> Energy:
    """Run an artifact for two seconds between two counter readings; return the energy, or why not."""
    read, source, why_not = rapl_counter() if gpu is None else _gpu_counter(gpu)
    if read is None:
        return Energy(unavailable=why_not)
    calls = max(int(RUN_S * 1e9 / call_ns), 1)
    before = read()
    worker.ask("time", iterations=calls)
    return Energy((read() - before) / (calls * samples), source)


def rapl_counter(folder: Path = POWERCAP) -> tuple[Callable[[], float] | None, str, str]:
    """Return a counter of millijoules over all processor packages and its source, or None and the reason.

    See https://docs.kernel.org/power/powercap/powercap.html. The counter corrects wrap-around.
    """
    packages = sorted(
        zone for zone in folder.glob("intel-rapl:*")
        if zone.name.count(":") == 1 and (read_system(str(zone / "name")) or "").startswith("package")
    )  # fmt: skip
    if not packages:
        return None, "", f"this system reports no energy (no intel-rapl in {folder})"
    limits_uj, last_uj, wrapped_uj = {}, {}, dict.fromkeys(packages, 0)
    for path in packages:
        try:
            limits_uj[path] = int((path / "max_energy_range_uj").read_text())
            last_uj[path] = int((path / "energy_uj").read_text())
        except OSError as error:
            return None, "", f"{error.filename}: cannot be read ({error.strerror}); root may read it"

    def read() -> float:
        for path in packages:
            now_uj = int((path / "energy_uj").read_text())
            if now_uj < last_uj[path]:
                wrapped_uj[path] += limits_uj[path]
            last_uj[path] = now_uj
        return sum(last_uj[path] + wrapped_uj[path] for path in packages) / 1e3

    return read, f"RAPL, {len(packages)} processor package(s), idle power contained", ""


def _gpu_counter(gpu: int) -> tuple[Callable[[], float] | None, str, str]:
    nvml, why_not = find_nvml(gpu)
    if nvml is None:
        return None, "", why_not
    if nvml.energy_mj() is None:
        return None, "", "this GPU does not report its energy to NVML"
    return lambda: nvml.energy_mj() or 0.0, "NVML, the whole board, idle power contained", ""


def measure_layer_times(workers: Workers, recorder: Recorder, progress: Progress) -> None:
    """Record the times of all layers; if a runtime reports none, record its reason as a warning.

    This step must be the last: each worker closes its artifact and opens it again with the profiler on.
    """

    def step(name: str, worker: Worker) -> None:
        progress(f"layer times of {name}", [*workers].index(name), len(workers))
        times_ms = worker.ask("layer_times", engine=recorder[name].engine)["ms"]
        recorder.change(name, layer_times_ms=times_ms)

    each_worker(workers, recorder, "layer times", step)


POINT_S = 1.0
_WARM_UP_S = 2.0
_FEWEST_CALLS = 5
_CONCURRENCY_MODES: dict[str, tuple[str, Curve, str]] = {
    "clients": ("clients", "concurrency", "clients"),
    "streams": ("in_flight", "in_flight", "in flight"),
}
"""Option to the worker's request, the row's curve, and the words for progress."""


def sweep_batches(
    workers: Workers, recorder: Recorder, feeds_of: Mapping[int, Feeds], folder: Path, progress: Progress
) -> None:
    """Measure over batch sizes; afterwards give the workers the feeds of the folder again."""
    for number, (batch_size, feeds) in enumerate(feeds_of.items()):
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

        progress(f"batch size {batch_size}", number, len(feeds_of))
        each_worker(workers, recorder, f"batch size {batch_size}", step)

    if feeds_of:
        each_worker(
            workers, recorder, "feeds", lambda _, worker: worker.ask("feed", path=f"{folder}/feeds.npz")
        )


def sweep_concurrency(
    workers: Workers,
    recorder: Recorder,
    counts_of: Mapping[str, Sequence[int]],
    samples: int,
    progress: Progress,
) -> None:
    """Measure over numbers of clients, threads that call one artifact in a closed loop; on a GPU, also over
    numbers of inferences that one thread has in flight ("streams").

    The latency of an inference in flight lasts from its start until its outputs are ready.
    """
    on_gpu = {name: worker for name, worker in workers.items() if recorder[name].device.startswith("cuda")}
    for option, counts in counts_of.items():
        _, _, label = _CONCURRENCY_MODES[option]
        for number, count in enumerate(counts):
            progress(f"{count} {label}", number, len(counts))
            step = partial(_run_point, recorder, option, count, samples)
            each_worker(workers if option == "clients" else on_gpu, recorder, f"{count} {label}", step)


def _run_point(recorder: Recorder, option: str, count: int, samples: int, name: str, worker: Worker) -> None:
    request, curve, _ = _CONCURRENCY_MODES[option]
    arguments: dict[str, Any] = {option: count, "seconds": POINT_S}
    answer = worker.ask(request, **arguments)
    if not answer["at_rest"]:
        worker.freeze()
    throughput_per_s = samples * len(answer["ns"]) / (answer["wall_ns"] / 1e9)
    _add_point(recorder, name, curve, option, count, answer["ns"], throughput_per_s)


def each_worker(
    workers: Workers, recorder: Recorder, subject: str, step: Callable[[str, Worker], object]
) -> None:
    """Run `step` for every worker that responds; a failure becomes a warning, and a dead worker is ended."""
    for name, worker in workers.items():
        if not recorder.is_measured(name) or recorder[name].output_tail:
            continue
        try:
            step(name, worker)
        except QCompileError as error:
            recorder.warn(name, f"{subject}: {error.message.removeprefix(f'{name}: ')}")
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
