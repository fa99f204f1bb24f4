"""A sweep of three tiny models in three ways, and what its executor is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from executors import Noting

from qcompile.pipeline.recipe.recipe import Recipe
from qcompile.pipeline.stages.stage import FinishedStage, Stage
from qcompile.pipeline.stages.store import Store

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


class Asked(Noting):
    """Carries out one stage at a time, whatever it is asked; `fails` has an error for names of recipes."""

    def __init__(self, parallel: int = 1, fails: dict[str, Exception] | None = None) -> None:
        super().__init__(parallel)
        self.fails = fails or {}
        self.cancelled, self._one = threading.Event(), threading.Lock()

    def do_here(self, recipe: Recipe, stage: Stage, store: Store, **options: Any) -> FinishedStage | None:
        if recipe.name in self.fails:
            raise self.fails[recipe.name]
        with self._one:  # what stages do to the process, such as redirecting its output, is for one thread
            return super().do_here(recipe, stage, store, **options)

    def cancel(self) -> None:
        self.cancelled.set()
