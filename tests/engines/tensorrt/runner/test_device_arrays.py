"""Inputs and outputs that stay on the GPU: not copied, not converted, and waited for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from device_producers import InterfaceArray
from runner_checks import assert_negates
from simulated_cuda import COPY_NS, KERNEL_NS, SimulatedGpu
from tensorrt_simulation import Simulation, values

from qcompile.engines.tensorrt.runner.cuda import PrimaryContext
from qcompile.engines.tensorrt.runner.memory import read_device_input
from qcompile.errors import DataError, ModelError


def test_an_array_on_the_device_is_used_where_it_lies(simulation: Simulation) -> None:
    x = values(3, 4)
    producer = InterfaceArray(simulation.gpu, x)
    with simulation.open("negate") as runner:
        times = runner.gpu_times({"x": producer}, 1)
        np.testing.assert_array_equal(runner.infer({"x": producer})["y"], -x)
    assert ("x", producer.address) in simulation.told("set_tensor_address")
    assert times.with_transfers.tolist() == [KERNEL_NS + COPY_NS]  # the output alone
    assert simulation.gpu.made["page-locked memory"] == 1
    producer.free()


@pytest.mark.parametrize(
    ("about", "waits"), [({}, True), ({"version": 2, "stream": None}, True), ({"stream": None}, False)]
)
def test_what_its_producer_still_writes_is_waited_for_unless_it_says_nothing(
    newest: Simulation, about: dict[str, Any], waits: bool
) -> None:
    # A Producer's stream has written nothing until somebody waits for it: without, zeros are read.
    x = values(3, 4)
    producer = InterfaceArray(newest.gpu, x, **about)
    with newest.open("negate") as runner:
        np.testing.assert_array_equal(runner.infer({"x": producer})["y"], -x * waits)
        assert bool(producer.stream.queue) != waits
    producer.free()


def test_device_and_host_arrays_mix(newest: Simulation) -> None:
    a, b = values(3, 4, seed=1), values(5, 4, seed=2)
    producer = InterfaceArray(newest.gpu, a)
    with newest.open("sum") as runner:
        found = runner.infer({"a": producer, "b": b})["y"]
    np.testing.assert_allclose(found, np.concatenate([a, b]).sum(0), rtol=1e-5)
    producer.free()


def test_an_array_is_held_while_its_memory_is_used(newest: Simulation) -> None:
    producer = InterfaceArray(newest.gpu, values(3, 4))
    alive, free = weakref.ref(producer), producer.free
    with newest.open("negate") as runner:
        runner.infer({"x": producer})
        del producer
        assert alive() is not None
        runner.infer({"x": values(2, 4)})
        assert alive() is None
    free()


class NoArray:
    """What has no interface, or raises in its place, as a tensor that requires a gradient does."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    @property
    def __cuda_array_interface__(self) -> Any:
        raise self._error or AttributeError("no such interface")

    def free(self) -> None:
        """Nothing is on the device."""


def array(*shape: int, **about: Any) -> Callable[[SimulatedGpu], InterfaceArray]:
    """What makes an array on the device, of shape [3,4] unless said."""
    return lambda gpu: InterfaceArray(gpu, values(*(shape or (3, 4))), **about)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (array(strides=(4, 12)), "is strided on the device"),
        (array(device=1), "on CUDA device 1; 0 is required"),
        (lambda _: NoArray(), "is a NoArray; a numpy array, or an array on CUDA device 0, is"),
        (lambda _: NoArray(RuntimeError("requires grad")), "cannot be shared: requires grad"),
        (array(offset=16), "requires a multiple of 256"),
        (array(mask=object()), "has a mask"),
        (array(data=(256, False)), "outside the memory of CUDA devices"),
        (array(typestr="<f2"), "float16; float32 is required"),
        (array(3, 5), r"has shape 3x5; \[\?,4\] is required"),
    ],
)
def test_what_would_have_to_be_copied_or_converted_is_refused(
    newest: Simulation, make: Callable[[SimulatedGpu], InterfaceArray], said: str
) -> None:
    producer = make(newest.gpu)
    with newest.open("negate") as runner:
        with pytest.raises(DataError, match=f"input 'x' .*{said}"):
            runner.infer({"x": producer})
        assert_negates(runner, 2)
    producer.free()


@pytest.mark.parametrize("strides", [(999, 4), (16, 4)])
def test_strides_that_mean_row_major_are_taken(newest: Simulation, strides: tuple[int, int]) -> None:
    x = values(1, 4)  # the stride of an axis of extent 1 means nothing
    producer = InterfaceArray(newest.gpu, x, strides=strides)
    with newest.open("negate") as runner:
        np.testing.assert_array_equal(runner.infer({"x": producer})["y"], -x)
    producer.free()


def test_a_shape_input_is_refused_on_the_device(newest: Simulation) -> None:
    size = InterfaceArray(newest.gpu, np.array([2, 4], np.int32))
    with (
        newest.open("shaped", host=["size"]) as runner,
        pytest.raises(DataError, match="input 'size' is on the device; TensorRT reads it on the host"),
    ):
        runner.infer({"x": values(1, 4), "size": size})
    size.free()


class Claims:
    """A tensor of PyTorch on the CPU that says it is on the GPU: the interface is PyTorch's own."""

    def __init__(self, gpu: SimulatedGpu, tensor: torch.Tensor) -> None:
        whole = gpu.allocate(tensor.nbytes)
        self.free = lambda: gpu.release(whole, "device memory")
        interface = torch.Tensor.__cuda_array_interface__.fget(_OnGpu(tensor))  # type: ignore[attr-defined]
        self.__cuda_array_interface__ = interface | {"data": (whole, False)}


class _OnGpu:
    """What `Tensor.__cuda_array_interface__` asks of a tensor; it is written in Python."""

    is_cuda, is_sparse, requires_grad = True, False, False

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        if name == "__torch_function__":
            raise AttributeError(name)
        return getattr(self._tensor, name)


@pytest.mark.parametrize(
    "name", ["float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"]
)
def test_tensors_of_pytorch_are_read_as_it_shows_them(gpu: SimulatedGpu, name: str) -> None:
    tensor = torch.zeros(3, 1, 5, 64, dtype=getattr(torch, name))
    context = PrimaryContext(0, "test")
    claims, strided = Claims(gpu, tensor), Claims(gpu, tensor.transpose(0, 2))
    with context.active("a test"):
        stream = context.cuda.stream()
        found = read_device_input("x", claims, context, stream)
        assert found.shape == (3, 1, 5, 64)
        assert found.dtype == np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
        with pytest.raises(DataError, match="is strided"):
            read_device_input("x", strided, context, stream)
    claims.free()
    strided.free()


def test_outputs_can_stay_on_the_device(simulation: Simulation) -> None:
    x = values(3, 4)
    with simulation.open("nonzero", data_dependent=["places"]) as runner:
        found = runner.infer({"x": x}, on_device=True)
        assert simulation.gpu.made["page-locked memory"] == 2  # x, and room for `twice`
        np.testing.assert_array_equal(found["twice"].copy_to_host(), x * 2)
        places = found["places"]
        assert (places.shape, places.dtype) == ((2, 12), np.dtype(np.int32))
        np.testing.assert_array_equal(places.copy_to_host(), np.array(np.nonzero(x)))
        assert repr(places) == "DeviceArray(shape=(2, 12), dtype=int32, device=0)"


def test_an_output_on_the_device_speaks_the_protocol(newest: Simulation) -> None:
    with newest.open("negate") as runner, newest.open("negate") as next_runner:
        between = runner.infer({"x": values(3, 4)}, on_device=True)["y"]
        assert between.__cuda_array_interface__ == {
            "shape": (3, 4), "typestr": "<f4", "data": (between.address, False), "strides": None,
            "stream": None, "version": 3,
        }  # fmt: skip
        np.testing.assert_array_equal(next_runner.infer({"x": between})["y"], values(3, 4))
        with pytest.raises(DataError, match="input 'x' is this runner's own output 'y'"):
            runner.infer({"x": between})


def test_it_is_valid_until_the_runner_is_used_again(newest: Simulation) -> None:
    runner = newest.open("negate")
    for end in (lambda: runner.infer({"x": values(1, 4)}), runner.close):
        output = runner.infer({"x": values(3, 4)}, on_device=True)["y"]
        end()
        for use in (output.copy_to_host, lambda output=output: output.__cuda_array_interface__):
            with pytest.raises(DataError, match="its runner was used again or closed since"):
                use()


def test_bfloat16_has_no_interface_and_is_copied_all_the_same(newest: Simulation) -> None:
    x = values(3, 4).astype(ml_dtypes.bfloat16)
    producer = InterfaceArray(newest.gpu, x, typestr="<V2")
    with newest.open("negate_bf16") as runner:
        output = runner.infer({"x": producer}, on_device=True)["y"]
        assert not hasattr(output, "__cuda_array_interface__")
        np.testing.assert_array_equal(output.copy_to_host().view(np.uint16), (-x).view(np.uint16))
    producer.free()


def test_an_output_on_the_host_cannot_stay_on_the_device(newest: Simulation) -> None:
    with newest.open("negate", host=["y"]) as runner:
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))
        with pytest.raises(ModelError, match="output 'y' is computed on the host"):
            runner.infer({"x": values(2, 4)}, on_device=True)
