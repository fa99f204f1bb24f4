"""Run a sweep of many cells whose stages are sleeps, and see whether memory grows and what a task costs.

    OMP_NUM_THREADS=1 python benchmarks/cluster/sweep_memory.py --cells 10000 --workers 2

The scheduler, the workers, the client's executor and the driver of a sweep are the real ones: a matrix of
one model, one artifact and so many shapes. Each cell has two tasks: the graph, which float needs none of, and
the build. Only the work of a stage is another: it sleeps for 10 ms (`sleeping_worker.py`). Two hundred
times the resident memory of the scheduler and of the client is read from /proc; the rule of
benchmarks/reliability/process_use.py says *flat*, *growing* or *undecided*. The overhead of a build is

    elapsed time x slots / cells - 10 ms

while all slots are in use; it holds everything: the cell's recipe, its packing, the client's threads, Dask,
the second task, digests, the files' way back, the synced store. Prints a table as Markdown. Exit code 1: a
memory grows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "benchmarks/reliability")]

import onnx  # noqa: E402
from clusters import Cluster, end_on_sigterm  # noqa: E402
from process_use import Sample, growth_of, sample  # noqa: E402
from small_road import model  # noqa: E402

from qcompile.cluster.client.connection import connect  # noqa: E402
from qcompile.pipeline.sweep.sweep import sweep  # noqa: E402

SLEEP_S = 0.01
_SAMPLES = 200
_RECIPE = """
version = 1
name = "cells"
[model]
source = "model.onnx"
simplify = false
[sweep]
targets = ["onnxruntime"]
precisions = ["fp32"]
shapes = [{shapes}]
"""
# Dask keeps an hour of its own figures; a shorter campaign would see them come and call it growth.
_SETTINGS = {"DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__LOG_LENGTH": "20"}


class Sweep:
    """A cluster of sleeping workers, and cells that are run on it.

    Args:
        work: Folder for everything.
        workers: How many.
        slots: Of each.
    """

    def __init__(self, work: Path, workers: int, slots: int) -> None:
        self.work, self.slots = work, workers * slots
        (work / "recipes").mkdir()
        onnx.save(model(), str(work / "recipes/model.onnx"))
        self.cluster = Cluster(work / "cluster", plain=True, environment=_SETTINGS)
        try:
            self._start(workers, slots)
        except BaseException:
            self.cluster.close()
            raise
        self._lock, self._done = threading.Lock(), 0
        self.seen: list[tuple[Sample, Sample]] = []

    def _start(self, workers: int, slots: int) -> None:
        self.cluster.start_scheduler()
        for number in range(workers):
            preload = ["--preload", str(Path(__file__).with_name("sleeping_worker.py"))]
            store = {"QCOMPILE_SLEEPING_STORE": str(self.work / f"sleeping-{number}")}
            self.cluster.start_worker(f"w{number}", slots=slots, arguments=preload, environment=store)
        self.cluster.wait()

    def cells(self, count: int) -> dict[str, Any]:
        """Run cells, as many at a time as there are slots, and return what was seen."""
        recipe = self.work / "recipes/sweep.toml"
        recipe.write_text(_RECIPE.format(shapes=", ".join(f'"{size}"' for size in range(1, count + 1))))
        self._every = max(1, count // _SAMPLES)
        with connect(self.cluster.address) as executor:
            began = time.monotonic()
            report = sweep(recipe, output=self.work / "out", executor=executor, listener=self)
            seconds = time.monotonic() - began
        if report.counts != {"done": count}:
            raise RuntimeError(f"{report.counts}; {count} cells done are expected")
        growths = [growth_of([both[index] for both in self.seen]) for index in (0, 1)]
        return {
            "cells": count,
            "seconds": round(seconds, 1),
            "overhead_ms": round((seconds * self.slots / count - SLEEP_S) * 1000, 1),
            "growth": dict(zip(("scheduler", "client"), growths, strict=True)),
            "rss_bytes": [[one.rss_bytes for one in both] for both in self.seen],
        }

    def planned(self, cells: int, /) -> None:
        """As `SweepListener`."""

    def began(self, member: Any, /) -> None:
        """As `SweepListener`."""

    def stage(self, member: Any, stage: str, state: str, seconds: float, /) -> None:
        """As `SweepListener`."""

    def left(self, member: Any, /) -> None:
        """As `SweepListener`."""

    def finished(self, cell: Any, /, *, changed: bool) -> None:
        """Read the memory now and then."""
        with self._lock:
            self._done += 1
            if self._done % self._every == 0:
                assert self.cluster.scheduler is not None
                pids = (self.cluster.scheduler.pid, os.getpid())
                scheduler, client = (sample(self._done, [pid], self.cluster.temporary) for pid in pids)
                self.seen.append((scheduler, client))


def main() -> int:
    """Print what was seen; 1 where a memory grows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slots", type=int, default=2, help="of each worker")
    parser.add_argument("--output", type=Path, help="file for all samples, as JSON")
    given = parser.parse_args()
    end_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix="qcompile-sweep-"))
    simulated = None
    try:
        simulated = Sweep(work, given.workers, given.slots)
        seen = simulated.cells(given.cells)
    finally:
        if simulated is not None:
            simulated.cluster.close()
        shutil.rmtree(work, ignore_errors=True)
    print(
        f"{seen['cells']:,} cells in {seen['seconds']:,} s; overhead of a build "
        f"{seen['overhead_ms']} ms with {given.workers} x {given.slots} slots\n"
    )
    print("| process | memory at the end | growth [99% interval] | memory |\n|---|---:|---:|---|")
    for index, (name, growth) in enumerate(seen["growth"].items()):
        kib = [f"{value / 1024:+.0f}" for value in (growth.middle, growth.low, growth.high)]
        end = seen["rss_bytes"][-1][index] / 2**20
        print(f"| {name} | {end:.1f} MiB | {kib[0]} KiB [{kib[1]}, {kib[2]}] | {growth.verdict} |")
    if given.output:
        given.output.write_text(json.dumps({**seen, "growth": str(seen["growth"])}))
    return int(any(growth.verdict == "growing" for growth in seen["growth"].values()))


if __name__ == "__main__":
    sys.exit(main())
