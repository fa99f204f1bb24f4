"""PyTorch on a GPU: the same memory and the same clock as engines of TensorRT; `torch.cuda` is simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from simulated_torch_cuda import COPY_MS, KERNEL_MS, SimulatedTorchCuda, install

from qcompile.engines.pytorch import PyTorchRunner
from qcompile.engines.pytorch import runner as home
from qcompile.errors import InvalidOption

LEFT, RIGHT = np.ones((2, 3), np.float32), np.full((2, 3), 4.0, np.float32)
FEEDS = {"right": RIGHT, "left": LEFT}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimulatedTorchCuda:
    """`torch.cuda`."""
    monkeypatch.setattr(home, "_rounding", lambda *_: ("noted",))
    return install(monkeypatch)


class Nested(torch.nn.Module):
    """Outputs in every structure that `forward` may return."""

    def __init__(self, cuda: SimulatedTorchCuda | None) -> None:
        super().__init__()
        self._cuda = cuda

    def forward(self, left: Any, right: Any) -> dict[str, Any]:
        if self._cuda is not None:
            self._cuda.enqueue(KERNEL_MS)
        return {"total": left + right, "both": (left - right, [left * right])}


def open_runner(module: torch.nn.Module, mode: Any = "eager") -> PyTorchRunner:
    """A runner whose GPU is the processor."""
    runner = PyTorchRunner(module, None, mode=mode, device=0)
    runner._device = torch.device("cpu")
    return runner


@pytest.mark.parametrize("mode", ["eager", "trace"])
def test_inputs_and_outputs_are_in_page_locked_memory(cuda: SimulatedTorchCuda, mode: Any) -> None:
    class Pair(torch.nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"total": left + right, "difference": left - right}

    with open_runner(Pair(), mode) as runner:
        assert runner.notes == ("noted",)
        assert runner.contains.startswith("host to host, in page-locked memory: copies to the GPU, forward()")
        found = runner.infer(FEEDS)
        assert cuda.copies == 4
        assert not cuda.unfinished
        np.testing.assert_array_equal(found["total"], LEFT + RIGHT)
        np.testing.assert_array_equal(found["difference"], LEFT - RIGHT)
        again = runner.infer({"left": LEFT + 1, "right": RIGHT})
        np.testing.assert_array_equal(found["total"], LEFT + RIGHT)  # a copy that outlives the next run
        np.testing.assert_array_equal(again["total"], LEFT + 1 + RIGHT)
        assert len(runner.time(FEEDS, 3)) == 3


def test_a_prepared_call_keeps_its_memory_and_its_structure(cuda: SimulatedTorchCuda) -> None:
    with open_runner(Nested(cuda)) as runner:
        run = runner.prepare(FEEDS)
        first = run()
        pinned = len(cuda.pinned)
        second = run()
    assert len(cuda.pinned) == pinned == 5
    assert first["total"].data_ptr() == second["total"].data_ptr()
    np.testing.assert_array_equal(second["both"][0].numpy(), LEFT - RIGHT)
    np.testing.assert_array_equal(second["both"][1][0].numpy(), LEFT * RIGHT)


def test_memory_grows_where_an_output_does(cuda: SimulatedTorchCuda) -> None:
    class Growing(torch.nn.Module):
        calls = 0

        def forward(self, left: Any) -> Any:
            self.calls += 1
            return left.repeat(self.calls, 1)

    with open_runner(Growing()) as runner:
        run = runner.prepare({"left": LEFT})
        assert [run().shape[0] for _ in range(3)] == [2, 4, 6]
    assert not cuda.unfinished


def test_on_the_device_nothing_is_copied_in_a_call(cuda: SimulatedTorchCuda) -> None:
    with open_runner(Nested(cuda)) as runner:
        run = runner.prepare(FEEDS, on_device=True)
        before = cuda.copies
        for _ in range(3):
            np.testing.assert_array_equal(run()["total"].numpy(), LEFT + RIGHT)
            assert not cuda.unfinished
    assert (before, cuda.copies) == (2, 2)


def test_the_gpus_clock_tells_compute_from_copies(cuda: SimulatedTorchCuda) -> None:
    with open_runner(Nested(cuda)) as runner:
        times = runner.gpu_times(FEEDS, 4)
    assert times.compute.tolist() == [KERNEL_MS * 1e6] * 4
    assert times.with_transfers.tolist() == [(KERNEL_MS + 5 * COPY_MS) * 1e6] * 4
    assert (times.enqueue > 0).all()


def test_inferences_in_flight_have_streams_and_memory_of_their_own(cuda: SimulatedTorchCuda) -> None:
    with open_runner(Nested(cuda)) as runner, runner.in_flight(FEEDS, 3) as inferences:
        for one in inferences:
            one.start()
        assert len(cuda.unfinished) == len(cuda.streams) == 3
        inferences[1].wait()
        assert len(cuda.unfinished) == 2
    assert not cuda.unfinished


def test_the_processor_has_neither_clock_nor_streams() -> None:
    with PyTorchRunner(Nested(None), None) as runner:
        with pytest.raises(InvalidOption, match="PyTorch runs on the processor here") as caught:
            runner.gpu_times(FEEDS, 1)
        assert caught.value.hint == "give `devices` cuda"
        with pytest.raises(InvalidOption, match="on the processor"), runner.in_flight(FEEDS, 2):
            pass
