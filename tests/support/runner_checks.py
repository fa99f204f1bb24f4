"""What tests of TensorRT's runner say again and again: it computes, and a call of the driver fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from simulated_cuda import SimulatedGpu
from tensorrt_simulation import Simulation, make_adapter, values

from qcompile.engines.tensorrt.runner.runner import TensorRTRunner


def simulate(version: str, gpu: SimulatedGpu, folder: Path) -> Simulation:
    """A version of TensorRT on a simulated GPU."""
    return Simulation(version, gpu, make_adapter(version, gpu), folder)


def assert_negates(runner: TensorRTRunner, *counts: int, seed: int = 0) -> None:
    """Run the engine of the model "negate" on so many rows in turn, and compare."""
    for count in counts:
        x = values(count, 4, seed=seed)
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)


@contextmanager
def failing(gpu: SimulatedGpu, fails: str | Callable[[str], bool]) -> Iterator[None]:
    """Let a call fail in the block: the one of this name, or those that the function chooses."""
    ordinary = gpu.enter
    chosen = fails if callable(fails) else lambda name: name == fails
    gpu.enter = lambda name: chosen(name) or ordinary(name)  # type: ignore[method-assign]
    try:
        yield
    finally:
        gpu.enter = ordinary  # type: ignore[method-assign]
