"""The cost model against real runs: one recipe on one worker and on two, of one thread each, on loopback.

    pip install 'qcompile[benchmarks,cluster]'
    python benchmarks/cluster/cost_check.py --model timm:resnet18 --samples 128 --rounds 3

Each round has fresh clusters. Their processes first carry out the same recipe with another model and other
samples, so that what is imported once is not counted. Then the recipe is run, from the first step to the
last file on the client. Its records tell each stage's own seconds and files; `fleet.py` predicts from them,
from the overhead of a task (`overhead.py`) and from the link what the run takes on as many workers. So the
error is what the model leaves out: waits of the client, files that are read and digested, two stages that
slow each other. A second prediction for two workers is made from the records of one: each part of the
calibration takes half. Prints a table as Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from clusters import Cluster, end_on_sigterm  # noqa: E402
from cost_model import tasks_of  # noqa: E402
from fleet import Fleet, Task, estimate  # noqa: E402

import qcompile  # noqa: E402
from qcompile.cluster.client.connection import connect  # noqa: E402
from qcompile.pipeline.run import run  # noqa: E402

_SIDE = 224
_LINK = 10e9 / 8
"""Bytes a second of the loopback device; any such number is small beside the stages."""
RECIPE = """
version = 1
name = "net"
[model]
source = "{name}.onnx"
[data]
calibration = "{name}.npz"
[[artifact]]
name = "float"
target = "onnxruntime"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
[[artifact]]
name = "vino"
target = "openvino"
precision = "int8"
"""


def prepare(folder: Path, model: str, samples: int) -> None:
    """Write the model and two recipes, which differ in their samples."""
    rng = np.random.default_rng(0)
    shape = (3, _SIDE, _SIDE)
    for name in ("first", "second"):
        inputs = [f"image:[batch,{','.join(map(str, shape))}]"]
        qcompile.export(f"{model}?weights=random", folder / f"{name}.onnx", inputs=inputs)
        exported = onnx.load(folder / f"{name}.onnx")
        exported.producer_name = name  # another model: what was done for the first is not found
        onnx.save(exported, folder / f"{name}.onnx")
        np.savez(folder / f"{name}.npz", image=rng.standard_normal((samples, *shape), np.float32))
        (folder / f"{name}.toml").write_text(RECIPE.format(name=name))


def measured(folder: Path, work: Path, workers: int) -> tuple[float, list[Task]]:
    """Return the seconds of a run on a fresh cluster, and its finished stages."""
    cluster = Cluster(work)
    try:
        cluster.start_scheduler()
        for number in range(workers):
            cluster.start_worker(f"w{number}", arguments=["--cores", "1"])
        cluster.wait()
        with connect(cluster.address) as executor:
            run(folder / "first.toml", output=work / "first", executor=executor)
            began = time.perf_counter()
            report = run(folder / "second.toml", output=work / "out", executor=executor)
            seconds = time.perf_counter() - began
    finally:
        cluster.close()
    if report.failures:
        raise SystemExit(str(report.failures))
    given = sum((folder / name).stat().st_size for name in ("second.onnx", "second.npz"))
    return seconds, tasks_of([work / "out"], given)


def in_parts(tasks: Sequence[Task], parts: int) -> list[Task]:
    """The same stages with the calibration in so many parts, each its share of the seconds, and no merge."""
    made: list[Task] = []
    for task in tasks:
        if not task.name.startswith("calibrate"):
            made.append(task)
            continue
        shares = [
            replace(task, name=f"{task.name}-{part}", seconds=task.seconds / parts, makes={f"part{part}": 0})
            for part in range(parts)
        ]
        merged = {**task.reads, **{f"part{part}": 0 for part in range(parts)}}
        made += [*shares, replace(task, seconds=0.0, reads=merged)]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="timm:resnet18", help="by name; its weights are random")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--overhead-s", type=float, default=0.03, help="of a task, as overhead.py measures")
    given = parser.parse_args()
    end_on_sigterm()
    rows: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="qcompile-cost-") as text:
        folder = Path(text)
        prepare(folder, given.model, given.samples)
        for number in range(given.rounds):
            walls, records = {}, {}
            for workers in (1, 2):
                walls[workers], records[workers] = measured(folder, folder / f"{number}-{workers}", workers)
            fleets = {workers: Fleet(workers, 1, _LINK, given.overhead_s) for workers in (1, 2)}
            for workers, fleet in fleets.items():
                predicted = estimate(records[workers], fleet).scheduled_s
                rows.setdefault(f"{workers}, own records", []).append((predicted, walls[workers]))
            predicted = estimate(in_parts(records[1], 2), fleets[2]).scheduled_s
            rows.setdefault("2, records of 1", []).append((predicted, walls[2]))
            print(f"round {number}: {walls}", file=sys.stderr, flush=True)
    print(f"{given.model}, random weights, {given.samples} images, medians of {given.rounds} rounds.\n")
    print("| workers | predicted s | measured s | error of the prediction |\n|---|---:|---:|---:|")
    for name, pairs in rows.items():
        medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
        error = statistics.median(predicted / wall - 1 for predicted, wall in pairs)
        print(f"| {name} | {medians[0]:.1f} | {medians[1]:.1f} | {error:+.0%} |")


if __name__ == "__main__":
    main()
