"""Choose the artifacts of a benchmark and its baseline; start a worker process for each at every launch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...core.processes.worker import Worker
from ...core.progress import Progress
from ...engines.gpu import device_text
from ...errors import InvalidOption, ModelError, QCompileError
from ...model.graph.graph import WeightStats
from ...model.sessions.session import usable_cores
from ...spec.measure import BenchSpec
from ...spec.words import CUDA_GRAPH
from ..results.row import ColdStart, Row
from .artifacts import WORKER, RunnableArtifact, describe, load_in_worker, parse_interpreters, short_name
from .recorder import Recorder
from .rounds import TimingSeries


def choose_runnables(
    artifacts: Sequence[str] | Mapping[str, str], spec: BenchSpec, devices: Sequence[int | None] = ()
) -> tuple[list[RunnableArtifact], str]:
    """Return the artifacts to measure, baseline first, and the baseline's name.

    Each MODEL in `artifacts`, but not in `models`, is repeated in each of `torch_modes`. Each artifact is
    repeated on each further entry of `devices` that its runtime supports. With `cuda_graph=None` a TensorRT
    engine runs with a CUDA graph if possible, with False without; True adds rows with it.
    """
    baseline, cuda_graph, pythons = spec.baseline, spec.cuda_graph, parse_interpreters(spec.python)
    named = dict(artifacts) if isinstance(artifacts, Mapping) else {}
    if not isinstance(artifacts, Mapping):
        for artifact in artifacts:
            name, number = short_name(artifact), 1
            while name in named:
                number += 1
                name = f"{short_name(artifact)} ({number})"
            named[name] = artifact
    base = next((name for name, artifact in named.items() if baseline in (name, artifact)), "")
    if not base:
        short = short_name(baseline)
        base = f"{short} (baseline)" if short in named else short
        named = {base: baseline, **named}
    models = dict(text.split("=", 1) for text in spec.models)
    if duplicates := sorted(models.keys() & named.keys()):
        raise InvalidOption(f"`models`: the name {duplicates[0]!r} is taken", option="models")

    def on_devices(group: Mapping[str, str]) -> Iterator[RunnableArtifact]:
        for name, artifact in group.items():
            described = describe(artifact, name, trust=spec.trust, pythons=pythons)
            if cuda_graph is None and _is_plan(described):
                described = replace(described, mode=CUDA_GRAPH, allows_no_graph=True)
            yield from _on_devices(described, devices)

    listed = list(on_devices(named))
    runnables = [*listed, *on_devices(models)]
    reference = next(runnable for runnable in runnables if runnable.name == base)
    if reference.why_not:
        raise InvalidOption(f"baseline {baseline}: cannot run here: {reference.why_not}")
    torch_models = [runnable for runnable in listed if runnable.engine == "pytorch"]
    if spec.torch_modes and not torch_models:
        raise InvalidOption("`torch_modes`: no artifact is a PyTorch MODEL", option="torch_modes")
    for mode in dict.fromkeys(spec.torch_modes):
        runnables += [
            replace(model, name=f"{model.name} ({mode})", mode=mode, precision=_precision(model, mode))
            for model in torch_models
        ]
    if cuda_graph:
        plans = [runnable for runnable in runnables if _is_plan(runnable)]
        if not plans:
            raise InvalidOption(
                "`cuda_graph`: no artifact is an engine of TensorRT",
                hint="build one with `target` tensorrt; for PyTorch there is `torch_modes` compile",
                option="cuda_graph",
            )
        runnables += [replace(plan, mode=CUDA_GRAPH, name=f"{plan.name} (CUDA graph)") for plan in plans]
    if spec.streams and not any(runnable.device.startswith("cuda") for runnable in runnables):
        raise InvalidOption(
            "`streams`: inferences are in flight on a GPU, and no artifact runs on one",
            hint="give `devices` cuda, or an engine of TensorRT; for the processor there is `clients`",
            option="streams",
        )
    return sorted(runnables, key=lambda runnable: runnable is not reference), base


def _precision(model: RunnableArtifact, mode: str) -> str:
    """Return a MODEL's precision in a mode; autocast's default is bfloat16 on processors, float16 on GPUs."""
    if mode == "half":
        return "fp16"
    if mode == "autocast":
        return "bf16" if model.device == "cpu" else "fp16"
    return model.precision


def _is_plan(runnable: RunnableArtifact) -> bool:
    return runnable.engine.startswith("tensorrt")


def _on_devices(runnable: RunnableArtifact, devices: Sequence[int | None]) -> list[RunnableArtifact]:
    """Return a copy of the artifact for each supported device; without any, the artifact itself."""
    device_names = [
        device_text(number) for number in devices if ("cpu" if number is None else "cuda") in runnable.places
    ]
    copies = [
        replace(runnable, device=device, name=f"{runnable.name} ({device})" if index else runnable.name)
        for index, device in enumerate(device_names)
    ] or [runnable]
    for index, copy in enumerate(copies):
        if copy.device.startswith("cuda") and copy.runs_on == "CPU":
            copies[index] = replace(copy, runs_on="GPU")
    return copies


def row_of(runnable: RunnableArtifact) -> Row:
    """Return the row of an artifact before measuring."""
    return Row(
        name=runnable.name,
        artifact=runnable.artifact,
        engine=runnable.engine,
        precision=runnable.precision,
        runs_on=runnable.runs_on,
        status="not run" if runnable.why_not else "measured",
        reason=runnable.why_not,
        size_bytes=runnable.size_bytes,
        mode=runnable.mode,
        device=runnable.device,
        interpreter=runnable.python,
        layers_by_precision=runnable.layers_by_precision,
        parameters=(runnable.weights.parameters or None) if runnable.weights else None,
        weights_bytes=runnable.weights.bytes if runnable.weights else None,
        warnings=runnable.warnings,
    )


class WorkerPool:
    """The worker processes of all artifacts that can run here."""

    def __init__(
        self,
        runnables: Sequence[RunnableArtifact],
        recorder: Recorder,
        feeds: Path,
        spec: BenchSpec,
        progress: Progress,
    ) -> None:
        self._runnables, self._recorder, self._feeds = runnables, recorder, feeds
        self._threads, self._timeout_s = spec.threads or usable_cores(), spec.timeout_s
        self._progress = progress
        self._stack = contextlib.ExitStack()
        self._used: dict[str, tuple[float, int]] = {}
        self._launches = 0
        self.workers: dict[str, Worker] = {}
        self.timed: dict[str, TimingSeries] = {}
        self.cpu_s, self.switches = 0.0, 0
        """CPU seconds and involuntary context switches of all workers since `mark_usage`."""

    def close(self) -> None:
        self._stack.close()

    def start(self) -> float:
        """Start and load one worker after the other, without other load; return the elapsed seconds."""
        began = time.monotonic()
        for runnable in self._runnables:
            if self._recorder.is_measured(runnable.name):
                self._start(runnable)
        self.timed = {name: TimingSeries() for name in self.workers}
        return time.monotonic() - began

    def relaunch(self) -> Mapping[str, Worker]:
        """End all workers and start those without a failure again; a failed start becomes their failure."""
        self.count_usage()
        self._stack.close()
        self.workers.clear()
        self._launches += 1
        for runnable in self._runnables:
            timed = self.timed.get(runnable.name)
            if timed is not None and timed.failure is None:
                try:
                    self._start(runnable)
                except QCompileError as error:
                    timed.failure = error
        self._used = dict.fromkeys(self.workers, (0.0, 0))  # counts their start, too
        return self.workers

    def mark_usage(self) -> None:
        """Record the workers' usage so far, which `count_usage` subtracts."""
        self._used = {}
        for name, worker in self.workers.items():
            with contextlib.suppress(QCompileError):  # the benchmark reports failed workers elsewhere
                answer = worker.ask("usage")
                self._used[name] = answer["cpu_s"], answer["involuntary_switches"]

    def count_usage(self) -> None:
        for name, (cpu_s, switches) in self._used.items():
            if self.timed[name].failure is None:
                with contextlib.suppress(QCompileError):
                    answer = self.workers[name].ask("usage")
                    self.cpu_s += answer["cpu_s"] - cpu_s
                    self.switches += answer["involuntary_switches"] - switches
        self._used = {}

    def _start(self, runnable: RunnableArtifact) -> None:
        suffix = f" again ({self._launches + 1})" if self._launches else ""
        self._progress(f"load {runnable.name}{suffix}")
        worker = self._stack.enter_context(
            Worker(
                runnable.name,
                module=WORKER,
                threads=self._threads,
                python=runnable.python,
                timeout_s=self._timeout_s,
            )
        )
        try:
            started_ms = worker.hello()["started_ms"]
            load_answer = load_in_worker(worker, runnable, self._runnables, self._threads)
            feed_answer = worker.ask("feed", path=str(self._feeds))
        except QCompileError as error:
            worker.kill()
            if runnable.allows_no_graph and isinstance(error, ModelError) and not self._launches:
                self._start_without_graph(runnable, error)
                return
            if self._launches or runnable.name == self._recorder.base:
                raise
            self._recorder.record_failure(runnable.name, error)
            return
        if not feed_answer["at_rest"]:
            worker.freeze()
        if not self._launches:
            cold_start = ColdStart(started_ms, load_answer["load_ns"] / 1e6, feed_answer["first_ns"] / 1e6)
            self._recorder.change(
                runnable.name, cold_start=cold_start, load_ms=cold_start.load_ms,
                contains=load_answer["contains"], packages=load_answer["packages"],
            )  # fmt: skip
            if load_answer["weights"]:
                self._recorder.weights(runnable.name, WeightStats(**load_answer["weights"]))
            self._recorder.warn(runnable.name, *feed_answer["notes"])
        self.workers[runnable.name] = worker

    def _start_without_graph(self, runnable: RunnableArtifact, error: ModelError) -> None:
        """Start an engine without a CUDA graph, in a new process, in this launch and all later ones."""
        plain = replace(runnable, mode="eager", allows_no_graph=False)
        self._runnables = [plain if item is runnable else item for item in self._runnables]
        self._start(plain)
        if self._recorder.is_measured(plain.name):
            self._recorder.change(plain.name, mode="eager")
            self._recorder.warn(plain.name, f"measured without a CUDA graph: {error.message}")
