"""Calibration and evaluation with one worker and with two, of one thread each, on loopback.

    pip install 'qcompile[benchmarks,cluster]'
    python benchmarks/cluster/scaling.py --samples 512 --rounds 7

ResNet-50 with random weights, 224x224, images of noise: the work is that of trained weights, an accuracy is
not. Both clusters run all the while, and rounds are interleaved; the cluster that waits computes nothing. A
time begins when the parts are asked for and ends when the client holds the merged ranges, or the scores of
every part. Each ratio is that of one round; the interval is Student's of its logarithm over the rounds. The
first round is not counted: it brings the files to the workers, and their processes import.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from clusters import Cluster  # noqa: E402

import qcompile  # noqa: E402
from qcompile.cluster.client.connection import connect  # noqa: E402
from qcompile.cluster.client.executor import ClusterExecutor  # noqa: E402
from qcompile.pipeline.evaluation import evaluation_steps  # noqa: E402
from qcompile.pipeline.recipe import Recipe, read_recipe  # noqa: E402
from qcompile.pipeline.run import run  # noqa: E402
from qcompile.pipeline.stages import Made  # noqa: E402
from qcompile.pipeline.steps import Step, source_digest  # noqa: E402
from qcompile.pipeline.store import Store  # noqa: E402
from qcompile.progress import silent  # noqa: E402

RECIPE = """
version = 1
name = "net"
[model]
source = "model.onnx"
simplify = false
[data]
calibration = "images.npz"
evaluation = "images.npz"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
"""
BENCH = "[bench]\nthreads = 1\n"
STUDENT_95 = (math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Quantile 0.975 of Student's distribution by degrees of freedom."""


def prepare(folder: Path, model: str, side: int, samples: int) -> tuple[Recipe, Made, Step]:
    """Return the recipe, its model, and the bench that will be evaluated for."""
    path = folder / "model.onnx"
    qcompile.export(f"{model}?weights=random", path, inputs=[f"image:[batch,3,{side},{side}]"])
    rng = np.random.default_rng(0)
    images = rng.standard_normal((samples, 3, side, side), dtype=np.float32)
    np.savez(folder / "images.npz", image=images, labels=rng.integers(0, 1000, samples))
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    run(recipe, output=folder / "here")
    recipe.write_text(RECIPE + BENCH)
    store = Store(folder / "here")
    taken = {name: store.take(store.kept(name)[0]) for name in ("export", "build-int8")}
    made = {}
    for name, file in (("export", "net.onnx"), ("build-int8", "int8.onnx")):
        stored = taken[name]
        assert stored is not None
        made[name] = Made(stored.folder / file, stored.files[file])
    parsed = read_recipe(recipe)
    bench = Step(kind="bench", source_digest=source_digest(parsed), built={"int8": made["build-int8"]})
    return parsed, made["export"], bench


def seconds(
    executor: ClusterExecutor, recipe: Recipe, model: Made, bench: Step, folder: Path
) -> dict[str, float]:
    """Return what a calibration and an evaluation take."""
    store = Store(folder)
    with store.locked():
        began = time.perf_counter()
        whole = Step(kind="calibrate", files={"model": model})
        steps = [replace(whole, shard=f"{part}/{executor.shards}") for part in range(1, executor.shards + 1)]
        parts = carried_out(executor, recipe, steps if len(steps) > 1 else [whole], store)
        if len(parts) > 1:
            carried_out(executor, recipe, [replace(whole, shards=tuple(parts))], store)
        calibrated = time.perf_counter()
        carried_out(executor, recipe, evaluation_steps(recipe, bench, executor.shards), store)
        return {"calibration": calibrated - began, "evaluation": time.perf_counter() - calibrated}


def carried_out(executor: ClusterExecutor, recipe: Recipe, steps: Sequence[Step], store: Store) -> list[Made]:
    """Carry out steps together, also those that were done."""

    def done(step: Step) -> Made:
        found = executor.do(recipe, step, store, again=True, progress=silent)
        assert found is not None
        return found.made

    with ThreadPoolExecutor(len(steps)) as threads:
        return list(threads.map(done, steps))


@contextlib.contextmanager
def executor_of(folder: Path, workers: int) -> Iterator[ClusterExecutor]:
    """A scheduler and so many workers of one thread, each in a process of its own."""
    cluster = Cluster(folder)
    try:
        cluster.start_scheduler()
        for number in range(workers):
            cluster.start_worker(f"w{number}", arguments=["--cores", "1"])
        cluster.wait()
        with connect(cluster.address) as executor:
            if executor.shards != workers:
                raise SystemExit(f"{executor.shards} of {workers} workers are used")
            yield executor
    finally:
        cluster.close()


def ratio_text(ones: Sequence[float], others: Sequence[float]) -> str:
    """The ratio of two times, with its interval."""
    logs = [math.log(one / other) for one, other in zip(ones, others, strict=True)]
    mean, freedom = statistics.fmean(logs), len(logs) - 1
    if not freedom:
        return f"{math.exp(mean):.2f} | one round"
    half = STUDENT_95[min(freedom, len(STUDENT_95) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(mean):.2f} | {math.exp(mean - half):.2f} to {math.exp(mean + half):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="timm:resnet50", help="by name; its weights are random")
    parser.add_argument("--side", type=int, default=224, help="height and width of the images")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2, help="of the larger cluster")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the clusters, as Ctrl-C does
    times: dict[int, list[dict[str, float]]] = {1: [], given.workers: []}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recipe, model, bench = prepare(folder, given.model, given.side, given.samples)
        executors: dict[int, Any] = {
            workers: stack.enter_context(executor_of(folder / f"cluster{workers}", workers))
            for workers in times
        }
        for number in range(given.rounds + 1):
            order = list(times) if number % 2 else list(times)[::-1]
            for workers in order:
                output = folder / f"out{workers}"
                found = seconds(executors[workers], recipe, model, bench, output)
                told = ", ".join(f"{name} {value:.1f} s" for name, value in found.items())
                print(f"round {number}, {workers} workers: {told}", file=sys.stderr)
                if number:
                    times[workers].append(found)
    images = f"{given.samples} samples of {given.side}x{given.side}"
    print(f"{given.model}, random weights, {images}, one thread a worker.\n")
    print(
        f"| step | 1 worker, s | {given.workers} workers, s | ratio | 95% interval |\n|---|---|---|---|---|"
    )
    for name in ("calibration", "evaluation"):
        one, more = ([one[name] for one in times[workers]] for workers in times)
        medians = f"{statistics.median(one):.1f} | {statistics.median(more):.1f}"
        print(f"| {name} | {medians} | {ratio_text(one, more)} |")


if __name__ == "__main__":
    main()
