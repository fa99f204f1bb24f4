"""CUDA graphs: captured once a shape, replayed, never given up in silence; TensorRT-RTX captures by itself.

TensorRT-RTX's runtime configuration also keeps the kernels that it compiled, in a file beside the engine.
"""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from simulated_cuda import SimulatedGpu
from tensorrt_simulation import InterfaceArray, Simulation, assert_negates, failing, simulate, values

from qcompile.engines.tensorrt.runner.loaded_engine import SUFFIX
from qcompile.engines.tensorrt.runner.runner import MAX_GRAPHS
from qcompile.errors import EngineUnavailable, ModelError

GRAPH = {"cuda_graph": True}
CACHE = {"runtime_cache": True}


def test_a_shape_is_captured_once_after_an_ordinary_run_and_then_replayed(simulation: Simulation) -> None:
    if simulation.version == "rtx":
        return  # it captures by itself, see below
    with simulation.open("negate", runner=GRAPH) as runner:
        for turn in range(20):
            assert_negates(runner, 3, seed=turn)
        assert simulation.gpu.made["executable graph"] == 1
        assert simulation.gpu.launches == 20
        assert len(simulation.told("execute_async_v3")) == 2
        assert simulation.gpu.live["graph"] == 0  # only what is executable is kept
        assert "a CUDA graph of execute_async_v3" in runner.contains


def test_nothing_is_collected_while_a_stream_is_captured(newest: Simulation) -> None:
    collecting: list[bool] = []

    def watch(_: str) -> bool:
        if any(stream.captured is not None for stream in newest.gpu.streams.values()):
            collecting.append(gc.isenabled())
        return False

    with failing(newest.gpu, watch), newest.open("negate", runner=GRAPH) as runner:
        assert_negates(runner, 2)
    assert set(collecting) == {False}
    assert gc.isenabled()


def test_the_graphs_of_the_last_shapes_are_kept(newest: Simulation) -> None:
    with newest.open("negate", runner=GRAPH) as runner:
        assert_negates(runner, *[*range(1, MAX_GRAPHS + 1)] * 3)
        assert newest.gpu.made["executable graph"] == MAX_GRAPHS
        assert_negates(runner, 8, MAX_GRAPHS)  # 8 in place of the one of 1 row
        assert newest.gpu.made["executable graph"] == MAX_GRAPHS + 1
        assert_negates(runner, 1)
        assert newest.gpu.made["executable graph"] == MAX_GRAPHS + 2
        assert newest.gpu.live["executable graph"] == newest.gpu.live["execution context"] == MAX_GRAPHS


def test_before_8_6_there_is_one_context_and_one_graph(oldest: Simulation) -> None:
    with oldest.open("negate", runner=GRAPH) as runner:
        assert_negates(runner, 1, 2, 1)
        assert oldest.gpu.made["executable graph"] == 3
        assert oldest.gpu.live["executable graph"] == oldest.gpu.live["execution context"] == 1


def test_inputs_on_the_device_are_copied_to_where_the_graph_reads(simulation: Simulation) -> None:
    producers = [InterfaceArray(simulation.gpu, values(3, 4, seed=seed)) for seed in range(3)]
    with simulation.open("negate", runner=GRAPH) as runner:
        for index in (0, 0, 1, 2, 1, 0):
            found = runner.infer({"x": producers[index]})["y"]
            np.testing.assert_array_equal(found, -values(3, 4, seed=index))
        assert_negates(runner, 3, seed=9)  # on the host, to the same place
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


def test_where_memory_does_not_suffice_for_more_graphs_fewer_are_kept(newest: Simulation) -> None:
    gpu = newest.gpu

    def third(name: str) -> bool:
        return name == "create_execution_context" and gpu.live["execution context"] == 2

    with newest.open("negate", runner=GRAPH) as runner:
        with failing(gpu, third):
            assert_negates(runner, 1, 2, 3, 4, 1, 4)
        assert gpu.live["execution context"] == 2
        assert gpu.made["executable graph"] == 5  # the last is one of the two that are kept
        assert runner.notes == [
            "memory suffices for CUDA graphs of 2 input shapes, not 4; other shapes are captured again"
        ]


def test_memory_of_other_graphs_makes_room_for_the_buffers_of_a_new_one(newest: Simulation) -> None:
    with newest.open("negate", runner=GRAPH) as runner:
        assert_negates(runner, 5, 6)
        newest.gpu.memory_bytes = newest.gpu.used_bytes + 150
        assert_negates(runner, 8)
        assert newest.gpu.live["execution context"] == 2
        newest.gpu.memory_bytes = 100
        with pytest.raises(EngineUnavailable, match="not enough memory on CUDA device 0") as caught:
            runner.infer({"x": values(7, 4)})
        assert "smaller batch" in caught.value.hint


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
        assert_negates(runner, 2)
        assert newest.gpu.made["executable graph"] == 2  # the profiler has changed the execution context
        del run


@pytest.mark.parametrize(
    ("call", "nth"),
    [
        ("cuStreamBeginCapture", 1),
        ("cuStreamEndCapture", 1),
        ("cuGraphInstantiate", 1),
        ("execute_async_v3", 2),
    ],
)
def test_a_capture_that_fails_says_why_and_the_way_out(newest: Simulation, call: str, nth: int) -> None:
    gpu, calls = newest.gpu, []

    def fails(name: str) -> bool:
        calls.append(name)
        return name == call and calls.count(name) == nth

    with newest.open("negate", runner=GRAPH) as runner:
        said = r"cannot be captured .*: .*(CUDA_ERROR|illegal)"
        with failing(gpu, fails), pytest.raises(ModelError, match=said) as caught:
            runner.infer({"x": values(2, 4)})
        assert caught.value.hint == "leave cuda_graph off"
        assert gpu.live["executable graph"] == gpu.live["graph"] == gpu.launches == 0
        assert_negates(runner, 2)
        assert gpu.launches == 1


@pytest.fixture
def rtx(gpu: SimulatedGpu, tmp_path: Path) -> Simulation:
    """TensorRT-RTX."""
    return simulate("rtx", gpu, tmp_path)


def notes_of_a_run(simulation: Simulation, *counts: int, **options: object) -> list[str]:
    """Load, run at two shapes, or at those of `counts`, close, and return the notes."""
    with simulation.open("negate", runner=options) as runner:
        assert_negates(runner, *(counts or (2, 3, 2)))
        return [*runner.notes]


def cache_of(simulation: Simulation) -> Path:
    """Where the runtime cache lies."""
    return simulation.folder / f"m.engine{SUFFIX}"


def test_rtx_captures_by_itself_in_one_context_for_all_shapes(rtx: Simulation) -> None:
    with rtx.open("negate", runner=GRAPH) as runner:
        for turn in range(4):
            assert_negates(runner, 2, 3, 4, 5, 6, seed=turn)
        assert rtx.gpu.live["execution context"] == 1
        assert rtx.gpu.made["executable graph"] == 0  # nothing is captured from outside
        assert (rtx.gpu.made["RTX capture"], rtx.gpu.made["RTX replay"]) == (5, 10)
        assert "execute_async_v3 with CUDA graphs by TensorRT-RTX" in runner.contains


def test_rtx_without_graphs_captures_nothing_and_compiles_before_it_runs(rtx: Simulation) -> None:
    notes_of_a_run(rtx)
    assert rtx.gpu.made["RTX capture"] == 0
    written = [call for call in rtx.adapter.module.recorded_calls if call.written]
    assert [call.args[0].name for call in written if "specialization" in call.member] == ["EAGER"]
    assert not cache_of(rtx).exists()


def test_a_strategy_that_rtx_does_not_take_is_an_error(rtx: Simulation) -> None:
    said = "takes no CUDA graphs here"
    with failing(rtx.gpu, "cuda_graph_strategy"), pytest.raises(ModelError, match=said) as caught:
        rtx.open("negate", runner=GRAPH)
    assert caught.value.hint == "leave cuda_graph off"


def test_before_1_2_rtx_is_captured_as_other_tensorrts_are(rtx: Simulation) -> None:
    # Release notes 1.2 of TensorRT-RTX: its own CUDA graphs are new there.
    del rtx.adapter.module.CudaGraphStrategy
    with rtx.open("negate", runner=GRAPH) as runner:
        for turn in range(3):
            assert_negates(runner, 2, seed=turn)
        assert rtx.gpu.made["executable graph"] == 1
        assert "a CUDA graph of execute_async_v3" in runner.contains


def test_the_next_process_compiles_nothing_and_adds_what_it_compiles(rtx: Simulation) -> None:
    assert notes_of_a_run(rtx, **CACHE) == []
    assert rtx.gpu.made["compiled kernel"] == 2
    content = cache_of(rtx).read_bytes()
    (note,) = notes_of_a_run(rtx, **CACHE)
    assert note.startswith("kernels are read from m.engine.runtime_cache;")
    assert rtx.gpu.made["compiled kernel"] == 2
    assert cache_of(rtx).read_bytes() == content
    assert rtx.gpu.is_clean
    notes_of_a_run(rtx, 7, **CACHE)
    notes_of_a_run(rtx, 2, 3, 7, **CACHE)
    assert rtx.gpu.made["compiled kernel"] == 3


def test_a_cache_that_cannot_be_used_is_told_and_replaced(rtx: Simulation) -> None:
    notes_of_a_run(rtx, **CACHE)
    good = cache_of(rtx).read_bytes()
    for damaged in (good[:-3], b"", b"nothing of ours", good.replace(b"1.7.1", b"1.6.0"), good[:30]):
        cache_of(rtx).write_bytes(damaged)
        (note,) = notes_of_a_run(rtx, **CACHE)
        assert "is not used: it is of another engine or version, or damaged" in note
        assert cache_of(rtx).read_bytes() == good
    for name in ("another GPU", "a GPU"):
        rtx.gpu.name = name
        (note,) = notes_of_a_run(rtx, **CACHE)
        assert "TensorRT-RTX refuses it, as of another GPU or driver" in note
    with rtx.open("negate_bf16", runner=CACHE) as runner:  # built to the same file since
        assert "of another engine" in runner.notes[0]


def test_nothing_is_left_of_a_cache_that_was_not_written_whole_and_that_is_no_error(
    rtx: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, _: bytes) -> int:
        self.open("wb").close()
        raise OSError(28, "No space left on device")

    path = rtx.plan("negate")
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(rtx, "plan", lambda *_, **__: path)
    assert notes_of_a_run(rtx, **CACHE) == []
    assert [item.name for item in rtx.folder.iterdir()] == ["m.engine"]


def test_other_tensorrts_have_no_runtime_configuration(newest: Simulation) -> None:
    assert notes_of_a_run(newest, **CACHE) == []
    assert not cache_of(newest).exists()
    assert not newest.told("create_runtime_config")
