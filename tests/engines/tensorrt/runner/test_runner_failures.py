"""Whatever fails, at whichever step: the error is ours, nothing stays allocated, no context stays current."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_producers import InterfaceArray
from runner_checks import assert_negates, failing
from tensorrt_simulation import PYTORCHS, Simulation, values

from qcompile.engines.tensorrt.runner.runner import TensorRTRunner
from qcompile.errors import QCompileError

Job = Callable[[Simulation, list[TensorRTRunner]], Any]


def infer(simulation: Simulation, opened: list[TensorRTRunner]) -> None:
    """Load, and run at two shapes, once from the device; outputs both ways."""
    producer = InterfaceArray(simulation.gpu, values(2, 4))
    try:
        opened.append(simulation.open("negate"))
        for feeds in ({"x": values(1, 4)}, {"x": producer}, {"x": values(8, 4)}):
            np.testing.assert_array_equal(opened[0].infer(feeds)["y"].shape[1], 4)
        opened[0].infer({"x": values(1, 4)}, on_device=True)["y"].copy_to_host()
    finally:
        simulation.gpu.fail_on = 0
        producer.free()


def infer_many(simulation: Simulation, opened: list[TensorRTRunner]) -> None:
    """Run on three streams."""
    profiles = [{"x": [[1, 4], [2, 4], [top, 4]]} for top in (6, 7, 8)]
    opened.append(simulation.open("negate", profiles=profiles, runner={"streams": 3}))
    opened[0].infer_many([{"x": values(1 + turn, 4)} for turn in range(5)])


def data_dependent(simulation: Simulation, opened: list[TensorRTRunner]) -> None:
    """Let TensorRT ask for memory, time it, and profile it."""
    opened.append(simulation.open("nonzero", data_dependent=["places"]))
    for top in (1, 2):
        opened[0].infer({"x": np.ones((top, 4), np.float32)})
    opened[0].gpu_times({"x": values(2, 4)}, 1)
    opened[0].layer_times({"x": values(2, 4)}, 1)


def graphs(simulation: Simulation, opened: list[TensorRTRunner]) -> None:
    """Capture and replay at more shapes than graphs are kept for."""
    opened.append(simulation.open("negate", runner={"cuda_graph": True}))
    for rows in (1, 2, 3, 4, 5, 1):
        opened[0].infer({"x": values(rows, 4)})


@pytest.mark.parametrize("job", [infer, infer_many, data_dependent, graphs])
def test_each_call_that_can_fail_fails_in_words_and_leaves_nothing(simulation: Simulation, job: Job) -> None:
    gpu = simulation.gpu
    failed = []
    for call in range(1, 1000):
        gpu.calls, gpu.fail_on, gpu.failed = 0, call, ""
        opened: list[TensorRTRunner] = []
        try:
            job(simulation, opened)
            error = None
        except QCompileError as caught:
            error = caught
        gpu.fail_on = 0
        if not gpu.failed:
            assert error is None
            break
        if error is None:  # memory for fewer graphs
            assert job == graphs
            assert gpu.failed in ("create_execution_context", "cuMemAlloc", "cuMemHostAlloc")
            assert "memory does not suffice" in opened[0].notes[0]
        assert gpu.stack == [PYTORCHS], gpu.failed
        for runner in opened:  # still useable, unless it could not be made
            np.testing.assert_array_equal(runner.infer({"x": values(3, 4)})[OUTPUT[job]].shape, (3, 4))
            runner.close()
        # While the error is kept, as a caller may:
        assert gpu.is_clean, (gpu.failed, +gpu.live, gpu.complaints)
        assert gpu.stack == [PYTORCHS]
        failed.append(gpu.failed)
    opened[0].close()
    assert {"cuMemAlloc", "execute_async_v3", "cuStreamSynchronize"} <= set(failed)
    assert len(failed) > 20


OUTPUT = {infer: "y", infer_many: "y", data_dependent: "twice", graphs: "y"}


def test_a_device_that_is_lost_is_reported_and_the_rest_is_freed_all_the_same(newest: Simulation) -> None:
    runner = newest.open("negate")
    assert_negates(runner, 2)
    with failing(newest.gpu, "cuStreamSynchronize"):
        for _ in range(2):
            with pytest.raises(QCompileError, match=r"inference: CUDA fails: cuStreamSynchronize"):
                runner.infer({"x": values(2, 4)})
        with pytest.raises(QCompileError, match=r"freeing: CUDA fails: cuStreamSynchronize"):
            runner.close()
        assert newest.gpu.is_clean
        runner.close()


def test_a_failure_within_tensorrt_that_is_not_an_error_of_ours_passes_through(
    newest: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    with newest.open("nonzero", data_dependent=["places"]) as runner:
        runner.infer({"x": values(2, 4)})
        with monkeypatch.context() as patch:
            patch.setattr(newest.gpu, "allocate", interrupted)
            with pytest.raises(KeyboardInterrupt):
                runner.infer({"x": np.ones((8, 4), np.float32)})
        assert newest.gpu.stack == [PYTORCHS]


def test_what_a_failed_run_left_under_way_is_waited_for_before_its_memory_is_written(
    newest: Simulation,
) -> None:
    def waiting() -> bool:
        return any(stream.queue for stream in newest.gpu.streams.values())

    with newest.open("negate") as runner:
        with failing(newest.gpu, "cuMemcpyDtoHAsync"), pytest.raises(QCompileError, match="DtoHAsync"):
            runner.infer({"x": values(2, 4)})
        assert waiting()
        run = runner.prepare({"x": values(2, 4, seed=1)})
        assert not waiting()
        np.testing.assert_array_equal(run()["y"], -values(2, 4, seed=1))
        del run
