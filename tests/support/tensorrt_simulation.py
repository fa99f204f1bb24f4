"""Models, the engines made of them on a simulated GPU, arrays there, and checks of the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser
from simulated_builder import simulated_tensorrt
from simulated_cuda import SimulatedGpu
from simulated_plan import write_plan

from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.runner.loaded_engine import EngineUse
from qcompile.engines.tensorrt.runner.runner import TensorRTRunner

PYTORCHS = 0xBEEF
"""Handle of a context that somebody else has made current."""

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
TEXTS = {
    # y of the shape that `size` says: its values are read on the host, as shapes depend on them.
    "shaped": """shaped (float[n,4] x, int32[2] size) => (float[a,b] y) {
        wide = Cast <to = 7> (size)
        y = Expand (x, wide)
    }""",
    # Where x is not zero: as many columns as there are such elements.
    "nonzero": """nonzero (float[n,4] x) => (int32[2,k] places, float[n,4] twice) {
        found = NonZero (x)
        places = Cast <to = 6> (found)
        twice = Add (x, x)
    }""",
    "negate_bf16": "negate (bfloat16[n,4] x) => (bfloat16[n,4] y) { y = Neg (x) }",
    "negate": "negate (float[n,4] x) => (float[n,4] y) { y = Neg (x) }",
    "sum": """sum (float[n,4] a, float[m,4] b) => (float[4] y) {
        axes = Constant <value_ints = [0]> ()
        both = Concat <axis = 0> (a, b)
        y = ReduceSum <keepdims = 0> (both, axes)
    }""",
}


def make_adapter(version: str, gpu: SimulatedGpu) -> Adapter:
    """Return the adapter of one version, on a simulated GPU."""
    module = simulated_tensorrt(version, gpu=gpu)
    return Adapter(module, "tensorrt-rtx" if version == "rtx" else "tensorrt")


def read_model(name: str) -> onnx.ModelProto:
    """Return a model of `TEXTS`."""
    return parser.parse_model(HEADER + TEXTS[name])


@dataclass
class Simulation:
    """A version of TensorRT on a simulated GPU."""

    version: str
    gpu: SimulatedGpu
    adapter: Adapter
    folder: Path

    def plan(self, model: onnx.ModelProto | str, **about: Any) -> Path:
        """Write an engine, see `write_plan`; `about` may leave the profiles out: 1 to 8 rows."""
        made = read_model(model) if isinstance(model, str) else model
        if "profiles" not in about:
            about["profiles"] = [rows(made, 1, 2, 8)]
        return write_plan(self.folder / "m.engine", made, self.version, **about)

    def open(
        self, model: onnx.ModelProto | str, *, runner: dict[str, Any] | None = None, **about: Any
    ) -> TensorRTRunner:
        """Write an engine and load it; `runner` are options of `EngineUse` and `TensorRTRunner`."""
        options = dict(runner or {})
        own = {name: options.pop(name) for name in ("streams", "declared") if name in options}
        return TensorRTRunner(self.adapter, self.plan(model, **about), EngineUse(**options), **own)

    def told(self, member: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of a member of TensorRT's classes."""
        return [call.args for call in self.adapter.module.recorded_calls if call.member == member]


def rows(model: onnx.ModelProto, *counts: int) -> dict[str, list[list[int]]]:
    """Return a profile: ranges of the first axis of each input that is dynamic there."""
    found = {}
    for value in model.graph.input:
        first, *others = value.type.tensor_type.shape.dim
        if not first.HasField("dim_value"):
            found[value.name] = [[count, *(dim.dim_value for dim in others)] for count in counts]
    return found


def values(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Normal float32 values."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


class Producer:
    """Values on the device, written there by a stream of another library that nobody has waited for yet."""

    def __init__(self, gpu: SimulatedGpu, values: np.ndarray[Any, Any], *, offset: int = 0) -> None:
        self.gpu, self.shape, self.dtype = gpu, values.shape, values.dtype
        self.stream = gpu.foreign_stream()
        self.address, self.free = gpu.array_on_device(np.zeros_like(values), offset)
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).copy()

        def write() -> None:
            gpu.bytes_at(self.address, data.size)[:] = data

        self.stream.tell(write)


class InterfaceArray(Producer):
    """As Numba's arrays."""

    def __init__(self, gpu: SimulatedGpu, values: np.ndarray[Any, Any], **about: Any) -> None:
        super().__init__(gpu, values, offset=about.pop("offset", 0))
        gpu.placed[self.address] = about.pop("device", 0)
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "stream": self.stream.handle,
        } | about


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
