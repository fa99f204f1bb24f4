"""Debug tensors are read while an engine runs, in the versions that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser
from simulated_cuda import SimulatedGpu
from tensorrt_simulation import HEADER, Simulation, make_adapter, rows, values

from qcompile.engines.tensorrt.runner import callbacks
from qcompile.engines.tensorrt.runner.io_tensors import numpy_dtype
from qcompile.engines.tensorrt.runner.runner import TensorRTRunner
from qcompile.errors import ModelError

CHAIN = """chain (float[n,4] x) => (float[n,4] y) {
    a = Neg (x)
    b = Abs (a)
    k = Cast <to = 7> (b)
    c = Add (b, b)
    y = Add (c, a)
}"""
VERSIONS = ["10.16", "11.4", "rtx"]


def open_chain(
    version: str,
    gpu: SimulatedGpu,
    folder: Path,
    *,
    marked: tuple[str, ...] = (),
    unfused: tuple[str, ...] = (),
    **options: Any,
) -> tuple[TensorRTRunner, Any]:
    simulation = Simulation(version, gpu, make_adapter(version, gpu), folder)
    model = parser.parse_model(HEADER + CHAIN)
    path = simulation.plan(model, profiles=[rows(model, 1, 2, 8)], marked=marked, unfused=unfused)
    return TensorRTRunner(simulation.adapter, path, **options), simulation


@pytest.mark.parametrize("version", VERSIONS)
def test_marked_and_unfused_tensors_are_read_beside_the_outputs(
    version: str, gpu: SimulatedGpu, tmp_path: Path
) -> None:
    x = values(3, 4)
    runner, _ = open_chain(version, gpu, tmp_path, marked=("a",), unfused=("b", "c"))
    with runner:
        found = runner.debug_tensors({"x": x}, ["a", "b", "y"])
        np.testing.assert_array_equal(found["a"], -x)
        np.testing.assert_array_equal(found["b"], abs(x))
        np.testing.assert_array_equal(found["y"], 2 * abs(x) - x)
        assert set(found) == {"a", "b", "y"}, "c was not asked for"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_after_it_tells_nothing_any_more(version: str, gpu: SimulatedGpu, tmp_path: Path) -> None:
    runner, simulation = open_chain(version, gpu, tmp_path, marked=("a",), unfused=("b",))
    with runner:
        runner.debug_tensors({"x": values(2, 4)}, ["a", "b"])
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"].shape, (2, 4))
        switched = simulation.told("set_all_tensors_debug_state")
        assert switched == [(True,), (False,)]
        assert [arguments[0] is None for arguments in simulation.told("set_debug_listener")] == [False, True]


def test_a_tensor_that_no_array_can_hold_is_left_out(
    gpu: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(member: Any, name: str) -> Any:
        if name == "b":
            raise ModelError(f"tensor {name!r} is {member}")
        return numpy_dtype(member, name)

    runner, _ = open_chain("10.16", gpu, tmp_path, unfused=("a", "b"))
    with runner:
        monkeypatch.setattr(callbacks, "numpy_dtype", refuse)
        assert set(runner.debug_tensors({"x": values(2, 4)}, ["a", "b"])) == {"a", "y"}


def test_what_fails_in_the_listener_is_raised_though_the_binding_drops_it(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    runner, _ = open_chain("10.16", gpu, tmp_path, unfused=("b",))
    with runner:
        runner.infer({"x": values(2, 4)})
        ordinary = gpu.enter
        gpu.enter = lambda name: name == "cuMemcpyDtoH" or ordinary(name)  # type: ignore[method-assign]
        said = "reading debug tensors: CUDA fails: cuMemcpyDtoH"
        with pytest.raises(ModelError, match=said):
            runner.debug_tensors({"x": values(2, 4)}, ["b"])


def test_it_works_beside_a_cuda_graph(gpu: SimulatedGpu, tmp_path: Path) -> None:
    from qcompile.engines.tensorrt.runner.loaded_engine import EngineUse

    x = values(2, 4)
    runner, _ = open_chain("10.16", gpu, tmp_path, unfused=("b",), use=EngineUse(cuda_graph=True))
    with runner:
        before = runner.infer({"x": x})["y"]
        np.testing.assert_array_equal(runner.debug_tensors({"x": x}, ["b"])["b"], abs(x))
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], before)
