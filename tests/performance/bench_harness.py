"""The claims about measuring: what the harness costs, and whether its verdicts can be believed.

    python tests/performance/bench_harness.py cost              # the harness's own time per call
    python tests/performance/bench_harness.py ort       # against a plain loop over session.run, ResNet-50
    python tests/performance/bench_harness.py aa --benches 100  # one file twice: how often it is "different"
    python tests/performance/bench_harness.py slower    # 3% slower beside a busy core: how often it is seen

Each prints a Markdown table. `ort`, `aa` and `slower` take long, keep every finished run in `--work`, and go
on from there when they are started again. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import qcompile
from qcompile.bench.results.statistics import speedup
from qcompile.core.processes.worker import Worker
from qcompile.engines.base import Runner
from qcompile.spec.tensors import ModelIO

SHAPE = (1, 3, 224, 224)

PLAIN_LOOP = """
import json, sys, time
import numpy as np, onnxruntime
path, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
feeds = {"image": np.load(sys.argv[4])}
end = time.perf_counter() + 2.0
while time.perf_counter() < end:
    session.run(None, feeds)
found, end = [], time.perf_counter() + seconds
while time.perf_counter() < end:
    start = time.perf_counter()
    session.run(None, feeds)
    found.append(time.perf_counter() - start)
print(json.dumps(found))
"""


class Nothing(Runner):
    """A runner whose call does nothing: what is left is the harness."""

    io = ModelIO((), ())
    contains = "nothing"

    def infer(self, feeds: Any) -> dict[str, Any]:
        return {}

    def prepare(self, feeds: Any) -> Callable[[], None]:
        return lambda: None

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["cost", "ort", "aa", "slower"])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "qcompile-harness")
    parser.add_argument("--benches", type=int, help="how many: aa 100, slower 10, ort 9 by default")
    parser.add_argument("--model", choices=["resnet50", "convolutions"], default="resnet50")
    parser.add_argument("--threads", type=int, help="ort, aa: 2; slower: 1 by default")
    parser.add_argument("--max-time", type=float, default=60.0, help="seconds of rounds of a bench")
    parser.add_argument("--slower-by", type=float, default=0.03)
    parser.add_argument("--pin", action="store_true", help="slower: keep the neighbour on the last core")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    {"cost": cost, "ort": ort, "aa": same_twice, "slower": slower}[options.what](options)


def cost(options: argparse.Namespace) -> None:
    """Time of a call that does nothing: as it is recorded, and as it passes in the loop around it."""
    runner, calls = Nothing(), 200_000
    recorded, passed = [], []
    for _ in range(15):
        start = time.perf_counter_ns()
        durations = runner.time({}, calls)
        passed.append((time.perf_counter_ns() - start) / calls)
        recorded.append(float(np.median(durations)))
    model = convolutions(options.work, 1)
    with Worker("model", module="qcompile.bench.worker", threads=1) as worker:
        worker.ask("load", artifact=str(model), threads=1, io=None)
        feeds = options.work / "small.npz"
        np.savez(feeds, image=np.ones(SHAPE, np.float32))
        worker.ask("feed", path=str(feeds))
        around = []
        for _ in range(15):
            start = time.perf_counter_ns()
            found = worker.ask("time", iterations=50, rest=False)["ns"]
            around.append((time.perf_counter_ns() - start - sum(found)) / len(found))
    table(
        ["what the harness adds", "median", "largest of 15"],
        [
            ["to a recorded latency, ns per call", *of(recorded)],
            ["to the time that passes, ns per call", *of(passed)],
            ["request and answer of a block of 50 calls, ns per call", *of(around)],
        ],
    )


def ort(options: argparse.Namespace) -> None:
    """Medians of the harness and of a plain loop in a process of its own, in turn."""
    model, threads = the_model(options), options.threads or 2
    image = options.work / "image.npy"
    np.save(image, np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32))
    np.savez(options.work / "image.npz", image=np.load(image))

    def plain_loop() -> list[float]:
        words = [sys.executable, "-c", PLAIN_LOOP, str(model), str(threads), "4", str(image)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return list(json.loads(done.stdout))

    def one(_: int) -> dict[str, float]:
        plain = plain_loop()
        results = qcompile.benchmark(
            [str(model)], baseline=str(model), data=str(options.work / "image.npz"), batch_size=1,
            threads=threads, max_time_s=20.0,
        )  # fmt: skip
        plain += plain_loop()  # before and behind, so that drift hits both
        latency = results.rows[0].latency
        assert latency is not None
        return {"harness_ms": latency.median_ms, "plain_ms": statistics.median(plain) * 1e3}

    runs = resumed(options.work / f"ort-{options.model}-{threads}.jsonl", options.benches or 9, one)
    rows = []
    for number, run in enumerate(runs, start=1):
        ours, plain = run["harness_ms"], run["plain_ms"]
        rows.append([str(number), f"{ours:.3f}", f"{plain:.3f}", f"{ours / plain:.4f}"])
    ratio = statistics.median(run["harness_ms"] / run["plain_ms"] for run in runs)
    rows.append(["median", "", "", f"{ratio:.4f}"])
    table(["run", "harness ms", "plain loop ms", "ratio"], rows)


def same_twice(options: argparse.Namespace) -> None:
    """One file twice, again and again: how often the two are called different."""
    model, threads = the_model(options), options.threads or 2
    name = f"aa-{options.model}-{threads}.jsonl"
    runs = resumed(
        options.work / name, options.benches or 100, lambda _: judged(model, model, threads, options)
    )
    summarize(runs, "different", lambda verdict: verdict != "no difference")


def slower(options: argparse.Namespace) -> None:
    """A heavier copy of the model, the other core busy: how often it is called slower."""
    threads = options.threads or 1
    model = convolutions(options.work, 100)
    heavy = convolutions(options.work, round(100 * (1.0 + options.slower_by)))

    def one(_: int) -> dict[str, Any]:
        with busy_neighbour(pinned=options.pin):
            return judged(model, heavy, threads, options)

    name = f"slower-{options.slower_by}-{threads}{'-pinned' if options.pin else ''}.jsonl"
    runs = resumed(options.work / name, options.benches or 10, one)
    summarize(runs, "slower", lambda verdict: verdict == "slower")


def judged(first: Path, second: Path, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """The verdict of one bench, with what led to it."""
    start = time.monotonic()
    results = qcompile.benchmark(
        {"a": str(first), "b": str(second)}, baseline="a", batch_size=1, threads=threads,
        max_time_s=options.max_time,
    )  # fmt: skip
    a, b = results.rows
    ratio = speedup(a.launches_ms, b.launches_ms)
    return {
        "verdict": ratio.verdict, "value": ratio.value, "low": ratio.low, "high": ratio.high,
        "rounds": ratio.rounds,
        "correlation_rounds": ratio.correlation_rounds, "seconds": time.monotonic() - start,
        "launches": ratio.launches, "a_ms": a.launches_ms, "b_ms": b.launches_ms,
        "noise": results.environment["noise"]["reasons"],
    }  # fmt: skip


def summarize(runs: list[dict[str, Any]], what: str, counts: Callable[[str], bool]) -> None:
    """Print how often, and how sure the benches were."""
    found = sum(counts(run["verdict"]) for run in runs)
    widths = [(run["high"] - run["low"]) / run["value"] for run in runs]
    values = sorted(run["value"] for run in runs)
    figures = {
        "benches": str(len(runs)),
        f"called {what}": str(found),
        "median ratio": f"{statistics.median(values):.4f}",
        "smallest, largest": f"{values[0]:.4f}, {values[-1]:.4f}",
        "median interval": f"{statistics.median(widths):.2%}",
        "median rounds": f"{statistics.median(run['rounds'] for run in runs):g}",
        "median launches": f"{statistics.median(run['launches'] for run in runs):g}",
        "median seconds": f"{statistics.median(run['seconds'] for run in runs):.0f}",
    }
    table([*figures], [[*figures.values()]])


def resumed(path: Path, count: int, one: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `count` runs: those in the file, and new ones, each written as soon as it is done."""
    runs = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    while len(runs) < count:
        runs.append(one(len(runs)))
        with path.open("a") as file:
            file.write(json.dumps(runs[-1]) + "\n")
        print(f"\r{path.name}: {len(runs)} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return runs[:count]


@contextmanager
def busy_neighbour(*, pinned: bool) -> Iterator[None]:
    """Keep one core busy: where the scheduler puts it, or on the last one."""
    process = multiprocessing.get_context("spawn").Process(target=spin, args=(pinned,), daemon=True)
    process.start()
    try:
        time.sleep(1.0)
        yield
    finally:
        process.terminate()
        process.join()


def spin(pinned: bool) -> None:
    """Multiply matrices on one thread for ever."""
    if pinned:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    matrix = np.random.default_rng(0).standard_normal((64, 64))
    while True:
        matrix = matrix @ matrix
        matrix /= np.abs(matrix).max()


def the_model(options: argparse.Namespace) -> Path:
    """ResNet-50 exported once, or convolutions where PyTorch is missing."""
    if options.model == "convolutions":
        return convolutions(options.work, 100)
    path: Path = options.work / "resnet50.onnx"
    if not path.is_file():
        home = Path(__file__).resolve().parent
        qcompile.export(f"{home}/models.py:resnet50", path, inputs=["image:1x3x224x224"])
    return path


def convolutions(work: Path, count: int) -> Path:
    """`count` equal convolutions in a row: their time is in proportion to their number."""
    path = work / f"convolutions-{count}.onnx"
    if path.is_file():
        return path
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [helper.make_node("Conv", ["image", "stem"], ["t0"], "stem", strides=[8, 8])]
    weights = [weight("stem", 32, 3, 8, 8)]
    for i in range(count):
        weights.append(weight(f"w{i}", 32, 32, 3, 3))
        nodes.append(helper.make_node("Conv", [f"t{i}", f"w{i}"], [f"t{i + 1}"], f"c{i}", pads=[1, 1, 1, 1]))
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(f"t{count}", TensorProto.FLOAT, [1, 32, 28, 28])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def of(values: list[float]) -> tuple[str, str]:
    """Median and largest."""
    return f"{statistics.median(values):.0f}", f"{max(values):.0f}"


def table(header: list[str], rows: list[list[str]]) -> None:
    """Print Markdown."""
    for cells in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
