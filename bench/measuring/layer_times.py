"""The time of each layer, by the profiler of the runtime that computes it."""

from __future__ import annotations

from collections.abc import Mapping

from ...progress import Progress
from ..recorder import Recorder
from ..workers.process import Worker
from .sweep import each_worker


def measure_layer_times(workers: Mapping[str, Worker], recorder: Recorder, progress: Progress) -> None:
    """Ask for the times of all layers; where a runtime tells none, the row has the reason as a warning.

    It must come last: each worker closes what it has measured, and opens the artifact with the profiler on.
    """

    def step(name: str, worker: Worker) -> None:
        progress(f"layer times of {name}")
        recorder.layer_times(name, worker.ask("layer_times", engine=recorder[name].engine)["ms"])

    each_worker(workers, recorder, "layer times", step)
