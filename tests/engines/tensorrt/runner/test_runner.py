"""The runner computes what the model does, on every TensorRT, and leaves the GPU as it found it.

The GPU is simulated: the arithmetic, the addresses, the order on streams and every allocation are real.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from simulated_engine import CONTEXT_BYTES
from tensorrt_simulation import PYTORCHS, Simulation, values

from qcompile.engines.tensorrt.runner.runner import TensorRTRunner
from qcompile.errors import ArtifactError, DataError, EngineUnavailable, InvalidOption, ModelError

Tiny = Callable[..., onnx.ModelProto]


def reference(model: onnx.ModelProto, **feeds: Any) -> dict[str, Any]:
    """What ONNX's own implementation computes."""
    names = [value.name for value in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True))


@pytest.mark.parametrize("name", ["mlp", "residual", "elementwise"])
def test_a_model_computes_what_it_computes_elsewhere(simulation: Simulation, tiny: Tiny, name: str) -> None:
    model = tiny(name)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
    with simulation.open(model) as runner:
        for count in (1, 5, 8, 3):
            x = values(count, *shape)
            found = runner.infer({"x": x})["y"]
            np.testing.assert_allclose(found, reference(model, x=x)["y"], rtol=1e-4, atol=1e-5)


def test_inputs_and_outputs_are_read_from_the_engine(simulation: Simulation, tiny: Tiny) -> None:
    with simulation.open(tiny("mlp")) as runner:
        assert [str(tensor) for tensor in runner.io.inputs] == ["x:[?,16]:float32"]
        assert [str(tensor) for tensor in runner.io.outputs] == ["y:[?,8]:float32"]


def test_outputs_are_copies_that_outlive_the_next_run_and_the_runner(newest: Simulation) -> None:
    with newest.open("negate") as runner:
        first = runner.infer({"x": values(2, 4, seed=1)})["y"]
        runner.infer({"x": values(2, 4, seed=2)})
    np.testing.assert_array_equal(first, -values(2, 4, seed=1))


def test_an_input_that_is_strided_or_a_scalar_type_is_taken_as_it_is(newest: Simulation) -> None:
    x = values(4, 3).T
    with newest.open("negate") as runner:
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)


def test_shape_inputs_are_bound_on_the_host_and_decide_the_shape(simulation: Simulation) -> None:
    declared = [{"size": {"min": [1, 4], "opt": [2, 4], "max": [6, 4]}}]  # all that is known before 10
    options: dict[str, Any] = {"host": ["size"], "values": [{"size": [[1, 4], [2, 4], [6, 4]]}]}
    x = values(1, 4)
    with simulation.open("shaped", runner={"profiles": declared}, **options) as runner:
        for count in (2, 6, 6, 3):
            found = runner.infer({"x": x, "size": np.array([count, 4], np.int32)})["y"]
            np.testing.assert_array_equal(found, np.repeat(x, count, 0))
        with pytest.raises(DataError, match=r"input 'size' holds 7, 4, outside .*; required: 1x4 to 6x4"):
            runner.infer({"x": x, "size": np.array([7, 4], np.int32)})


def test_outputs_whose_shape_depends_on_data_have_their_real_shape(simulation: Simulation) -> None:
    with simulation.open("nonzero", data_dependent=["places"]) as runner:
        for nonzero in (3, 0, 30, 5):
            x = np.zeros((8, 4), np.float32)
            x.reshape(-1)[:nonzero] = 1
            found = runner.infer({"x": x})
            np.testing.assert_array_equal(found["places"], np.array(np.nonzero(x), np.int32))
            np.testing.assert_array_equal(found["twice"], x * 2)


def test_memory_for_such_an_output_grows_and_is_then_kept(newest: Simulation) -> None:
    with newest.open("nonzero", data_dependent=["places"]) as runner:
        made = []
        for nonzero in (1, 20, 2, 19):
            x = np.zeros((8, 4), np.float32)
            x.reshape(-1)[:nonzero] = 1
            runner.infer({"x": x})
            made.append(newest.gpu.made["device memory"])
    assert made == [3, 4, 4, 4]


def test_bfloat16_is_taken_from_ml_dtypes(newest: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values(3, 4).astype(ml_dtypes.bfloat16)
    with newest.open("negate_bf16") as runner:
        assert runner.io.inputs[0].dtype == "bfloat16"
        found = runner.infer({"x": x})["y"]
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype(np.float32), -x.astype(np.float32))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ModelError, match="tensor 'x' is bfloat16, which numpy has only from") as caught:
        newest.open("negate_bf16")
    assert caught.value.hint == "pip install ml_dtypes"


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
        ({"x": values(2, 5)}, r"input 'x' has shape 2x5; \[\?,4\] is required"),
        ({}, "input 'x' is missing"),
        ({"x": values(2, 4), "z": values(2)}, "no input 'z'"),
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
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))


def test_an_engine_of_another_version_is_refused_with_tensorrts_words(newest: Simulation) -> None:
    path = newest.plan("negate")
    path.write_bytes(b"ftrt" + path.read_bytes())
    with pytest.raises(
        ArtifactError, match=r"tensorrt 11\.4.* cannot load it: .*Magic tag does not match"
    ) as caught:
        TensorRTRunner(newest.adapter, path)
    assert "again" in caught.value.hint


def test_a_failed_run_says_tensorrts_reason(newest: Simulation) -> None:
    with newest.open("negate") as runner:
        runner.infer({"x": values(2, 4)})
        fail_next(newest, "execute_async_v3", lambda: runner.infer({"x": values(2, 4)}))
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))


def fail_next(simulation: Simulation, call: str, act: Callable[[], Any]) -> None:
    """Let the next use of one call fail, and expect its words."""
    gpu, ordinary = simulation.gpu, simulation.gpu.enter
    gpu.enter = lambda name: name == call or ordinary(name)  # type: ignore[method-assign]
    with pytest.raises(ModelError, match=r"the engine failed: .*illegal memory access was encountered"):
        act()
    gpu.enter = ordinary  # type: ignore[method-assign]


def test_buffers_are_kept_while_shapes_fit(newest: Simulation) -> None:
    with newest.open("negate") as runner:
        runner.infer({"x": values(8, 4)})
        before = newest.gpu.made.copy()
        for count in [1, 8, 3, 5] * 50:
            runner.infer({"x": values(count, 4)})
        assert newest.gpu.made == before


def test_hundreds_of_inferences_and_of_loads_leave_nothing(newest: Simulation) -> None:
    with newest.open("negate") as runner:
        used = set()
        for turn in range(400):
            runner.infer({"x": values(1 + turn % 8, 4)})
            used.add(newest.gpu.used_bytes) if turn >= 8 else None
        assert len(used) == 1
    for _ in range(100):
        with newest.open("negate") as runner:
            runner.infer({"x": values(2, 4)})
        assert newest.gpu.is_clean
        assert newest.gpu.stack == [PYTORCHS]


def test_a_closed_runner_says_so_and_closing_twice_is_nothing(newest: Simulation) -> None:
    runner = newest.open("negate")
    run = runner.prepare({"x": values(2, 4)})
    runner.close()
    runner.close()
    feeds = {"x": values(2, 4)}
    for use in (
        lambda: runner.infer(feeds),
        lambda: runner.infer_many([feeds]),
        lambda: runner.prepare(feeds),
        lambda: runner.time(feeds, 1),
        lambda: runner.gpu_times(feeds, 1),
        lambda: runner.layer_times(feeds),
        lambda: runner.device_memory_bytes,
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
    ordinary = newest.gpu.enter
    watched = {
        "execute_async_v3": "enqueue",
        "cuEventSynchronize": "wait",
        "cuStreamSynchronize": "wait for all",
    }
    with newest.open("negate") as runner:
        runner.infer({"x": values(2, 4)})

        def enter(name: str) -> bool:
            calls.extend([watched[name]] if name in watched else [])
            return ordinary(name)

        newest.gpu.enter = enter  # type: ignore[method-assign]
        made = newest.gpu.made["event"]
        times = runner.gpu_times({"x": values(2, 4)}, 50)
        newest.gpu.enter = ordinary  # type: ignore[method-assign]
        assert calls == ["enqueue", *["enqueue", "wait"] * 49, "wait"]
        assert newest.gpu.made["event"] == made + 8
        assert times.compute.tolist() == [5000] * 50
        assert runner.gpu_times({"x": values(2, 4)}, 0).compute.size == 0


def test_layers_have_their_median_times_and_the_profiler_is_taken_off(simulation: Simulation) -> None:
    with simulation.open("nonzero", data_dependent=["places"]) as runner:
        times = runner.layer_times({"x": np.ones((2, 4), np.float32)}, iterations=3)
        assert times == {"NonZero": 0.5, "Cast": 1.0, "Add": 1.5}
        with pytest.raises(InvalidOption, match="iterations: 0; 1 or more"):
            runner.layer_times({"x": np.ones((2, 4), np.float32)}, iterations=0)
    calls = simulation.adapter.module.recorded_calls
    assert [call.args[0] is None for call in calls if call.member == "profiler"] == [False, True]


def test_no_execution_context_marks_its_layers(simulation: Simulation) -> None:
    with simulation.open("negate", profiles=[], runner={"streams": 2}) as runner, runner.share():
        none = simulation.adapter.module.ProfilingVerbosity.NONE
        assert simulation.told("nvtx_verbosity") == [(none,)] * 3
        assert simulation.gpu.made["execution context"] == 3


def test_the_address_of_a_shape_input_is_set_behind_its_values(simulation: Simulation) -> None:
    counts = (2, 2, 5, 2)
    with simulation.open("shaped", host=["size"]) as runner:
        for count in counts:
            size = np.array([count, 4], np.int32)
            assert runner.infer({"x": values(1, 4), "size": size})["y"].shape == (count, 4)
    calls = [
        (call.member, call.args[0])
        for call in simulation.adapter.module.recorded_calls
        if call.member in ("set_input_shape", "set_tensor_address") and call.args[0] == "size"
    ]
    assert calls == [("set_input_shape", "size"), ("set_tensor_address", "size")] * 3


def test_memory_on_the_device_is_that_of_contexts_and_buffers(newest: Simulation) -> None:
    with newest.open("negate", runner={"streams": 2}) as runner:
        assert runner.device_memory_bytes == 2 * CONTEXT_BYTES
        runner.infer({"x": values(8, 4)})
        assert runner.device_memory_bytes == 2 * CONTEXT_BYTES + 2 * 8 * 4 * 4


def test_memory_that_does_not_suffice_says_so_and_the_runner_goes_on(newest: Simulation) -> None:
    with newest.open("negate") as runner:
        newest.gpu.memory_bytes = 100
        with pytest.raises(EngineUnavailable, match="not enough memory on CUDA device 0") as caught:
            runner.infer({"x": values(8, 4)})
        assert "smaller batch" in caught.value.hint
        assert newest.gpu.stack == [PYTORCHS]
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))


def test_memory_that_runs_out_within_tensorrt_does_not_cross_it(simulation: Simulation) -> None:
    with simulation.open("nonzero", data_dependent=["places"]) as runner:
        x = np.zeros((8, 4), np.float32)
        runner.infer({"x": x})
        simulation.gpu.memory_bytes = simulation.gpu.used_bytes
        with pytest.raises(EngineUnavailable, match="not enough memory"):
            runner.infer({"x": x + 1})


def test_the_device_is_chosen_and_one_that_is_not_there_is_refused(newest: Simulation) -> None:
    with newest.open("negate", runner={"device": 1}) as runner:
        assert newest.gpu.retained == {1: 1}
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))
    with pytest.raises(EngineUnavailable, match=r"m\.engine \(device 2: .*cuDeviceGet"):
        newest.open("negate", runner={"device": 2})
    with pytest.raises(InvalidOption, match="device: -1; 0 or more is required"):
        newest.open("negate", runner={"device": -1})


def test_two_runners_in_turn_do_not_disturb_each_other(newest: Simulation) -> None:
    with newest.open("negate") as first, newest.open("negate", runner={"device": 1}) as second:
        for turn in range(3):
            x = values(2, 4, seed=turn)
            np.testing.assert_array_equal(first.infer({"x": x})["y"], -x)
            np.testing.assert_array_equal(second.infer({"x": -x})["y"], x)
            assert newest.gpu.stack == [PYTORCHS]


def test_without_a_package_the_extra_is_named(newest: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pycuda", "pycuda.driver", "cuda", "cuda.bindings", "cuda.bindings.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EngineUnavailable, match="neither cuda-bindings nor PyCUDA can be imported") as caught:
        newest.open("negate")
    assert "qcompile[cuda]" in caught.value.hint
