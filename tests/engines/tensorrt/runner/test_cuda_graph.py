"""CUDA graphs: captured once a shape, replayed, and never given up in silence."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_producers import InterfaceArray
from tensorrt_simulation import Simulation, values

from qcompile.engines.tensorrt.runner.stream_slots import GRAPHS_KEPT
from qcompile.errors import EngineUnavailable, ModelError

GRAPH = {"cuda_graph": True}


def test_a_shape_is_captured_once_after_an_ordinary_run_and_then_replayed(simulation: Simulation) -> None:
    if simulation.version == "rtx":
        return  # it captures by itself, see test_runtime_config
    with simulation.open("negate", runner=GRAPH) as runner:
        for turn in range(20):
            x = values(3, 4, seed=turn)
            np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
        assert simulation.gpu.made["executable graph"] == 1
        assert simulation.gpu.launches == 20
        assert len(simulation.told("execute_async_v3")) == 2
        assert simulation.gpu.live["graph"] == 0  # only what is executable is kept
        assert "a CUDA graph of execute_async_v3" in runner.contains


def test_nothing_is_collected_while_a_stream_is_captured(newest: Simulation) -> None:
    seen: list[bool] = []
    gpu, ordinary = newest.gpu, newest.gpu.enter

    def enter(name: str) -> bool:
        if any(stream.captured is not None for stream in gpu.streams.values()):
            seen.append(gc.isenabled())
        return ordinary(name)

    gpu.enter = enter  # type: ignore[method-assign]
    with newest.open("negate", runner=GRAPH) as runner:
        runner.infer({"x": values(2, 4)})
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_graph_and_no_graph_compute_the_same(simulation: Simulation, tiny: Callable[..., Any]) -> None:
    many = [{"x": values(count, 16)} for count in (1, 8, 3, 8, 1)]
    with simulation.open(tiny("mlp")) as plain, simulation.open(tiny("mlp"), runner=GRAPH) as graph:
        for feeds in many:
            np.testing.assert_array_equal(graph.infer(feeds)["y"], plain.infer(feeds)["y"])


def test_the_graphs_of_the_last_shapes_are_kept(newest: Simulation) -> None:
    with newest.open("negate", runner=GRAPH) as runner:
        for _ in range(3):
            for count in range(1, GRAPHS_KEPT + 1):
                x = values(count, 4)
                np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
        assert newest.gpu.made["executable graph"] == GRAPHS_KEPT
        runner.infer({"x": values(8, 4)})  # in place of the one of 1 row
        runner.infer({"x": values(GRAPHS_KEPT, 4)})
        assert newest.gpu.made["executable graph"] == GRAPHS_KEPT + 1
        runner.infer({"x": values(1, 4)})
        assert newest.gpu.made["executable graph"] == GRAPHS_KEPT + 2
        assert newest.gpu.live["executable graph"] == newest.gpu.live["execution context"] == GRAPHS_KEPT


def test_before_8_6_there_is_one_context_and_one_graph(oldest: Simulation) -> None:
    with oldest.open("negate", runner=GRAPH) as runner:
        for count in (1, 2, 1):
            x = values(count, 4)
            np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
        assert oldest.gpu.made["executable graph"] == 3
        assert oldest.gpu.live["executable graph"] == oldest.gpu.live["execution context"] == 1


def test_inputs_on_the_device_are_copied_to_where_the_graph_reads(simulation: Simulation) -> None:
    producers = [InterfaceArray(simulation.gpu, values(3, 4, seed=seed)) for seed in range(3)]
    with simulation.open("negate", runner=GRAPH) as runner:
        for index in (0, 0, 1, 2, 1, 0):
            found = runner.infer({"x": producers[index]})["y"]
            np.testing.assert_array_equal(found, -values(3, 4, seed=index))
        x = values(3, 4, seed=9)  # on the host, to the same place
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
        assert len({address for name, address in simulation.told("set_tensor_address") if name == "x"}) == 1
        if simulation.version != "rtx":
            assert simulation.gpu.made["executable graph"] == 1
    for producer in producers:
        producer.free()


def test_an_input_without_elements_is_not_copied(newest: Simulation) -> None:
    profiles = [{"a": [[0, 4], [1, 4], [2, 4]], "b": [[1, 4]] * 3}]
    empty = InterfaceArray(newest.gpu, values(0, 4))
    with newest.open("sum", profiles=profiles, runner=GRAPH) as runner:
        b = values(1, 4)
        np.testing.assert_array_equal(runner.infer({"a": empty, "b": b})["y"], b[0])
    empty.free()


def test_values_of_shape_inputs_are_part_of_what_was_captured(newest: Simulation) -> None:
    with newest.open("shaped", host=["size"], runner=GRAPH) as runner:
        for count in (2, 5, 2, 5):
            size = np.array([count, 4], np.int32)
            assert runner.infer({"x": values(1, 4), "size": size})["y"].shape == (count, 4)
        assert newest.gpu.made["executable graph"] == 2


def test_where_memory_does_not_suffice_for_more_graphs_fewer_are_kept(newest: Simulation) -> None:
    gpu, ordinary = newest.gpu, newest.gpu.enter
    with newest.open("negate", runner=GRAPH) as runner:
        gpu.enter = lambda name: (
            (  # type: ignore[method-assign]
                name == "create_execution_context" and gpu.live["execution context"] == 2
            )
            or ordinary(name)
        )
        for count in (1, 2, 3, 4, 1, 4):
            x = values(count, 4)
            np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
        assert gpu.live["execution context"] == 2
        assert gpu.made["executable graph"] == 5  # the last is one of the two that are kept
        assert runner.notes == [
            "CUDA graphs of 2 input shapes are kept in place of 4: memory does not suffice for more; other "
            "shapes are captured again"
        ]


def test_memory_of_other_graphs_makes_room_for_the_buffers_of_a_new_one(newest: Simulation) -> None:
    with newest.open("negate", runner=GRAPH) as runner:
        for count in (5, 6):
            runner.infer({"x": values(count, 4)})
        newest.gpu.memory_bytes = newest.gpu.used_bytes + 150
        np.testing.assert_array_equal(runner.infer({"x": values(8, 4)})["y"], -values(8, 4))
        assert newest.gpu.live["execution context"] == 2
        newest.gpu.memory_bytes = 100
        with pytest.raises(EngineUnavailable, match="not enough memory on CUDA device 0"):
            runner.infer({"x": values(7, 4)})


def test_streams_have_graphs_of_their_own(newest: Simulation) -> None:
    many = [{"x": values(2, 4, seed=turn)} for turn in range(6)]
    with newest.open("negate", runner={"streams": 2, **GRAPH}) as runner:
        for feeds, outputs in zip(many, runner.infer_many(many), strict=True):
            np.testing.assert_array_equal(outputs["y"], -feeds["x"])
        assert newest.gpu.made["executable graph"] == 2
        assert newest.gpu.launches == 6


def test_timing_replays_the_graph_and_layers_do_without(newest: Simulation) -> None:
    with newest.open("negate", runner=GRAPH) as runner:
        run = runner.prepare({"x": values(2, 4)})
        assert newest.gpu.made["executable graph"] == 1
        run()
        runner.gpu_times({"x": values(2, 4)}, 3)
        assert newest.gpu.launches == 4
        assert runner.layer_times({"x": values(2, 4)}, 2) == {"Neg": 0.5}
        assert newest.gpu.launches == 4
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))
        assert newest.gpu.made["executable graph"] == 2  # the profiler has changed the execution context
        del run


def test_a_shape_that_depends_on_data_is_refused(simulation: Simulation) -> None:
    with (
        simulation.open("nonzero", data_dependent=["places"], runner=GRAPH) as runner,
        pytest.raises(ModelError, match="output 'places': its shape depends on data") as caught,
    ):
        runner.infer({"x": values(2, 4)})
    assert caught.value.hint == "leave cuda_graph off"


@pytest.mark.parametrize(
    "call", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "second execute_async_v3"]
)
def test_a_capture_that_fails_says_why_and_the_way_out(newest: Simulation, call: str) -> None:
    gpu, ordinary = newest.gpu, newest.gpu.enter
    seen: list[str] = []

    def enter(name: str) -> bool:
        seen.append(name)
        nth = 2 if call.startswith("second") else 1
        return (name == call.split()[-1] and seen.count(name) == nth) or ordinary(name)

    with newest.open("negate", runner=GRAPH) as runner:
        gpu.enter = enter  # type: ignore[method-assign]
        with pytest.raises(ModelError, match=r"cannot be captured .*: .*(CUDA_ERROR|illegal)") as caught:
            runner.infer({"x": values(2, 4)})
        assert caught.value.hint == "leave cuda_graph off"
        assert gpu.live["executable graph"] == gpu.live["graph"] == gpu.launches == 0
        gpu.enter = ordinary  # type: ignore[method-assign]
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))
        assert gpu.launches == 1
