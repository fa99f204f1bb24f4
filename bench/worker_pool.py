"""The workers of one bench: one process per artifact, started one after the other, launch after launch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from ..errors import ModelError, QCompileError
from ..model.graph import WeightsHeld
from ..processes.worker import Worker
from ..progress import Progress
from .measuring.rounds import TimingSeries
from .outputs import RunnableArtifact, start
from .recorder import Recorder
from .results.row import ColdStart


class WorkerPool:
    """The workers of all artifacts that can run here. A context manager; leaving it ends them."""

    def __init__(
        self,
        runnables: Sequence[RunnableArtifact],
        recorder: Recorder,
        feeds: Path,
        *,
        threads: int,
        timeout_s: float,
        progress: Progress,
    ) -> None:
        self._runnables, self._recorder, self._feeds = runnables, recorder, feeds
        self._threads, self._timeout_s, self._progress = threads, timeout_s, progress
        self._stack = contextlib.ExitStack()
        self._used: dict[str, tuple[float, int]] = {}
        self._launches = 0
        self.workers: dict[str, Worker] = {}
        self.timed: dict[str, TimingSeries] = {}
        self.cpu_s, self.switches = 0.0, 0
        """Processor time and lost cores of all workers, of the first launch since `mark_usage`."""

    def device(self, name: str) -> str:
        """Return where an artifact runs: "cpu" or "cuda:0"."""
        return next(runnable.device for runnable in self._runnables if runnable.name == name)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def start(self) -> float:
        """Start and load one worker after the other, so that load times do not disturb each other.

        Returns:
            Seconds that it took.
        """
        began = time.monotonic()
        for runnable in self._runnables:
            if self._recorder.is_measured(runnable.name):
                self._start(runnable)
        self.timed = {name: TimingSeries() for name in self.workers}
        return time.monotonic() - began

    def relaunch(self) -> Mapping[str, Worker]:
        """End all workers, and start those again that have not failed; one that does not start has then."""
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
        self._used = dict.fromkeys(self.workers, (0.0, 0))  # their start was ours too
        return self.workers

    def mark_usage(self) -> None:
        """Remember what the workers have used until now: it does not count."""
        self._used = {}
        for name, worker in self.workers.items():
            with contextlib.suppress(QCompileError):  # one that has failed is reported elsewhere
                answer = worker.ask("usage")
                self._used[name] = answer["cpu_s"], answer["involuntary_switches"]

    def count_usage(self) -> None:
        """Add what the workers have used since `mark_usage`."""
        for name, (cpu_s, switches) in self._used.items():
            if self.timed[name].failure is None:
                with contextlib.suppress(QCompileError):
                    answer = self.workers[name].ask("usage")
                    self.cpu_s += answer["cpu_s"] - cpu_s
                    self.switches += answer["involuntary_switches"] - switches
        self._used = {}

    def _start(self, runnable: RunnableArtifact) -> None:
        again = f" again ({self._launches + 1})" if self._launches else ""
        self._progress(f"load {runnable.name}{again}")
        worker = self._stack.enter_context(
            Worker(runnable.name, threads=self._threads, python=runnable.python, timeout_s=self._timeout_s)
        )
        try:
            began = worker.hello()["started_ms"]
            answer = start(worker, runnable, self._runnables, self._threads)
            fed = worker.ask("feed", path=str(self._feeds))
        except QCompileError as error:
            worker.kill()
            if runnable.falls_back and isinstance(error, ModelError) and not self._launches:
                self._start_without_graph(runnable, error)
                return
            if self._launches or runnable.name == self._recorder.base:
                raise
            self._recorder.failed(runnable.name, error)
            return
        if not fed["at_rest"]:
            worker.freeze()
        if not self._launches:
            cold_start = ColdStart(began, answer["load_ns"] / 1e6, fed["first_ns"] / 1e6)
            self._recorder.started(runnable.name, cold_start, answer["contains"], answer["packages"])
            if answer["weights"]:
                self._recorder.weights(runnable.name, WeightsHeld(**answer["weights"]))
            self._recorder.warn(runnable.name, *answer["notes"])
        self.workers[runnable.name] = worker

    def _start_without_graph(self, runnable: RunnableArtifact, error: ModelError) -> None:
        """Start an engine plainly, in a process that has seen no capture, now and in all further launches."""
        plain = replace(runnable, mode="eager", falls_back=False)
        self._runnables = [plain if one is runnable else one for one in self._runnables]
        self._start(plain)
        if self._recorder.is_measured(plain.name):
            self._recorder.without_graph(plain.name, error)
