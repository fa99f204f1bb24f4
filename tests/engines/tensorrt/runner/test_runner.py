"""The runner computes what the model does, on every TensorRT, and leaves the GPU as it found it.

The GPU is simulated: the arithmetic, the addresses, the order on streams and every allocation are real.

Whatever fails, at whichever step: the error is ours, nothing stays allocated, no context stays current.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorrt_simulation import PYTORCHS, InterfaceArray, Simulation, assert_negates, failing, values

from qcompile.engines import libcuda
from qcompile.engines.libcuda import CudaError
from qcompile.engines.tensorrt.runner.io_tensors import WideIntegers
from qcompile.engines.tensorrt.runner.runner import TensorRTRunner
from qcompile.errors import (
    ArtifactError,
    DataError,
    EngineUnavailable,
    InvalidOption,
    ModelError,
    QCompileError,
)
from qcompile.spec.tensors import ModelIO, TensorInfo

Tiny = Callable[..., onnx.ModelProto]


def test_inputs_and_outputs_are_read_from_the_engine(simulation: Simulation, tiny: Tiny) -> None:
    with simulation.open(tiny("mlp")) as runner:
        assert [str(tensor) for tensor in runner.io.inputs] == ["x:[?,16]:float32"]
        assert [str(tensor) for tensor in runner.io.outputs] == ["y:[?,8]:float32"]


def test_outputs_are_copies_that_outlive_the_next_run_and_the_runner(newest: Simulation) -> None:
    with newest.open("negate") as runner:
        first = runner.infer({"x": values(2, 4, seed=1)})["y"]
        runner.infer({"x": values(2, 4, seed=2)})
    np.testing.assert_array_equal(first, -values(2, 4, seed=1))


def test_an_input_that_is_strided_is_taken_as_it_is(newest: Simulation) -> None:
    x = values(4, 3).T
    with newest.open("negate") as runner:
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)


def test_bfloat16_is_taken_from_ml_dtypes(newest: Simulation) -> None:
    x = values(3, 4).astype(ml_dtypes.bfloat16)
    with newest.open("negate_bf16") as runner:
        assert runner.io.inputs[0].dtype == "bfloat16"
        found = runner.infer({"x": x})["y"]
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype(np.float32), -x.astype(np.float32))


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"types": {"y": "INT4"}}, "tensor 'y' is INT4, a type that numpy arrays do not have"),
        ({"types": {"x": "FP4"}}, "tensor 'x' is FP4"),
        ({"formats": {"x": "CHW32"}}, r"tensor 'x' is in format CHW32; row-major \(LINEAR\) is required"),
    ],
)
def test_what_no_array_can_hold_is_refused_before_anything_runs(
    newest: Simulation, about: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        newest.open("negate", **about)
    assert newest.gpu.is_clean  # while the error, and with it its frames, is still there
    assert caught.value.hint


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({"x": values(2, 4).astype(np.float64)}, "input 'x' is float64; float32 is required"),
        ({"x": [[0.0] * 4]}, "input 'x' is a list; a numpy array, or an array on CUDA device 0"),
        ({"x": values(9, 4)}, "input 'x' has shape 9x4, outside .*; required: 1x4 to 8x4"),
    ],
)
def test_feeds_that_do_not_fit_are_refused_and_the_runner_goes_on(
    newest: Simulation, feeds: dict[str, Any], said: str
) -> None:
    with newest.open("negate") as runner:
        with pytest.raises(DataError, match=said):
            runner.infer(feeds)
        assert_negates(runner, 2)


def test_an_engine_of_another_version_is_refused_with_tensorrts_words(newest: Simulation) -> None:
    path = newest.plan("negate")
    path.write_bytes(b"ftrt" + path.read_bytes())
    said = r"tensorrt 11\.4.* cannot load it: .*(is not compatible|does not match)"
    with pytest.raises(ArtifactError, match=said) as caught:
        TensorRTRunner(newest.adapter, path)
    assert "again" in caught.value.hint


def test_a_failed_run_says_tensorrts_reason(newest: Simulation) -> None:
    said = r"the engine failed: .*illegal memory access was encountered"
    with newest.open("negate") as runner:
        assert_negates(runner, 2)
        with failing(newest.gpu, "execute_async_v3"), pytest.raises(ModelError, match=said):
            assert_negates(runner, 2)
        assert_negates(runner, 2)


def test_hundreds_of_inferences_and_of_loads_leave_nothing(newest: Simulation) -> None:
    with newest.open("negate") as runner:
        assert_negates(runner, 8)
        before, used_bytes = newest.gpu.made.copy(), newest.gpu.used_bytes
        assert_negates(runner, *[1, 8, 3, 5] * 50)
        assert (newest.gpu.made, newest.gpu.used_bytes) == (before, used_bytes)
    for _ in range(100):
        with newest.open("negate") as runner:
            assert_negates(runner, 2)
        assert newest.gpu.is_clean
        assert newest.gpu.stack == [PYTORCHS]


def test_a_closed_runner_says_so_and_closing_twice_is_nothing(newest: Simulation) -> None:
    runner, feeds = newest.open("negate"), {"x": values(2, 4)}
    run = runner.prepare(feeds)
    runner.close()
    runner.close()
    for use in (
        lambda: runner.infer(feeds),
        lambda: runner.infer_many([feeds]),
        lambda: runner.prepare(feeds),
        lambda: runner.time(feeds, 1),
        lambda: runner.gpu_times(feeds, 1),
        lambda: runner.layer_times(feeds),
        run,
    ):
        with pytest.raises(ModelError, match=r"m\.engine: its runner is closed") as caught:
            use()
        assert caught.value.hint == "load it again"


def test_outputs_of_a_prepared_call_can_be_read_after_the_runner_is_closed(newest: Simulation) -> None:
    # They are the runner's page-locked memory: freed with the last array that shows it.
    runner = newest.open("negate")
    outputs = runner.prepare({"x": values(2, 4)})()
    np.testing.assert_array_equal(outputs["y"], -values(2, 4))
    runner.infer({"x": values(8, 4)})
    assert newest.gpu.live["page-locked memory"] == 3
    del outputs
    assert newest.gpu.live["page-locked memory"] == 2
    runner.close()


def test_a_prepared_call_survives_other_uses_of_its_runner(newest: Simulation) -> None:
    with newest.open("negate") as runner:
        run = runner.prepare({"x": values(2, 4)})
        runner.infer({"x": values(8, 4, seed=3)})
        assert runner.time({"x": values(3, 4)}, 5).shape == (5,)
        np.testing.assert_array_equal(run()["y"], -values(2, 4))
        del run


def test_gpu_times_contain_what_they_say(simulation: Simulation) -> None:
    # The simulated clock: a copy takes 1,000 ns, a run 5,000 ns.
    with simulation.open("nonzero", data_dependent=["places"]) as runner:
        times = runner.gpu_times({"x": np.ones((2, 4), np.float32)}, 7)
    assert times.compute.tolist() == [5000] * 7
    assert times.with_transfers.tolist() == [5000 + 3 * 1000] * 7
    assert times.enqueue.dtype == np.int64
    assert (times.enqueue > 0).all()
    assert "copies to the GPU, execute_async_v3, copies back, synchronize" in runner.contains


def test_an_inference_is_enqueued_behind_the_one_that_is_computed(newest: Simulation) -> None:
    calls: list[str] = []
    watched = {"execute_async_v3": "enqueue", "cuEventSynchronize": "wait", "cuStreamSynchronize": "wait all"}

    def watch(name: str) -> bool:
        calls.extend([watched[name]] if name in watched else [])
        return False

    with newest.open("negate") as runner:
        assert_negates(runner, 2)
        made = newest.gpu.made["event"]
        with failing(newest.gpu, watch):
            times = runner.gpu_times({"x": values(2, 4)}, 50)
        assert calls == ["enqueue", *["enqueue", "wait"] * 49, "wait"]
        assert newest.gpu.made["event"] == made + 8
        assert times.compute.tolist() == [5000] * 50
        assert runner.gpu_times({"x": values(2, 4)}, 0).compute.size == 0


def test_layers_have_their_median_times_and_the_profiler_is_taken_off(simulation: Simulation) -> None:
    x = np.ones((2, 4), np.float32)
    with simulation.open("nonzero", data_dependent=["places"]) as runner:
        assert runner.layer_times({"x": x}, iterations=3) == {"NonZero": 0.5, "Cast": 1.0, "Add": 1.5}
        with pytest.raises(InvalidOption, match="iterations: 0; 1 or more"):
            runner.layer_times({"x": x}, iterations=0)
    assert [profiler is None for (profiler,) in simulation.told("profiler")] == [False, True]


def test_no_execution_context_marks_its_layers(simulation: Simulation) -> None:
    with simulation.open("negate", profiles=[], runner={"streams": 2}) as runner, runner.share():
        none = simulation.adapter.module.ProfilingVerbosity.NONE
        assert simulation.told("nvtx_verbosity") == [(none,)] * 3
        assert simulation.gpu.made["execution context"] == 3


def test_memory_that_runs_out_within_tensorrt_does_not_cross_it(simulation: Simulation) -> None:
    with simulation.open("nonzero", data_dependent=["places"]) as runner:
        x = np.zeros((8, 4), np.float32)
        runner.infer({"x": x})
        simulation.gpu.memory_bytes = simulation.gpu.used_bytes
        with pytest.raises(EngineUnavailable, match="not enough memory"):
            runner.infer({"x": x + 1})


def test_the_device_is_chosen_and_another_runner_does_not_disturb_it(newest: Simulation) -> None:
    with newest.open("negate", runner={"device": 1}) as second:
        assert newest.gpu.retained == {1: 1}
        with newest.open("negate") as first:
            for seed in range(3):
                assert_negates(first, 2, seed=seed)
                assert_negates(second, 2, seed=seed + 1)
                assert newest.gpu.stack == [PYTORCHS]
    with pytest.raises(EngineUnavailable, match=r"m\.engine \(device 2: .*cuDeviceGet"):
        newest.open("negate", runner={"device": 2})
    with pytest.raises(InvalidOption, match="device: -1; 0 or more is required"):
        newest.open("negate", runner={"device": -1})


def test_without_a_driver_the_machine_that_has_one_is_named(
    newest: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_library() -> None:
        raise CudaError("no NVIDIA driver (libcuda.so.1 is missing)")

    monkeypatch.setattr(libcuda, "load_library", no_library)
    with pytest.raises(EngineUnavailable, match=r"m\.engine \(device 0: no NVIDIA driver") as caught:
        newest.open("negate")
    assert caught.value.hint == "run it on a machine with an NVIDIA GPU and its driver"


def integers(tokens: str, y: str = "float32") -> ModelIO:
    """Tokens and a table in, y out."""
    inputs = (TensorInfo("tokens", tokens, ("?", 4)), TensorInfo("table", "int32", (4,)))
    return ModelIO(inputs, (TensorInfo("y", y, ("?",)),))


MODEL, ENGINE = integers("int64", "int64"), integers("int32", "int32")


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8))
def test_64_bit_integers_that_fit_survive_32_bits_both_ways(tokens: list[int]) -> None:
    wide, expected = WideIntegers(ENGINE, MODEL), np.array(tokens, np.int64)
    assert wide.io == MODEL
    narrow = wide.narrow({"tokens": expected, "table": np.zeros(4, np.int32)})["tokens"]
    back = wide.widen({"y": narrow})["y"]
    assert (narrow.dtype, back.dtype) == (np.int32, np.int64)
    np.testing.assert_array_equal(narrow, expected)
    np.testing.assert_array_equal(back, expected)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        *((np.array([0, value]), rf"holds {min(0, value)} to {max(0, value)}; the engine has 32 bits")
          for value in (2**31, -(2**31) - 1, 2**62)),
        (object(), "is int64 on the device, and int32 in this engine"),
    ],
)  # fmt: skip
def test_a_64_bit_integer_that_does_not_fit_never_wraps(tokens: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"input 'tokens' {said}"):
        WideIntegers(ENGINE, MODEL).narrow({"tokens": tokens})


@pytest.mark.parametrize(
    ("engine", "model"), [(ENGINE, None), (ENGINE, ENGINE), (ENGINE, integers("float32")), (MODEL, MODEL)]
)
def test_nothing_is_narrowed_that_the_model_has_no_wider(engine: ModelIO, model: ModelIO | None) -> None:
    wide, tokens = WideIntegers(engine, model), np.zeros((1, 4), engine.inputs[0].dtype)
    assert wide.io == engine
    assert wide.narrow({"tokens": tokens})["tokens"] is tokens


Job = Callable[[Simulation, list[TensorRTRunner]], Any]


def infer(simulation: Simulation, opened: list[TensorRTRunner]) -> None:
    """Load, and run at two shapes, once from the device."""
    producer = InterfaceArray(simulation.gpu, values(2, 4))
    try:
        opened.append(simulation.open("negate"))
        for feeds in ({"x": values(1, 4)}, {"x": producer}, {"x": values(8, 4)}):
            np.testing.assert_array_equal(opened[0].infer(feeds)["y"].shape[1], 4)
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
            assert "memory suffices for" in opened[0].notes[0]
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
