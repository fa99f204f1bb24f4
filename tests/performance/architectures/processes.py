"""One process for each architecture, forked from this one, with a time limit; a crash ends nothing else."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from results_table import finished_row

Work = Callable[[Any, Path, Callable[[dict[str, Any]], None]], None]
"""Walks one architecture in a folder, and reports each stage when it begins and when it ends."""

_POLL_S = 0.05
_LOG_LINES = 12


@dataclass(frozen=True)
class Child:
    """A process at work on one architecture."""

    process: BaseProcess
    architecture: Any
    folder: Path
    started: float


def run_all(
    architectures: Sequence[Any], work: Work, *, jobs: int, limit_s: float
) -> Iterator[dict[str, Any]]:
    """Yield a row for each architecture as it is finished; an interrupt ends the processes at work."""
    waiting, running = list(reversed(architectures)), list[Child]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(), work))
            time.sleep(_POLL_S)
            for child in list(running):
                row = _look(child, limit_s)
                if row is not None:
                    running.remove(child)
                    shutil.rmtree(child.folder, ignore_errors=True)
                    yield row
    finally:
        for child in running:
            _end(child)
            shutil.rmtree(child.folder, ignore_errors=True)


def _start(architecture: Any, work: Work) -> Child:
    folder = Path(tempfile.mkdtemp(prefix="qcompile-coverage-"))
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_be_child, args=(architecture, folder, work))
    process.start()
    return Child(process, architecture, folder, time.monotonic())


def _be_child(architecture: Any, folder: Path, work: Work) -> None:
    os.setsid()  # a group of its own, so that its workers end with it
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with (folder / "stages.jsonl").open("w") as file:

        def report(record: dict[str, Any]) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()

        work(architecture, folder, report)
        usage = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        report({"memory_mb": max(one.ru_maxrss for one in usage) // 1024})


def _look(child: Child, limit_s: float) -> dict[str, Any] | None:
    """Return the row of a child that ended, or whose time is over."""
    elapsed_s = time.monotonic() - child.started
    code, end = child.process.exitcode, ""
    if code is None:
        if elapsed_s < limit_s:
            return None
        _end(child)
        end = "timeout"
    elif code < 0:
        end = f"crash: {signal.Signals(-code).name}"
    elif code:
        end = f"crash: exit code {code}"
    records = [json.loads(line) for line in _lines(child.folder / "stages.jsonl") if line.endswith("}")]
    log = _lines(child.folder / "log.txt")[-_LOG_LINES:]
    return finished_row(child.architecture, records, end, log, elapsed_s)


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []


def _end(child: Child) -> None:
    assert child.process.pid is not None
    try:
        os.killpg(child.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        child.process.kill()  # it has no group of its own yet
    child.process.join()
