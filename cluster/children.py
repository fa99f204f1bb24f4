"""Processes that carry out a worker's stages: a crash, a leak or a hang ends one of them, never the worker.

A process is kept for the next stage of the same recipe: what a recipe's code leaves in the interpreter never
reaches another recipe. Killing one loses nothing: a stage's folder gets its name by one rename.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..bench.workers.process import Worker, read_answer
from ..errors import ClusterError
from ..model.session import CORES, usable_cores
from ..progress import Progress, silent
from .messages import StageKilled

_MODULE = "qcompile.cluster.stage_process"
_LOOK_S = 0.1
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class StageProcess(Worker):
    """One process.

    Args:
        name: Of the worker, for messages.
        cores: That its stages may use.
        variables: Of its environment.
    """

    def __init__(self, name: str, cores: int, variables: Mapping[str, str | None]) -> None:
        super().__init__(name, threads=0, module=_MODULE, variables=variables)
        self.cores = cores
        self.recipe = ""
        """The recipe that it has carried out stages of."""

    @property
    def is_alive(self) -> bool:
        """Whether it can take another request."""
        return self._process.poll() is None

    def ask(  # type: ignore[override]  # waits as long as its caller checks
        self,
        do: str,
        *,
        check: Callable[[], None] = lambda: None,
        progress: Progress = silent,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Send one request and return its answer.

        Args:
            do: Name of the request, see `stage_process`.
            check: Called several times a second; what it raises ends the wait.
            progress: Told of what the process does.
            arguments: Of the request.

        Raises:
            StageKilled: If the process ended.
            ClusterError: If it answered nonsense, or has a defect.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._answers.put(b"")
        while True:
            check()
            with contextlib.suppress(queue.Empty):
                answer = self._read_answer(self._answers.get(timeout=_LOOK_S))
                if "progress" not in answer:
                    return answer
                progress(answer.get("text", ""), answer["progress"], answer.get("total"))

    def _read_answer(self, line: bytes) -> dict[str, Any]:
        if not line:
            output = self.last_output()
            raise StageKilled(
                f"worker {self.name}: the process of a stage ended ({self._cause()})"
                + (f"; its last output:\n    {output.replace(chr(10), chr(10) + '    ')}" if output else "")
            )
        answer = read_answer(line)
        if answer is None or answer.get("ok") is False:
            text = f"{answer['type']}: {answer['message']}" if answer else repr(line[:80])
            raise ClusterError(
                f"worker {self.name}: the process of a stage answered {text}",
                hint="this is a defect of qcompile; data has its last output",
                worker=self.name,
                output=self.last_output(),
            )
        return answer


class Children:
    """The processes of one worker.

    Args:
        name: Of the worker, for messages.
        slots: Stages at a time.
        cores: That they may use together; one that runs alone may use them all.
        below_nanny: Whether Dask's nanny started this process: it limits libraries to one thread, and sets
            how memory is given back, which stages would inherit.
    """

    def __init__(self, name: str, *, slots: int, cores: int, below_nanny: bool = False) -> None:
        self.name, self.slots, self.cores, self._below_nanny = name, slots, cores, below_nanny
        self._lock = threading.Lock()
        self._idle: list[StageProcess] = []
        self._busy: set[StageProcess] = set()
        # Linux kills a child when the *thread* that started it ends: this one lives as long as the pool.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="qcompile-children")

    @contextlib.contextmanager
    def taken(self, *, recipe: str = "", alone: bool = False) -> Iterator[StageProcess]:
        """Yield a process for one stage; an error that leaves the block ends it.

        Args:
            recipe: Digest of the bundle of the stage's recipe.
            alone: Whether it gets all cores.
        """
        child = self._take(self.cores if alone else max(1, self.cores // self.slots), recipe)
        try:
            yield child
        except BaseException:
            self._end(child)
            raise
        with self._lock:
            self._busy.discard(child)
            self._idle.append(child)
            surplus = self._idle[: -self.slots]
            self._idle = self._idle[-self.slots :]
        for process in surplus:
            self._end(process)

    def close(self) -> None:
        """Kill all of them."""
        with self._lock:
            processes, self._idle = [*self._idle, *self._busy], []
        for process in processes:
            process.kill()
        self._starter.shutdown(wait=False)

    def _take(self, cores: int, recipe: str) -> StageProcess:
        with self._lock:
            for process in self._idle:
                if process.is_alive and process.cores == cores and process.recipe in ("", recipe):
                    self._idle.remove(process)
                    self._busy.add(process)
                    return process
        child = self._starter.submit(StageProcess, self.name, cores, self._environment(cores)).result()
        with self._lock:
            self._busy.add(child)
        return child

    def _end(self, child: StageProcess) -> None:
        with self._lock:
            self._busy.discard(child)
        child.kill()
        child.close()

    def _environment(self, cores: int) -> dict[str, str | None]:
        """What a process's libraries read when they load."""
        # Bytecode beside a recipe's code would be a file of the recipe that nobody sent.
        variables: dict[str, str | None] = {"PYTHONDONTWRITEBYTECODE": "1", CORES: str(cores)}
        if self._below_nanny:
            variables |= dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", *_THREADS))
        if cores < usable_cores():
            variables |= dict.fromkeys(_THREADS, str(cores))
        return variables
