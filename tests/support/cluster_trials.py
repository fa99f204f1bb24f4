"""A small recipe on a cluster where something goes wrong, and what must hold afterwards.

The data is a function that takes its time, so that a fault can strike in the middle of a calibration.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnx
from clusters import Cluster
from recipes import artifact
from written_models import model_of

LIMIT_S = 300.0
DETERMINISTIC = (".onnx", ".ranges", ".data")
"""Endings of the artifacts that two runs must make equal byte for byte; measurements differ."""
RECIPE = """
version = 1
name = "small"
[model]
source = "model.onnx"
simplify = false
[data]
calibration = "data.py:calibration"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
"""
INT8 = (
    'version = 1\nname = "tiny"\n[model]\nsource = "residual.onnx"\n[data]\ncalibration = "{}"\n'
    + artifact("int8", precision="int8")
)
"""A recipe of the tiny residual model on other data."""
BENCH = """
version = 1
name = "measured"
[model]
source = "model.onnx"
simplify = false
[data]
evaluation = "npz:test.npz"
[[artifact]]
name = "cpu"
target = "onnxruntime"
[bench]
batch_size = 4
threads = 1
max_time_s = 0.2
baseline = "cpu"
metric = "metric.py:slow"
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


MODEL = """(float[batch, 4, 16, 16] x) => (float[batch, {wide}] y) <float[4, 4, 3, 3] w1, float[4] b1,
    float[4, 4, 3, 3] w2, float[4] b2, float[1024, {wide}] w3, float[{wide}] b3> {{
    c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)  r1 = Relu (c1)  c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2, b2)
    a = Add (c2, r1)  f = Flatten (a)  y = Gemm (f, w3, b3) }}"""
"""Two convolutions with a residual add, and a layer of 4 kB for each of its outputs."""


def write_recipe(
    folder: Path, *, samples: int = 64, pause_s: float = 0.0, bench: bool = False, weights: int = 0
) -> Path:
    """Write a recipe with what it reads, and return its path; each sample takes `pause_s` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    model = model_of(MODEL.format(wide=max(3, weights >> 12)), named=True)
    onnx.save(model, str(folder / "model.onnx"))
    (folder / "data.py").write_text(DATA.format(samples=samples, pause_s=pause_s))
    path = folder / "recipe.toml"
    path.write_text(BENCH if bench else RECIPE)
    return path


def run_words(recipe: Path, output: Path, *more: object) -> list[str]:
    """Return the command of a run."""
    return [sys.executable, "-m", "qcompile", "run", str(recipe), "-o", str(output), *map(str, more)]


class Client:
    """`qcompile run` on a cluster, in a process of its own."""

    def __init__(self, cluster: Cluster, recipe: Path, output: Path) -> None:
        self.log = cluster.folder / f"client-{output.name}.log"
        words = run_words(recipe, output, "--scheduler", cluster.address)
        with self.log.open("wb") as said:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                env=cluster.environment(), cwd=cluster.folder, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> tuple[int, str]:
        """Return its exit code and what it said; it is killed where it takes too long."""
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
            raise
        return code, self.log.read_text(encoding="utf-8", errors="replace")


def await_stage(cluster: Cluster, stage: str, client: Client) -> str:
    """Wait until a stage is on a worker, and return the worker's name."""
    until = time.monotonic() + LIMIT_S
    with cluster.client() as asking:
        while time.monotonic() < until:
            if names := _given_to(asking, stage):
                return names[0]
            if client.process.poll() is not None:
                raise RuntimeError(f"the client ended before {stage}\n{client.log.read_text()}")
            time.sleep(0.02)
    raise RuntimeError(f"{stage}: no worker got it within {LIMIT_S:.0f} s")


def _given_to(client: Any, stage: str) -> list[str]:
    known = client.scheduler_info(n_workers=-1)["workers"]
    given = client.processing()
    return sorted(
        str(known[address]["name"])
        for address, keys in given.items()
        if address in known and any(stage in str(key) for key in keys)
    )


def differing(made: Path, expected: dict[str, str]) -> list[str]:
    """Return the names of the artifacts that are not those of one process; parts of ranges it has none of."""
    parts = re.compile(r"-of-\d+\.ranges$")
    found = {name: digest for name, digest in contents(made).items() if not parts.search(name)}
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))


def contents(folder: Path) -> dict[str, str]:
    """Name to digest of the artifacts that must not depend on any fault."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.suffix in DETERMINISTIC and not path.name.startswith(".")
    }
