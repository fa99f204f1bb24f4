"""What TensorRT calls back is accepted by the real classes of TensorRT-RTX, which is here without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import tensorrt_rtx
from simulated_cuda import SimulatedGpu

from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.runner.callbacks import make_output_allocator, make_profiler
from qcompile.engines.tensorrt.runner.cuda import PrimaryContext
from qcompile.engines.tensorrt.runner.memory import DeviceBuffer
from qcompile.engines.tensorrt.runner.profile_choice import Extremes
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


@pytest.mark.parametrize("shape", [(), (3,), (1, 2, 3)])
def test_dims_are_read_like_tuples(shape: tuple[int, ...]) -> None:
    dims: Any = tensorrt_rtx.Dims(shape)
    assert tuple(int(extent) for extent in dims) == shape
    assert Extremes(shape, shape, shape).holds(tuple(dims))


def test_names_of_the_runtime_are_those_of_the_real_module() -> None:
    assert Adapter(tensorrt_rtx, "tensorrt-rtx").shares_profiles()
    assert str(tensorrt_rtx.DataType.BF16).rsplit(".", 1)[-1] == "BF16"
    for owner, names in {
        "ICudaEngine": "num_io_tensors get_tensor_name get_tensor_dtype get_tensor_shape get_tensor_mode "
        "get_tensor_location get_tensor_format get_tensor_profile_shape get_tensor_profile_values "
        "num_optimization_profiles create_execution_context",
        "IExecutionContext": "active_optimization_profile set_optimization_profile_async set_input_shape "
        "get_tensor_shape set_tensor_address set_output_allocator execute_async_v3 profiler "
        "is_stream_capturable",
    }.items():
        assert all(hasattr(getattr(tensorrt_rtx, owner), name) for name in names.split())
