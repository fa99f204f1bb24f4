"""Processes that carry out a worker's stages: kept warm between stages, replaced when one of them goes wrong.

A crash, a leak or a hang in a stage ends its process, never the Dask worker. A process serves one stage at a
time, and stages of other recipes only as long as it ran no code of a recipe: what that code leaves in the
interpreter would reach them. One is replaced after it died, was killed for a cancel, or holds more memory
after a stage than it may.

Children are killed with SIGKILL at once: a stage's folder gets its name by one rename, files get theirs once
their digest was verified, and checkpoints are written whole, so a kill leaves nothing that is half done.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...bench.workers.process import Worker, read_answer
from ...errors import ClusterError, OutOfMemory
from ...figures import bytes_text
from ...model.session import CORES, usable_cores
from ...progress import Progress, silent
from ...untrusted.tree import Tree, available

_MODULE = "qcompile.cluster.worker.stage_process"
_LOOK_S = 0.1
_MEMORY_EVERY_S = 0.5
_FAMILY_EVERY_S = 2.0
"""To find what a stage has started, every process of the machine is looked at."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_KEPT_BYTES = 1 << 30
"""Memory after a stage that costs nothing to keep: the runtimes that were imported."""


KILLED = "SIGKILL"
"""Begins `cause` in the data of an error where the system, or somebody else, ended a process by force."""


class StageProcess(Worker):
    """One child. Made in a thread that lives as long as the child may: the system kills it with that thread.

    Args:
        name: Of the worker, for messages.
        cores: That its stages may use.
        variables: Of its environment.
    """

    def __init__(self, name: str, cores: int, variables: Mapping[str, str | None]) -> None:
        super().__init__(name, threads=0, module=_MODULE, variables=variables)
        self.cores = cores
        self.parcel = ""
        """The recipe whose code it ran; empty while it ran none."""
        self.run = ""
        """The run that its stage belongs to; empty between stages."""
        self._tree = Tree(self.pid) if available() else None
        self._refreshed_s = 0.0

    def carry_out(
        self,
        do: str,
        *,
        check: Callable[[], None],
        progress: Progress = silent,
        memory_bytes: int = 0,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Send one request and return its answer.

        Args:
            do: Name of the request, see `stage_process`.
            check: Called several times a second; what it raises ends the wait, and the process.
            progress: Told of what the child does.
            memory_bytes: That the child and its own children may hold; 0 sets no limit.
            arguments: Of the request.

        Raises:
            ClusterError: If the process died, with its last output.
            OutOfMemory: If it was ended because it holds too much.
            QCompileError: What went wrong in it.
        """
        assert self._process.stdin is not None
        self._forget_output()
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._answers.put(b"")
        looked = time.monotonic()
        while True:
            check()
            if memory_bytes and time.monotonic() - looked > _MEMORY_EVERY_S:
                looked = time.monotonic()
                self._require_memory(do, memory_bytes)
            with contextlib.suppress(queue.Empty):
                answer = self._understood(self._answers.get(timeout=_LOOK_S))
                if "progress" not in answer:
                    return answer
                progress(answer.get("text", ""), answer["progress"], answer.get("total"))

    def kill(self) -> None:
        """End the process by force, and all that it has started, in sessions of their own too."""
        if self._tree is not None:
            self._tree.kill()
        super().kill()

    def _forget_output(self) -> None:
        """Begin its log anew: what a stage prints must not fill the disk over weeks."""
        number = self._log.fileno()
        os.ftruncate(number, 0)
        os.lseek(number, 0, os.SEEK_SET)  # of the child too: it has the same handle

    @property
    def lives(self) -> bool:
        """Whether it can take another request."""
        return self._process.poll() is None

    def _understood(self, line: bytes) -> dict[str, Any]:
        if not line:
            raise self._died(self._cause())
        answer = read_answer(line)
        if answer is None:
            raise self._died(f"it answered {line[:80]!r}")
        if answer.get("ok") is False:
            problem = f"{answer['type']}: {answer['message']}".rstrip(": ")
            raise ClusterError(
                f"worker {self.name}: the stage failed ({problem})",
                hint="this is a defect of qcompile; data has its last output",
                worker=self.name,
                output=self.last_output(),
            )
        return answer

    def _died(self, cause: str) -> ClusterError:
        said = self.last_output()
        shown = "; it said:\n    " + said.replace("\n", "\n    ") if said else ""
        return ClusterError(
            f"worker {self.name}: the process that carried out the stage ended ({cause}){shown}",
            hint="the stage may crash a native library, or take more memory than there is",
            worker=self.name,
            output=said,
            cause=cause,
        )

    def _require_memory(self, step: str, most_bytes: int) -> None:
        if self._tree is None:
            return
        now_s = time.monotonic()
        if now_s - self._refreshed_s > _FAMILY_EVERY_S:
            self._refreshed_s = now_s
            self._tree.refresh()
        held = self._tree.bytes()
        if held > most_bytes:
            self.kill()
            raise OutOfMemory(
                f"worker {self.name}: the stage holds {bytes_text(held)} of memory; at most "
                f"{bytes_text(most_bytes)} are allowed there",
                hint="give the worker more `memory`, or use a machine with more of it",
                step=step,
            )


class Children:
    """The children of one worker.

    Args:
        name: Of the worker, for messages.
        slots: Stages at a time.
        cores: That they may use together; one that runs alone may use them all.
        memory_bytes: That one of them may hold.
        below_nanny: Whether Dask's nanny started this process: it limits libraries to one thread, and sets
            how memory is given back, which stages would inherit.
    """

    def __init__(
        self,
        name: str,
        *,
        slots: int,
        cores: int,
        memory_bytes: int = 0,
        below_nanny: bool = False,
    ) -> None:
        self.name, self.slots, self.cores, self.memory_bytes = name, slots, cores, memory_bytes
        self._below_nanny = below_nanny
        self._kept_bytes = max(_KEPT_BYTES, memory_bytes // slots // 4)
        self._lock = threading.Lock()
        self._idle: list[StageProcess] = []
        self._busy: set[StageProcess] = set()
        self._closed = False
        # Linux kills a child when the *thread* that started it ends: this one lives as long as the pool.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="qcompile-children")

    @contextlib.contextmanager
    def taken(self, *, run: str = "", parcel: str = "", alone: bool = False) -> Iterator[StageProcess]:
        """Yield a child for one stage; an error that leaves the block ends it.

        Args:
            run: That the stage belongs to.
            parcel: Digest of its recipe.
            alone: Whether it gets all cores.
        """
        child = self._take(self.cores if alone else max(1, self.cores // self.slots), parcel)
        child.run = run
        try:
            yield child
        except BaseException:
            self._end(child)
            raise
        child.run = ""
        with self._lock:
            self._busy.discard(child)
            keep = child.lives and not self._closed and len(self._idle) < self.slots
            if keep:
                self._idle.append(child)
        if not keep:
            self._end(child)

    def done(self, child: StageProcess, parcel: str, answer: Mapping[str, Any]) -> None:
        """Note what a stage left in its child: code of its recipe, or too much memory."""
        if answer.get("ran_code"):
            child.parcel = parcel
        if answer.get("resident_bytes", 0) > self._kept_bytes:
            child.kill()

    def end_run(self, run: str) -> None:
        """Kill the children that carry out stages of a run."""
        with self._lock:
            theirs = [child for child in self._busy if child.run == run]
        for child in theirs:
            child.kill()

    def pids(self) -> list[int]:
        """Return the ids of the processes."""
        with self._lock:
            return [child.pid for child in (*self._idle, *self._busy)]

    def close(self) -> None:
        """Kill all of them; none is started any more."""
        with self._lock:
            self._closed = True
            busy, idle = list(self._busy), list(self._idle)
            self._idle.clear()
        for child in busy:
            child.kill()  # whoever waits for it ends it
        for child in idle:
            self._end(child)
        self._starter.shutdown(wait=False)

    def _take(self, cores: int, parcel: str) -> StageProcess:
        unfit: list[StageProcess] = []
        with self._lock:
            if self._closed:
                raise ClusterError(f"worker {self.name} is ending", worker=self.name)
            child = next(
                (
                    one
                    for one in self._idle
                    if one.lives and one.cores == cores and one.parcel in ("", parcel)
                ),
                None,
            )
            if child is not None:
                self._idle.remove(child)
                self._busy.add(child)
            elif len(self._idle) + len(self._busy) >= self.slots:
                unfit, self._idle = self._idle[:1], self._idle[1:]
        for one in unfit:
            self._end(one)
        if child is None:
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
        """What a child's libraries read when they load; with all cores it is as in a process of one's own."""
        # Bytecode beside a recipe's code would be a file of the recipe that nobody sent.
        variables: dict[str, str | None] = {"PYTHONDONTWRITEBYTECODE": "1", CORES: str(cores)}
        if self._below_nanny:
            variables |= dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", *_THREADS))
        if cores < usable_cores():
            variables |= dict.fromkeys(_THREADS, str(cores))
        return variables
