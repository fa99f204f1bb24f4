"""The primary context is shared: whatever is done in it, the thread has its own contexts back afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated_cuda import SimulatedGpu
from tensorrt_simulation import PYTORCHS

from qcompile.engines.tensorrt.builder.calibration import Device
from qcompile.engines.tensorrt.runner.cuda_context import PrimaryContext
from qcompile.errors import EngineUnavailable, ModelError


def test_it_is_current_in_the_block_alone(gpu: SimulatedGpu) -> None:
    context = PrimaryContext(1, "test")
    assert (gpu.retained, gpu.stack) == ({1: 1}, [PYTORCHS])
    for _ in range(2):
        with context.active("a test"):
            assert gpu.stack == [PYTORCHS, gpu.primary(1)]
        assert gpu.stack == [PYTORCHS]
    context.close()
    context.close()
    assert gpu.retained == {1: 0}


def test_a_context_that_pycuda_has_current_is_current_again(gpu: SimulatedGpu) -> None:
    import pycuda.driver as cuda

    users: Any = cuda.Device(1).retain_primary_context()
    users.push()
    context = PrimaryContext(0, "test")
    with context.active("a test"):
        assert gpu.stack[-1] == gpu.primary(0)
    assert gpu.stack == [PYTORCHS, gpu.primary(1)]
    context.close()
    assert gpu.stack == [PYTORCHS, gpu.primary(1)]
    assert cuda.Context.pop() is None
    gpu.retained.clear()
    del gpu.pycuda_stack[:]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_leaves_it_too_and_is_not_changed(gpu: SimulatedGpu, error: type[BaseException]) -> None:
    context = PrimaryContext(0, "test")
    with pytest.raises(error), context.active("a test"):
        raise error
    assert gpu.stack == [PYTORCHS]
    context.close()


def test_cudas_errors_become_ours_with_what_was_being_done(gpu: SimulatedGpu) -> None:
    context = PrimaryContext(0, "m.engine")
    said = r"m\.engine: loading: not enough memory on CUDA device 0"
    with pytest.raises(EngineUnavailable, match=said), context.active("loading"):
        context.cuda.mem_alloc(1 << 40)
    said = r"m\.engine: copying: CUDA fails: .*was refused"
    with pytest.raises(ModelError, match=said) as caught, context.active("copying"):
        raise context.cuda.LogicError("this was refused")
    assert isinstance(caught.value.__cause__, context.cuda.LogicError)
    gpu.fail_on = gpu.calls + 1
    said = r"CUDA fails: cuGraphLaunch: CUDA_ERROR_900 \(900\)"
    with pytest.raises(ModelError, match=said), context.active("replaying"):
        context.driver.launch(1, 1)
    context.close()


def test_an_error_that_is_kept_keeps_nothing_on_the_device(gpu: SimulatedGpu) -> None:
    def work() -> None:
        held = context.cuda.mem_alloc(16)
        raise ValueError(f"with {held} in hand")

    context = PrimaryContext(0, "test")
    with pytest.raises(ValueError, match="in hand") as caught, context.active("a test"):
        work()
    assert gpu.live["device memory"] == 0
    assert caught.value.args
    context.close()


def test_an_error_that_was_being_handled_before_keeps_its_frames(gpu: SimulatedGpu) -> None:
    def work() -> None:
        kept = "kept"
        raise ValueError(kept)

    context = PrimaryContext(0, "test")
    try:
        work()
    except ValueError as outer:
        with pytest.raises(KeyError), context.active("a test"):
            {}["nothing"]
        trace = outer.__traceback__
        assert trace is not None
        assert trace.tb_next is not None
        assert trace.tb_next.tb_frame.f_locals == {"kept": "kept"}
    context.close()
    assert gpu.stack == [PYTORCHS]


def test_batches_for_tensorrts_calibrator_go_to_buffers_of_that_context(gpu: SimulatedGpu) -> None:
    device = Device()
    for batch in (np.ones((2, 3), np.float32), np.full((4, 3), 2, np.float32)):
        address = device.copy("x", batch)
        np.testing.assert_array_equal(gpu.bytes_at(address, batch.nbytes).view(np.float32), batch.reshape(-1))
        assert gpu.stack == [PYTORCHS]
    assert gpu.live["device memory"] == 1
    device.close()
    device.close()
