"""A sweep of three tiny models in three ways, and what its executor is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from qcompile.pipeline.recipe import Recipe
from qcompile.pipeline.steps import Done, Step, ThisProcess
from qcompile.pipeline.store import Store
from qcompile.progress import Progress

MODELS = {"residual": "residual", "mlp": "mlp", "other": "residual"}
"""Model to the data that it is calibrated on."""
RECIPE = """
version = 1
name = "tiny"

[[artifact]]
name = "plain"
target = "openvino"
precision = "fp32"

[sweep]
targets = ["openvino"]
precisions = ["fp32", "int8"]
""" + "".join(
    f'[[sweep.model]]\nname = "{model}"\nsource = "{model}.onnx"\ncalibration = "{data}.npz"\n'
    for model, data in MODELS.items()
)
CELLS = [f"{model}-{name}" for model in MODELS for name in ("plain", "openvino-fp32", "openvino-int8")]


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
    """Notes which stages were carried out, by the name of the recipe; `fails` has an error for each name."""

    def __init__(self, parallel: int = 1, fails: dict[str, Exception] | None = None) -> None:
        self.parallel, self.fails = parallel, fails or {}
        self.done: list[tuple[str, str]] = []
        self.cancelled = threading.Event()
        self._one = threading.Lock()

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        if recipe.name in self.fails:
            raise self.fails[recipe.name]
        with self._one:  # what stages do to the process, such as redirecting its output, is for one thread
            done = super().do(recipe, step, store, again=again, progress=progress)
        if done is not None and not done.was_done:
            self.done.append((recipe.name, step.name))
        return done

    def cancel(self) -> None:
        self.cancelled.set()
