"""Curves: latency and throughput over batch sizes, clients that call at once, and inferences in flight.

Each point is one second after a short warm-up; the points of all artifacts are taken in turn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import QCompileError, WorkerError
from ...processes.worker import Worker
from ...progress import Progress
from ...tensors import Feeds
from ..outputs import save_feeds
from ..recorder import Recorder, latency_of
from ..results.row import Curve, CurvePoint
from .rounds import ask_timing
from .warm_up import warm_up

POINT_S = 1.0
_WARM_UP_S = 2.0
_FEWEST_CALLS = 5
_AT_ONCE: dict[str, tuple[str, Curve, str]] = {
    "clients": ("clients", "concurrency", "clients"),
    "streams": ("in_flight", "in_flight", "in flight"),
}
"""Option to the request of the worker, the curve of the row, and words."""


def sweep_batches(
    workers: Mapping[str, Worker],
    recorder: Recorder,
    feeds_of: Mapping[int, Feeds],
    folder: Path,
    progress: Progress,
) -> None:
    """Measure every artifact over batch sizes."""
    for batch_size, feeds in feeds_of.items():
        path = folder / f"batch-{batch_size}.npz"
        save_feeds(feeds, path)

        def step(name: str, worker: Worker, path: Path = path, batch_size: int = batch_size) -> None:
            worker.ask("feed", path=str(path))
            call_ns = warm(worker)
            calls = max(int(POINT_S * 1e9 / call_ns), _FEWEST_CALLS)
            durations, _ = ask_timing(worker, "time", calls * call_ns / 1e9, iterations=calls)
            throughput_per_s = batch_size * len(durations) / (sum(durations) / 1e9)
            recorder.point(name, "batches", _point("batch_size", batch_size, durations, throughput_per_s))

        progress(f"batch size {batch_size}")
        each_worker(workers, recorder, f"batch size {batch_size}", step)


def sweep_at_once(
    workers: Mapping[str, Worker],
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
            step = functools.partial(_at_once, recorder, option, count, samples)
            each_worker(workers if option == "clients" else on_gpu, recorder, f"{count} {words}", step)


def _at_once(recorder: Recorder, option: str, count: int, samples: int, name: str, worker: Worker) -> None:
    do, curve, _ = _AT_ONCE[option]
    arguments: dict[str, Any] = {option: count, "seconds": POINT_S}
    answer = worker.ask(do, **arguments)
    if not answer["at_rest"]:
        worker.freeze()
    throughput_per_s = samples * len(answer["ns"]) / (answer["wall_ns"] / 1e9)
    recorder.point(name, curve, _point(option, count, answer["ns"], throughput_per_s))


def each_worker(
    workers: Mapping[str, Worker], recorder: Recorder, what: str, step: Callable[[str, Worker], None]
) -> None:
    """Do a step with every worker that can be asked.

    One that fails is a warning: the artifact's other figures stand. A dead worker is asked no more.
    """
    for name, worker in workers.items():
        if not recorder.can_be_asked(name):
            continue
        try:
            step(name, worker)
        except QCompileError as error:
            recorder.warn(name, f"{what}: {error.message.removeprefix(f'{name}: ')}")
            if isinstance(error, WorkerError):
                recorder.died(name, error)
                worker.kill()


def _point(axis: str, count: int, durations_ns: Sequence[int], throughput_per_s: float) -> CurvePoint:
    latency = latency_of([ns / 1e6 for ns in durations_ns])
    return CurvePoint(
        median_ms=latency.median_ms, p90_ms=latency.p90_ms, p99_ms=latency.p99_ms,
        throughput_per_s=throughput_per_s, **{axis: count},
    )  # fmt: skip


def warm(worker: Worker) -> float:
    """Call until the latency is stable, or for two seconds; returns the nanoseconds of a call."""

    def time_calls(iterations: int) -> list[int]:
        durations_ns: list[int] = worker.ask("time", iterations=iterations, rest=False)["ns"]
        return durations_ns

    return warm_up(time_calls, limit_s=_WARM_UP_S).call_ns
