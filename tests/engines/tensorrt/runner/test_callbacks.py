"""What TensorRT calls back: debug tensors while an engine runs, and the real classes of TensorRT-RTX.

TensorRT-RTX is here without a GPU: it accepts what is made of its classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorrt_rtx
from onnx import parser
from simulated_cuda import SimulatedGpu
from tensorrt_simulation import HEADER, Simulation, failing, make_adapter, rows, values

from qcompile.engines.tensorrt.runner import memory
from qcompile.engines.tensorrt.runner.cuda import PrimaryContext
from qcompile.engines.tensorrt.runner.io_tensors import numpy_dtype
from qcompile.engines.tensorrt.runner.loaded_engine import EngineUse
from qcompile.engines.tensorrt.runner.memory import DeviceBuffer, make_output_allocator, make_profiler
from qcompile.engines.tensorrt.runner.runner import TensorRTRunner
from qcompile.errors import ModelError

CHAIN = """chain (float[n,4] x) => (float[n,4] y) {
    a = Neg (x)
    b = Abs (a)
    k = Cast <to = 7> (b)
    c = Add (b, b)
    y = Add (c, a)
}"""
X = values(3, 4)


def open_chain(
    gpu: SimulatedGpu, folder: Path, version: str = "10.16", *, marked: tuple[str, ...] = (),
    unfused: tuple[str, ...] = ("b",), **use: Any,
) -> tuple[TensorRTRunner, Simulation]:  # fmt: skip
    simulation = Simulation(version, gpu, make_adapter(version, gpu), folder)
    model = parser.parse_model(HEADER + CHAIN)
    path = simulation.plan(model, profiles=[rows(model, 1, 2, 8)], marked=marked, unfused=unfused)
    return TensorRTRunner(simulation.adapter, path, EngineUse(**use)), simulation


@pytest.mark.parametrize("version", ["10.16", "11.4", "rtx"])
def test_marked_and_unfused_tensors_are_read_beside_the_outputs_in_one_run(
    version: str, gpu: SimulatedGpu, tmp_path: Path
) -> None:
    runner, simulation = open_chain(gpu, tmp_path, version, marked=("a",), unfused=("b", "c"))
    with runner:
        found = runner.debug_tensors({"x": X}, ["a", "b", "y"])
        np.testing.assert_array_equal(found["a"], -X)
        np.testing.assert_array_equal(found["b"], abs(X))
        np.testing.assert_array_equal(found["y"], 2 * abs(X) - X)
        assert set(found) == {"a", "b", "y"}, "c was not asked for"
        assert runner.infer({"x": X})["y"].shape == (3, 4)
        assert simulation.told("set_all_tensors_debug_state") == [(True,), (False,)]
        assert [arguments[0] is None for arguments in simulation.told("set_debug_listener")] == [False, True]


def test_a_tensor_that_no_array_can_hold_is_left_out(
    gpu: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(member: Any, name: str) -> Any:
        if name == "b":
            raise ModelError(f"tensor {name!r} is {member}")
        return numpy_dtype(member, name)

    runner, _ = open_chain(gpu, tmp_path, unfused=("a", "b"))
    with runner:
        monkeypatch.setattr(memory, "numpy_dtype", refuse)
        assert set(runner.debug_tensors({"x": X}, ["a", "b"])) == {"a", "y"}


def test_what_fails_in_the_listener_is_raised_though_the_binding_drops_it(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    runner, _ = open_chain(gpu, tmp_path)
    with runner:
        runner.infer({"x": X})
        said = "reading debug tensors: CUDA fails: cuMemcpyDtoH"
        with failing(gpu, "cuMemcpyDtoH"), pytest.raises(ModelError, match=said):
            runner.debug_tensors({"x": X}, ["b"])


def test_debug_tensors_are_read_beside_a_cuda_graph(gpu: SimulatedGpu, tmp_path: Path) -> None:
    runner, _ = open_chain(gpu, tmp_path, cuda_graph=True)
    with runner:
        before = runner.infer({"x": X})["y"]
        np.testing.assert_array_equal(runner.debug_tensors({"x": X}, ["b"])["b"], abs(X))
        np.testing.assert_array_equal(runner.infer({"x": X})["y"], before)


def test_a_real_output_allocator_grows_and_tells_the_shape(gpu: SimulatedGpu) -> None:
    context = PrimaryContext(0, "test")
    with context.active("a test"):
        buffer = DeviceBuffer(context.cuda)
        allocator = make_output_allocator(tensorrt_rtx, buffer)
        assert isinstance(allocator, tensorrt_rtx.IOutputAllocator)
        assert allocator.reallocate_output("y", 0, 0, 256)  # no bytes have an address too
        small = allocator.reallocate_output_async("y", 0, 100, 256, 0)
        assert allocator.reallocate_output("y", small, 80, 256) == small == buffer.address
        large = allocator.reallocate_output("y", small, 200, 1)
        assert gpu.bytes_at(large, 200).size == 200
        allocator.notify_shape("y", tensorrt_rtx.Dims((2, 0, 3)))
        assert allocator.shape == (2, 0, 3)
        allocator.begin()
        assert allocator.shape is None
        allocator.raise_again()
        assert allocator.reallocate_output("y", 0, 200, 512) == 0
        with pytest.raises(ModelError, match="output 'y': TensorRT asks for alignment to 512 bytes"):
            allocator.raise_again()
        allocator.raise_again()
        buffer.free()


def test_a_real_profiler_tells_medians() -> None:
    profiler = make_profiler(tensorrt_rtx)
    assert isinstance(profiler, tensorrt_rtx.IProfiler)
    for time_ms in (3.0, 1.0, 9.0):
        profiler.report_layer_time("conv", time_ms)
    profiler.report_layer_time("relu", 0.5)
    assert profiler.median_ms() == {"conv": 3.0, "relu": 0.5}
