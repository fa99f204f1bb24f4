"""What a task costs beside its work: from the request to the client's file, less the stage's own time.

    pip install 'qcompile[benchmarks,cluster]'
    python benchmarks/cluster/overhead.py --tasks 200

One scheduler and one worker on loopback; tasks one after the other. The stage simplifies a model of a few
nodes; what it takes itself is in its record and is subtracted. What is left: Dask's scheduling, the stage's
key (digests, versions), the request to the worker's process, the store's write to the disk on the worker and
on the client, and the file's way back. The second row answers from the store: nothing is carried out. The
last is Dask's own round trip of a task that does nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
from onnx import parser as onnx_parser

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/support"))

from clusters import running_cluster

from qcompile.cluster.client.connection import connect
from qcompile.pipeline.recipe import read_recipe
from qcompile.pipeline.stages import Made
from qcompile.pipeline.steps import Step, source_digest
from qcompile.pipeline.store import Store
from qcompile.progress import silent

MODEL = (
    '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x) y = Abs(a) }'
)
RECIPE = """
version = 1
name = "tiny"
[model]
source = "model.onnx"
[[artifact]]
name = "cpu"
target = "onnxruntime"
"""


def spent_ms(task: Callable[[], float], tasks: int) -> list[float]:
    """Milliseconds of tasks one after the other, less what each says of its own seconds; a few go before."""
    found = []
    for number in range(tasks + 10):
        began = time.perf_counter()
        own_s = task()
        if number >= 10:
            found.append((time.perf_counter() - began - own_s) * 1e3)
    return found


def row(name: str, found: Sequence[float]) -> str:
    """A line of the table."""
    p95 = sorted(found)[min(len(found) - 1, round(0.95 * len(found)))]
    return f"| {name} | {statistics.median(found):.1f} | {p95:.1f} | {len(found)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=200)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        onnx.save(onnx_parser.parse_model(MODEL), str(folder / "model.onnx"))
        (folder / "recipe.toml").write_text(RECIPE)
        recipe, store = read_recipe(folder / "recipe.toml"), Store(folder / "out")
        with running_cluster(folder / "cluster", workers=1) as cluster, store.locked():
            with connect(cluster.address) as executor:

                def made(step: Step, *, again: bool) -> Made:
                    done = executor.do(recipe, step, store, again=again, progress=silent)
                    assert done is not None
                    return done.made

                model = made(Step(kind="export", source_digest=source_digest(recipe)), again=False)
                step = Step(kind="simplify", files={"model": model})

                def carried_out() -> float:
                    made(step, again=True)
                    return float(store.records(step.name)[0]["seconds"])

                def known() -> float:
                    made(step, again=False)
                    return 0.0

                rows.append(row("a stage, less its own time", spent_ms(carried_out, given.tasks)))
                rows.append(row("a stage that is done", spent_ms(known, given.tasks)))
            with cluster.client() as client:

                def nothing() -> float:
                    return float(client.submit(float, 0, pure=False).result())

                rows.append(row("Dask: a task that does nothing", spent_ms(nothing, given.tasks)))
    print("| task | median, ms | p95, ms | tasks |\n|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
