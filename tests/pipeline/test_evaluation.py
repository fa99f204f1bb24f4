"""An evaluation in parts gives a bench what it finds by itself, and is asked for by whom can do parts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qcompile.bench.metrics.accuracy import read_metric
from qcompile.bench.metrics.quality import measure_quality
from qcompile.bench.outputs import describe, start
from qcompile.bench.recorder import Recorder
from qcompile.bench.results.row_json import row_json
from qcompile.bench.runnables import row_of
from qcompile.bench.workers.process import Worker
from qcompile.pipeline.evaluation import evaluation_steps
from qcompile.pipeline.executor import Done, ThisProcess
from qcompile.pipeline.recipe import Recipe, read_recipe
from qcompile.pipeline.run import run
from qcompile.pipeline.stages import Made
from qcompile.pipeline.steps import Step, stage_of
from qcompile.pipeline.store import Store
from qcompile.progress import Progress

RECIPE = """
version = 1
name = "tiny"
[model]
source = "residual.onnx"
[data]
calibration = "data.npz"
evaluation = "data.npz"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
[bench]
baseline = "pytorch"
metric = "own.py:right"
threads = 1
max_time_s = 0.1
"""

METRIC = """
from pathlib import Path

def right(outputs, labels):
    with Path(__file__).with_name("calls").open("a") as file:
        file.write("call\\n")
    return (outputs["y"].argmax(1) == labels).astype(float)
"""


class InParts(ThisProcess):
    """A cluster of three, here; says which steps it was asked for."""

    shards = 3

    def __init__(self) -> None:
        self.asked: list[Step] = []

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        self.asked.append(step)
        return super().do(recipe, step, store, again=again, progress=progress)


@pytest.fixture
def recipe(tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path) -> Path:
    tiny_file("residual")
    samples("residual", 45).rename(tmp_path / "data.npz")
    (tmp_path / "own.py").write_text(METRIC)
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def evaluated_here(artifacts: dict[str, Path], data: Path) -> list[dict[str, Any]]:
    """What one process finds, whose first artifact is the baseline."""
    with contextlib.ExitStack() as stack:
        runnables = [describe(str(path), name=name) for name, path in artifacts.items()]
        workers = {one.name: stack.enter_context(Worker(one.name, threads=1)) for one in runnables}
        for one in runnables:
            start(workers[one.name], one, runnables, 1)
        recorder = Recorder([row_of(one) for one in runnables], runnables[0].name)
        io = runnables[0].io
        assert io is not None
        measure_quality(workers, recorder, io, str(data), read_metric(f"{data.with_name('own.py')}:right"))
    return [figures(row_json(row)) for row in recorder.rows]


def figures(row: dict[str, Any]) -> dict[str, Any]:
    """Accuracy and difference, with the interval and the table of classes."""
    return {key: row[key] for key in ("name", "accuracy", "difference")}


def test_a_bench_finds_in_parts_what_one_process_finds(recipe: Path, tmp_path: Path) -> None:
    executor = InParts()
    report = run(recipe, output=tmp_path / "out", executor=executor)
    assert [step.name for step in executor.asked if step.kind == "evaluate"] == [
        f"evaluate-{part}-of-3" for part in (1, 2, 3)
    ]
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["artifacts"]
    assert [row["accuracy"]["samples"] for row in rows] == [45, 45]
    calls = (tmp_path / "calls").read_text().count("call")
    assert calls == 3 + 2 * 6 + 1  # first batch of each part, 6 batches of both, first batch of the bench
    artifacts = {"pytorch": tmp_path / "residual.onnx", "int8": report.artifacts["int8"]}
    assert [figures(row) for row in rows] == evaluated_here(artifacts, tmp_path / "data.npz")
    assert not [text for row in rows for text in row["warnings"] if "accuracy" in text]
    [bench] = [step for step in executor.asked if step.kind == "bench"]
    keys = [
        stage.key
        for step in (bench, replace(bench, shards=()))
        if (stage := stage_of(read_recipe(recipe), step, tmp_path / "out"))
    ]
    assert keys[0] == keys[1]  # a run that evaluates by itself has nothing left to do
    assert set(run(recipe, output=tmp_path / "out").stages.values()) == {"skipped"}


def made(name: str) -> Made:
    return Made(Path(f"{name}.onnx"), f"sha256:{name}")


def test_artifacts_of_one_kind_of_machine_are_evaluated_together(recipe: Path) -> None:
    more = '[[artifact]]\nname = "gpu"\ntarget = "tensorrt"\n[[artifact]]\nname = "ov"\ntarget = "openvino"\n'
    text = recipe.read_text().replace("[bench]", f"{more}[bench]")
    recipe.write_text(text)
    built = {name: made(name) for name in ("int8", "gpu", "ov")}
    steps = evaluation_steps(read_recipe(recipe), Step(kind="bench", built=built), 2)
    assert [(step.name, sorted(step.built)) for step in steps] == [
        ("evaluate-1-of-2", ["int8", "ov"]),
        ("evaluate-2-of-2", ["int8", "ov"]),
        ("evaluate-tensorrt-1-of-2", ["gpu"]),
        ("evaluate-tensorrt-2-of-2", ["gpu"]),
    ]
    recipe.write_text(text.replace('baseline = "pytorch"', 'baseline = "ov"'))
    steps = evaluation_steps(read_recipe(recipe), Step(kind="bench", built=built), 1)
    assert [sorted(step.built) for step in steps] == [["int8", "ov"], ["gpu", "ov"]]
    unbuilt = Step(kind="bench", built={"gpu": made("gpu")}, why_not={"ov": "no"})
    steps = evaluation_steps(read_recipe(recipe), unbuilt, 1)
    assert [sorted(step.built) for step in steps] == [[], ["gpu"]]  # the MODEL is the baseline then
