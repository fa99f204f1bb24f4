"""A sweep of three tiny models in three ways, and what its executor is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from qcompile.bench.results.sweep_results import CellResult
from qcompile.pipeline.executor import Done, ThisProcess
from qcompile.pipeline.recipe import Recipe
from qcompile.pipeline.steps import Step
from qcompile.pipeline.store import Store
from qcompile.pipeline.sweep.cells import Member
from qcompile.progress import Progress

RECIPE = """
version = 1
name = "tiny"

[[sweep.model]]
name = "residual"
source = "residual.onnx"
calibration = "residual.npz"

[[sweep.model]]
name = "mlp"
source = "mlp.onnx"
calibration = "mlp.npz"

[[sweep.model]]
name = "other"
source = "other.onnx"
calibration = "residual.npz"

[[artifact]]
name = "plain"
target = "openvino"
precision = "fp32"

[sweep]
targets = ["openvino"]
precisions = ["fp32", "int8"]
"""
CELLS = [
    f"{model}-{artifact}"
    for model in ("residual", "mlp", "other")
    for artifact in ("plain", "openvino-fp32", "openvino-int8")
]


def write_sweep(folder: Path, tiny_file: Callable[..., Path], text: str = RECIPE) -> Path:
    """Write the recipe, its models and its data into the folder of `tiny_file`; nothing is measured."""
    tiny_file("residual")
    tiny_file("mlp")
    tiny_file("residual", file="other.onnx", opset=15)
    for name, shape in (("residual", (4, 8, 8)), ("mlp", (16,))):
        x = np.random.default_rng(0).standard_normal((16, *shape)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x)
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


class Asked(ThisProcess):
    """Notes which stages were carried out, by the name of the recipe."""

    def __init__(self, parallel: int = 1) -> None:
        self.parallel = parallel
        self.done: list[tuple[str, str]] = []
        self._one = threading.Lock()

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        with self._one:  # what stages do to the process, such as redirecting its output, is for one thread
            done = super().do(recipe, step, store, again=again, progress=progress)
        if done is not None and not done.was_done:
            self.done.append((recipe.name, step.name))
        return done


class Noted:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.cells: dict[str, tuple[CellResult, bool]] = {}
        self.count, self.open = 0, set[str]()

    def planned(self, cells: int) -> None:
        self.count = cells

    def began(self, member: Member) -> None:
        self.open.add(member.name)

    def stage(self, member: Member, stage: str, state: str, seconds: float) -> None:
        assert member.name in self.open
        assert seconds >= 0.0

    def finished(self, cell: CellResult, *, changed: bool) -> None:
        assert cell.name not in self.cells
        self.cells[cell.name] = cell, changed

    def left(self, member: Member) -> None:
        self.open.remove(member.name)
