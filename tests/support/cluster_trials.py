"""A small recipe on a cluster where something goes wrong, and what must hold afterwards.

The data is a function that takes its time, so that a fault can strike in the middle of a calibration. What
was carried out is counted from outside, in the stores of the workers.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import psutil
from clusters import Cluster
from small_road import broken, contents, model

LIMIT_S = 300.0
RECIPE = """
version = 1
name = "small"
[model]
source = "model.onnx"
simplify = false
[data]
calibration = "data.py:calibration"
[[artifact]]
name = "cpu"
target = "onnxruntime"
[[artifact]]
name = "cpu-int8"
target = "onnxruntime"
precision = "int8"
"""
BENCH = """
[bench]
batch_size = 4
threads = 1
max_time_s = 2
baseline = "cpu"
"""
DATA = """
import time
import numpy as np

def calibration():
    rng = np.random.default_rng(0)
    for number in range({samples}):
        time.sleep({pause_s})
        yield {{"x": rng.standard_normal((1, 4, 16, 16)).astype(np.float32)}}
"""


def write_recipe(
    folder: Path, *, samples: int = 64, pause_s: float = 0.0, bench: bool = False, weights: int = 0
) -> Path:
    """Write a recipe with what it reads, and return its path.

    Args:
        folder: Where to.
        samples: Of the calibration.
        pause_s: Seconds that each sample takes.
        bench: Whether the artifacts are measured.
        weights: Bytes of the model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model(weights), str(folder / "model.onnx"))
    (folder / "data.py").write_text(DATA.format(samples=samples, pause_s=pause_s))
    path = folder / "recipe.toml"
    path.write_text(RECIPE + (BENCH if bench else ""))
    return path


@dataclass
class Said:
    """How a client ended."""

    code: int
    text: str


def run_words(recipe: Path, output: Path, *more: object) -> list[str]:
    """Return the command of a run."""
    return [sys.executable, "-m", "qcompile", "run", str(recipe), "-o", str(output), *map(str, more)]


class Client:
    """`qcompile run` in a process of its own.

    Args:
        cluster: It carries out the stages.
        recipe: What is run.
        output: Folder of the artifacts.
        more: More words of the command.
    """

    def __init__(self, cluster: Cluster, recipe: Path, output: Path, *more: object) -> None:
        self.log = cluster.folder / f"client-{output.name}.log"
        words = run_words(recipe, output, "--scheduler", cluster.address, *more)
        with self.log.open("wb") as said:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                env=cluster.environment(), cwd=cluster.folder, start_new_session=True,
            )  # fmt: skip

    def wait(self, timeout_s: float = LIMIT_S) -> Said:
        """Return how it ended; it is killed where it takes too long."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
            raise
        return Said(code, self.log.read_text(encoding="utf-8", errors="replace"))


def run_once(cluster: Cluster, recipe: Path, output: Path, *more: object) -> Said:
    """Run a recipe on a cluster to its end."""
    return Client(cluster, recipe, output, *more).wait()


@dataclass
class Watch:
    """Looks at the stores of the workers, several times a second, for stages that were carried out.

    A finished stage is a folder with a record; one that is carried out again is another folder of the same
    name, with another inode or in another store. A killed worker leaves its store, which is looked at until
    the end: what the worker finished just before it died may have been seen by nobody else.

    Attributes:
        cluster: Its workers' stores.
        seen: Name of the finished stage to the folders that had it.
    """

    cluster: Cluster
    seen: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def looking(self) -> Iterator[Watch]:
        """Look until the block ends."""
        self._look()
        thread = threading.Thread(target=self._look_on, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join(30)
            self._look()

    def times(self) -> dict[str, int]:
        """Return how often each finished stage was carried out."""
        return {name: len(places) for name, places in sorted(self.seen.items())}

    def _look_on(self) -> None:
        while not self._ended.wait(0.1):
            self._look()

    def _look(self) -> None:
        self._names.update(list(self.cluster.workers))
        for name in sorted(self._names):
            for path in records(self.cluster.store(name)):
                try:
                    number = path.stat().st_ino
                except OSError:
                    continue
                self.seen.setdefault(path.parent.name, set()).add((name, number))


def records(store: Path) -> list[Path]:
    """Return the records of the finished stages in the store of a worker."""
    found = []
    for folder, inside, files in os.walk(store, onerror=lambda _: None):
        inside[:] = [name for name in inside if not name.startswith(".qcompile-tmp-")]
        found += [Path(folder) / name for name in files if name == "stage.json"]
    return found


def finished(output: Path) -> set[str]:
    """Return the names of the stages that a client holds."""
    return {path.parent.name for path in records(output)}


def is_running(cluster: Cluster, stage: str) -> list[str]:
    """Return the names of the workers that a stage was given to and has not ended on."""
    with cluster.client() as client:
        return _given_to(client, stage)


def await_stage(cluster: Cluster, stage: str, client: Client, timeout_s: float = LIMIT_S) -> str:
    """Wait until a stage is on a worker, and return the worker's name.

    Raises:
        RuntimeError: If the client ends before, or it takes too long.
    """
    until = time.monotonic() + timeout_s
    with cluster.client() as asking:
        while time.monotonic() < until:
            if names := _given_to(asking, stage):
                return names[0]
            if client.process.poll() is not None:
                raise RuntimeError(f"the client ended before {stage}\n{client.log.read_text()}")
            time.sleep(0.02)
    raise RuntimeError(f"{stage}: no worker got it within {timeout_s:.0f} s")


def _given_to(client: Any, stage: str) -> list[str]:
    known = client.scheduler_info(n_workers=-1)["workers"]
    given = client.processing()
    return sorted(
        str(known[address]["name"])
        for address, keys in given.items()
        if address in known and any(stage in str(key) for key in keys)
    )


def busy(cluster: Cluster, seconds: float = 1.0) -> list[str]:
    """Return the names of the workers whose stages use the processor, over some seconds."""
    before = {name: _spent(member.children()) for name, member in cluster.workers.items() if member.alive}
    time.sleep(seconds)
    after = {name: _spent(cluster.workers[name].children()) for name in before}
    return [name for name in before if after[name] - before[name] > 0.1 * seconds]


def _spent(processes: Sequence[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def wrong_files(cluster: Cluster, *outputs: Path) -> list[str]:
    """Return what lies under a final name and is not what the name says: in outputs, stores and contents."""
    wrong = [said for output in outputs for said in broken(output)]
    for name in cluster.workers:
        store = cluster.store(name)
        wrong += broken(store)
        for path in store.glob("content/**/*"):
            hexadecimal = path.name.removeprefix("sha256:")
            if path.is_file() and len(hexadecimal) == 64:
                found = hashlib.sha256(path.read_bytes()).hexdigest()
                if found != hexadecimal:
                    wrong.append(f"{path}: holds {found}")
    return wrong


def differing(made: Path, expected: dict[str, str]) -> list[str]:
    """Return the names of the artifacts that are not those of one process; parts of ranges it has none of."""
    parts = re.compile(r"-of-\d+\.ranges$")
    found = {name: digest for name, digest in contents(made).items() if not parts.search(name)}
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))


def await_true(look: Callable[[], object], timeout_s: float = 60.0) -> bool:
    """Return whether something became true in time."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if look():
            return True
        time.sleep(0.2)
    return False
