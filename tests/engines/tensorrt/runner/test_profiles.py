"""What TensorRT calls back while an engine runs, and which profile it runs in.

TensorRT-RTX is here without a GPU: it accepts what is made of its classes. The tightest profile that fits is
chosen; contexts have memory for all, for it, or for the shapes of now. What fits none is refused with ranges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorrt_rtx
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser
from simulated_cuda import SimulatedGpu
from tensorrt_simulation import HEADER, Simulation, assert_negates, failing, make_adapter, rows, values

from qcompile.engines.tensorrt.plan import PlanNeeds
from qcompile.engines.tensorrt.runner import memory
from qcompile.engines.tensorrt.runner.cuda import PrimaryContext
from qcompile.engines.tensorrt.runner.io_tensors import (
    FeedShapes,
    InputRange,
    Profile,
    fitting_profiles,
    numpy_dtype,
)
from qcompile.engines.tensorrt.runner.loaded_engine import EngineUse
from qcompile.engines.tensorrt.runner.memory import DeviceBuffer, make_output_allocator, make_profiler
from qcompile.engines.tensorrt.runner.runner import TensorRTRunner
from qcompile.errors import DataError, ModelError

CHAIN = """chain (float[n,4] x) => (float[n,4] y) {
    a = Neg (x)
    b = Abs (a)
    k = Cast <to = 7> (b)
    c = Add (b, b)
    y = Add (c, a)
}"""
X = values(3, 4)


def open_chain(
    gpu: SimulatedGpu, folder: Path, version: str = "10.16", *, marked: tuple[str, ...] = (),
    unfused: tuple[str, ...] = ("b",), **use: Any,
) -> tuple[TensorRTRunner, Simulation]:  # fmt: skip
    simulation = Simulation(version, gpu, make_adapter(version, gpu), folder)
    model = parser.parse_model(HEADER + CHAIN)
    path = simulation.plan(model, profiles=[rows(model, 1, 2, 8)], marked=marked, unfused=unfused)
    return TensorRTRunner(simulation.adapter, path, EngineUse(**use)), simulation


@pytest.mark.parametrize("version", ["10.16", "11.4", "rtx"])
def test_marked_and_unfused_tensors_are_read_beside_the_outputs_in_one_run(
    version: str, gpu: SimulatedGpu, tmp_path: Path
) -> None:
    runner, simulation = open_chain(gpu, tmp_path, version, marked=("a",), unfused=("b", "c"))
    with runner:
        found = runner.debug_tensors({"x": X}, ["a", "b", "y"])
        np.testing.assert_array_equal(found["a"], -X)
        np.testing.assert_array_equal(found["b"], abs(X))
        np.testing.assert_array_equal(found["y"], 2 * abs(X) - X)
        assert set(found) == {"a", "b", "y"}, "c was not asked for"
        assert runner.infer({"x": X})["y"].shape == (3, 4)
        assert simulation.told("set_all_tensors_debug_state") == [(True,), (False,)]
        assert [arguments[0] is None for arguments in simulation.told("set_debug_listener")] == [False, True]


def test_a_tensor_that_no_array_can_hold_is_left_out(
    gpu: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(member: Any, name: str) -> Any:
        if name == "b":
            raise ModelError(f"tensor {name!r} is {member}")
        return numpy_dtype(member, name)

    runner, _ = open_chain(gpu, tmp_path, unfused=("a", "b"))
    with runner:
        monkeypatch.setattr(memory, "numpy_dtype", refuse)
        assert set(runner.debug_tensors({"x": X}, ["a", "b"])) == {"a", "y"}


def test_what_fails_in_the_listener_is_raised_though_the_binding_drops_it(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    runner, _ = open_chain(gpu, tmp_path)
    with runner:
        runner.infer({"x": X})
        said = "reading debug tensors: CUDA fails: cuMemcpyDtoH"
        with failing(gpu, "cuMemcpyDtoH"), pytest.raises(ModelError, match=said):
            runner.debug_tensors({"x": X}, ["b"])


def test_debug_tensors_are_read_beside_a_cuda_graph(gpu: SimulatedGpu, tmp_path: Path) -> None:
    runner, _ = open_chain(gpu, tmp_path, cuda_graph=True)
    with runner:
        before = runner.infer({"x": X})["y"]
        np.testing.assert_array_equal(runner.debug_tensors({"x": X}, ["b"])["b"], abs(X))
        np.testing.assert_array_equal(runner.infer({"x": X})["y"], before)


def test_a_real_output_allocator_grows_and_tells_the_shape(gpu: SimulatedGpu) -> None:
    context = PrimaryContext(0, "test")
    with context.active("a test"):
        buffer = DeviceBuffer(context.cuda)
        allocator = make_output_allocator(tensorrt_rtx, buffer)
        assert isinstance(allocator, tensorrt_rtx.IOutputAllocator)
        assert allocator.reallocate_output("y", 0, 0, 256)  # no bytes have an address too
        small = allocator.reallocate_output_async("y", 0, 100, 256, 0)
        assert allocator.reallocate_output("y", small, 80, 256) == small == buffer.address
        large = allocator.reallocate_output("y", small, 200, 1)
        assert gpu.bytes_at(large, 200).size == 200
        allocator.notify_shape("y", tensorrt_rtx.Dims((2, 0, 3)))
        assert allocator.shape == (2, 0, 3)
        allocator.begin()
        assert allocator.shape is None
        allocator.raise_stored_error()
        assert allocator.reallocate_output("y", 0, 200, 512) == 0
        with pytest.raises(ModelError, match="output 'y': TensorRT asks for alignment to 512 bytes"):
            allocator.raise_stored_error()
        allocator.raise_stored_error()
        buffer.free()


def test_a_real_profiler_tells_medians() -> None:
    profiler = make_profiler(tensorrt_rtx)
    assert isinstance(profiler, tensorrt_rtx.IProfiler)
    for time_ms in (3.0, 1.0, 9.0):
        profiler.report_layer_time("conv", time_ms)
    profiler.report_layer_time("relu", 0.5)
    assert profiler.median_ms() == {"conv": 3.0, "relu": 0.5}


WIDE = {"x": [[1, 4], [4, 4], [64, 4]]}
SMALL = {"x": [[1, 4], [2, 4], [8, 4]]}
LARGE = {"x": [[9, 4], [32, 4], [32, 4]]}


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        *(([count] * 3, [index] if index else [])
          for count, index in ((1, 1), (8, 1), (9, 2), (32, 2), (33, 0), (64, 0))),
        ([2, 40, 20, 2, 2, 64, 1], [1, 0, 2, 1, 0, 1]),
    ],
)  # fmt: skip
def test_the_tightest_profile_runs_and_only_a_change_is_told(
    simulation: Simulation, counts: list[int], told: list[int]
) -> None:
    with simulation.open("negate", profiles=[WIDE, SMALL, LARGE]) as runner:
        assert_negates(runner, *counts)
    assert [index for index, _ in simulation.told("set_optimization_profile_async")] == told
    changes = [count for count, before in zip(counts, [0, *counts], strict=False) if count != before]
    assert simulation.told("set_input_shape") == [("x", (count, 4)) for count in changes]


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ((65, 1), "input 'a' has shape 65x4, outside .*; required: 1x4 to 2x4 or 4x4 to 8x4\n"),
        ((3, 1), "input 'a' has shape 3x4, outside .*; required: 1x4 to 2x4 or 4x4 to 8x4\n"),
        ((1, 9), "input 'b' has shape 9x4, outside .*; required: 1x4 or 5x4 to 6x4\n"),
        (
            (1, 6),
            "each input fits an .* no profile fits all of a:1x4, b:6x4; required: a 1x4 to 2x4, b 1x4; or a",
        ),
    ],
)
def test_shapes_outside_all_profiles_are_refused_with_the_ranges(
    newest: Simulation, feeds: tuple[int, int], said: str
) -> None:
    profiles = [
        {"a": [[1, 4], [1, 4], [2, 4]], "b": [[1, 4]] * 3},
        {"a": [[4, 4], [4, 4], [8, 4]], "b": [[5, 4], [5, 4], [6, 4]]},
    ]
    with newest.open("sum", profiles=profiles) as runner:
        with pytest.raises(DataError, match=said) as caught:
            runner.infer({"a": values(feeds[0], 4), "b": values(feeds[1], 4)})
        assert "`max_shapes`" in caught.value.hint or "profile" in caught.value.hint


def test_a_fixed_model_has_one_profile_that_takes_all(simulation: Simulation) -> None:
    model = parser.parse_model(HEADER + "fixed (float[2,4] x) => (float[2,4] y) { y = Neg (x) }")
    with simulation.open(model, runner={"streams": 3}) as runner:
        assert_negates(runner, 2)


def test_values_of_shape_inputs_choose_a_profile_and_decide_the_shape(simulation: Simulation) -> None:
    shape, x = {"x": [[1, 4]] * 3}, values(1, 4)
    ranges = [{"size": [[1, 4], [4, 4], [4, 4]]}, {"size": [[5, 4], [9, 4], [9, 4]]}]
    options: dict[str, Any] = {"host": ["size"], "profiles": [shape, shape], "values": ranges}
    with simulation.open("shaped", runner={"profiles": as_declared(ranges)}, **options) as runner:
        for count in (2, 7, 7, 3):
            found = runner.infer({"x": x, "size": np.array([count, 4], np.int32)})["y"]
            np.testing.assert_array_equal(found, np.repeat(x, count, 0))
        told = simulation.told("set_optimization_profile_async")
        assert [arguments[0] for arguments in told] == [1, 0]
        # Its address is set anew behind its values, where they changed.
        calls = [
            call.member
            for call in simulation.adapter.module.recorded_calls
            if call.member in ("set_input_shape", "set_tensor_address") and call.args[0] == "size"
        ]
        assert calls == ["set_input_shape", "set_tensor_address"] * 3
        with pytest.raises(DataError, match=r"input 'size' holds 10, 4, .*; required: 1x4 to 4x4 or 5x4 to"):
            runner.infer({"x": x, "size": np.array([10, 4], np.int32)})


def as_declared(ranges: list[dict[str, list[list[int]]]]) -> list[dict[str, dict[str, list[int]]]]:
    """Ranges as a manifest has them."""
    return [
        {name: dict(zip(("min", "opt", "max"), three, strict=True)) for name, three in one.items()}
        for one in ranges
    ]


def test_before_10_values_are_those_of_the_manifest_and_never_asked_for(oldest: Simulation) -> None:
    # The binding of 8.x gives getProfileShapeValues its arguments the wrong way round (NVIDIA/TensorRT,
    # release/8.5, python/src/infer/pyCore.cpp, engine_get_profile_shape_input).
    ranges = [{"size": [[1, 4], [2, 4], [6, 4]]}]
    seven = {"x": values(1, 4), "size": np.array([7, 4], np.int32)}
    another_number = as_declared([{"size": [[1, 1]] * 3}] * 2)
    for unknown in ([], another_number):  # TensorRT's to refuse
        with oldest.open("shaped", host=["size"], values=ranges, runner={"profiles": unknown}) as runner:
            assert runner.infer(seven)["y"].shape == (7, 4)
    declared = {"profiles": as_declared(ranges)}
    with (
        oldest.open("shaped", host=["size"], values=ranges, runner=declared) as runner,
        pytest.raises(DataError, match="input 'size' holds 7, 4"),
    ):
        runner.infer(seven)
    assert not oldest.told("get_profile_shape_input")


@pytest.mark.parametrize("call", ["set_optimization_profile_async", "set_input_shape", "set_tensor_address"])
def test_what_tensorrt_refuses_all_the_same_is_our_error_with_its_words(
    simulation: Simulation, call: str
) -> None:
    said = r"m\.engine: (optimization profile 1|input 'x'|tensor 'x') .*: "
    with simulation.open("negate", profiles=[SMALL, LARGE]) as runner:
        with failing(simulation.gpu, call), pytest.raises(ModelError, match=said):
            runner.infer({"x": values(20, 4)})
        assert_negates(runner, 20)


extremes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)).map(
    lambda three: InputRange("x", *((extent,) for extent in sorted(three)))
)


@given(st.lists(extremes, min_size=1, max_size=6), st.integers(1, 9))
def test_the_first_is_never_wider_than_another_that_fits(ranges: list[InputRange], extent: int) -> None:
    profiles = [Profile(index, (found,)) for index, found in enumerate(ranges)]
    fits = [found for found in ranges if found.min[0] <= extent <= found.max[0]]
    feed_shapes = FeedShapes({"x": (extent,)}, {})
    if not fits:
        with pytest.raises(DataError, match="input 'x' has shape"):
            fitting_profiles(profiles, feed_shapes)
        return
    found = fitting_profiles(profiles, feed_shapes)
    assert len(found) == len(fits)
    assert found[0].ranges[0].max == min(fit.max for fit in fits)


UP_TO_4, UP_TO_8 = {"x": [[1, 4], [2, 4], [4, 4]]}, {"x": [[5, 4], [8, 4], [8, 4]]}


@pytest.mark.parametrize("simulation", ["10.16", "11.4", "rtx"], indirect=True)
@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize(
    ("allocation", "strategy"),
    [("", ""), ("static", "STATIC"), ("profile", "ON_PROFILE_CHANGE"), ("runtime", "USER_MANAGED")],
)
def test_contexts_have_memory_for_all_profiles_the_chosen_one_or_the_shapes_of_now(
    simulation: Simulation, allocation: str, strategy: str, cuda_graph: bool
) -> None:
    options = {"needs": PlanNeeds(allocation=allocation), "cuda_graph": cuda_graph}
    with simulation.open("negate", runner=options, profiles=[UP_TO_4, UP_TO_8]) as runner:
        assert_negates(runner, 2, 8, 2, 2)
    # A graph has a context of its own.
    rows = [2, 8] if cuda_graph and simulation.version != "rtx" else [2, 8, 2]
    sizes = [size for _, size in simulation.told("set_device_memory")]
    assert sizes == ([256 * count * 4 for count in rows] if allocation == "runtime" else [])
    member = "set_execution_context_allocation_strategy"
    calls = simulation.told(member if simulation.version == "rtx" else "create_execution_context")
    assert {args[0].name for args in calls if args and hasattr(args[0], "name")} == {strategy} - {""}
