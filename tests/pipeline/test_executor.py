"""Another executor does what this process does: artifacts at a time, a calibration in parts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from qcompile.files import digest_files
from qcompile.pipeline.recipe import Recipe
from qcompile.pipeline.run import run
from qcompile.pipeline.steps import Done, Step, ThisProcess
from qcompile.pipeline.store import Store
from qcompile.progress import Progress

RECIPE = """
version = 1
name = "tiny"
[model]
source = "residual.onnx"
[data]
calibration = "calibration.npz"
[[artifact]]
name = "float"
target = "onnxruntime"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
"""


class InParts(ThisProcess):
    """Three steps at a time, and a calibration in three parts; says which steps it was asked for."""

    parallel = 3
    shards = 3

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.together = threading.Barrier(2, timeout=60)

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        self.asked.append(step.name)
        if step.name in ("build-float", "quantize-int8"):
            self.together.wait()  # passes only where both are asked for at a time
        return super().do(recipe, step, store, again=again, progress=progress)


@pytest.fixture
def recipe(tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path) -> Path:
    tiny_file("residual")
    samples("residual", 7).rename(tmp_path / "calibration.npz")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def test_parts_give_the_files_of_one_process(recipe: Path, tmp_path: Path) -> None:
    executor = InParts()
    parted = run(recipe, output=tmp_path / "parted", executor=executor)
    whole = run(recipe, output=tmp_path / "whole")
    assert sorted(name for name in executor.asked if name.startswith("calibrate-")) == [
        f"calibrate-{part}-of-3" for part in (1, 2, 3)
    ]
    assert parted.artifacts.keys() == whole.artifacts.keys() == {"float", "int8"}
    # ONNX Runtime names the nodes that it adds to float.onnx in another order now and then.
    for name in ("tiny.onnx", "tiny.ranges", "tiny.ranges.json", "int8.graph.onnx", "int8.onnx"):
        files = [digest_files([folder / name]) for folder in (tmp_path / "parted", tmp_path / "whole")]
        assert files[0] == files[1], name
    parts = [path.name for path in (tmp_path / "parted").iterdir() if "-of-" in path.name]
    assert not parts, "they are no artifacts"


def test_parts_are_not_observed_again(recipe: Path, tmp_path: Path) -> None:
    """What one process did is done for the other, whichever is first."""
    run(recipe, output=tmp_path / "out")
    report = run(recipe, output=tmp_path / "out", executor=InParts())
    assert set(report.stages.values()) == {"skipped"}
    assert not [name for name in report.stages if name.startswith("calibrate-")]
