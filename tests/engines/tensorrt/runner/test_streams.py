"""Several inferences under way at once, each on a stream and with an execution context of its own."""

from __future__ import annotations

import numpy as np
import pytest
from device_producers import InterfaceArray
from tensorrt_simulation import Simulation, values

from qcompile.errors import DataError, InvalidOption

PROFILES = [{"x": [[1, 4], [2, 4], [top, 4]]} for top in (8, 8, 16)]


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_outputs_come_in_the_order_of_the_feeds(simulation: Simulation, streams: int) -> None:
    many = [{"x": values(1 + turn % 8, 4, seed=turn)} for turn in range(11)]
    with simulation.open("negate", profiles=PROFILES, runner={"streams": streams}) as runner:
        for _ in range(2):
            found = runner.infer_many(many)
            for feeds, outputs in zip(many, found, strict=True):
                np.testing.assert_array_equal(outputs["y"], -feeds["x"])
        assert runner.infer_many([]) == []


@pytest.mark.parametrize("streams", [1, 3])
def test_all_streams_are_kept_busy(simulation: Simulation, streams: int) -> None:
    """As many runs are enqueued as there are streams before the first one is waited for."""
    gpu = simulation.gpu
    waiting = []
    run_all = type(next(iter(gpu.streams.values()))).run

    with simulation.open("negate", profiles=PROFILES, runner={"streams": streams}) as runner:
        x = values(2, 4)
        runner.infer_many([{"x": x}] * streams)

        def run(stream: object) -> None:
            waiting.append(sum(bool(found.queue) for found in gpu.streams.values()))
            run_all(stream)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(next(iter(gpu.streams.values()))), "run", run)
            runner.infer_many([{"x": x}] * 7)
    assert max(waiting) == streams
    told = simulation.told("execute_async_v3")[-7:]
    assert len({handle for (handle,) in told}) == streams


def test_each_stream_has_its_context_and_its_buffers(newest: Simulation) -> None:
    with newest.open("negate", runner={"streams": 3}) as runner:
        assert newest.gpu.live["execution context"] == 3
        runner.infer_many([{"x": values(8, 4)}] * 3)
        assert newest.gpu.live["device memory"] == 6
        assert newest.gpu.live["stream"] == 4  # and one on which inputs on the device are waited for


def test_inputs_on_the_device_are_waited_for_on_every_stream(newest: Simulation) -> None:
    arrays = [values(3, 4, seed=turn) for turn in range(5)]
    producers = [InterfaceArray(newest.gpu, array) for array in arrays]
    with newest.open("negate", runner={"streams": 2}) as runner:
        found = runner.infer_many([{"x": producer} for producer in producers])
    for array, outputs in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(outputs["y"], -array)
    for producer in producers:
        producer.free()


def test_before_8_6_there_are_no_more_streams_than_profiles(oldest: Simulation) -> None:
    with pytest.raises(
        InvalidOption,
        match=r"`streams` 2: before TensorRT 8\.6 each execution context .* profile of its own, .* has 1\n",
    ) as caught:
        oldest.open("negate", runner={"streams": 2})
    assert "TensorRT 10" in caught.value.hint


def test_before_8_6_each_stream_keeps_a_profile_and_gives_it_up_for_shapes_of_none(
    oldest: Simulation,
) -> None:
    with oldest.open("negate", profiles=PROFILES, runner={"streams": 2}) as runner:
        for counts in ([2, 2, 2, 2], [12, 2, 12, 2], [2, 12, 2]):
            many = [{"x": values(count, 4, seed=turn)} for turn, count in enumerate(counts)]
            for feeds, outputs in zip(many, runner.infer_many(many), strict=True):
                np.testing.assert_array_equal(outputs["y"], -feeds["x"])


def test_feeds_that_do_not_fit_stop_it_and_the_runner_goes_on(newest: Simulation) -> None:
    with newest.open("negate", runner={"streams": 2}) as runner:
        with pytest.raises(DataError, match="input 'x' has shape 9x4"):
            runner.infer_many([{"x": values(2, 4)}, {"x": values(2, 4)}, {"x": values(9, 4)}])
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))


@pytest.mark.parametrize("streams", [0, -1])
def test_at_least_one_stream_is_required(newest: Simulation, streams: int) -> None:
    with pytest.raises(InvalidOption, match=f"`streams` {streams}: 1 or more is required"):
        newest.open("negate", runner={"streams": streams})
