"""What TensorRT calls back is accepted by the real classes of TensorRT-RTX, which is here without a GPU."""

from __future__ import annotations

import pytest
import tensorrt_rtx
from simulated_cuda import SimulatedGpu

from qcompile.engines.tensorrt.runner.callbacks import make_output_allocator, make_profiler
from qcompile.engines.tensorrt.runner.cuda import PrimaryContext
from qcompile.engines.tensorrt.runner.memory import DeviceBuffer
from qcompile.errors import ModelError


def test_an_output_allocator_grows_and_tells_the_shape(gpu: SimulatedGpu) -> None:
    context = PrimaryContext(0, "test")
    with context.active("a test"):
        buffer = DeviceBuffer(context.cuda)
        allocator = make_output_allocator(tensorrt_rtx, buffer)
        assert isinstance(allocator, tensorrt_rtx.IOutputAllocator)
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


@pytest.mark.usefixtures("gpu")
def test_an_output_of_no_bytes_has_an_address() -> None:
    context = PrimaryContext(0, "test")
    with context.active("a test"):
        buffer = DeviceBuffer(context.cuda)
        assert make_output_allocator(tensorrt_rtx, buffer).reallocate_output("y", 0, 0, 256)
        buffer.free()


def test_a_profiler_tells_medians() -> None:
    profiler = make_profiler(tensorrt_rtx)
    assert isinstance(profiler, tensorrt_rtx.IProfiler)
    for time_ms in (3.0, 1.0, 9.0):
        profiler.report_layer_time("conv", time_ms)
    profiler.report_layer_time("relu", 0.5)
    assert profiler.median_ms() == {"conv": 3.0, "relu": 0.5}
