"""The runner on a real GPU, with whichever TensorRT is installed there.

These have run against the simulation of tests/support alone; `gpu_day.py` ran the runner on a GPU
(docs/tensorrt.md). Needs numpy, onnx and TensorRT; what needs PyTorch is skipped without it. The oracle is
ONNX's own reference implementation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engines_on_gpu import build, open_runner, values
from onnx import parser
from onnx.reference import ReferenceEvaluator

from qcompile.bench.worker import time_in_flight
from qcompile.engines.pytorch import PyTorch
from qcompile.engines.tensorrt.runner.cuda import PrimaryContext
from qcompile.errors import DataError, InvalidOption, ModelError

pytestmark = pytest.mark.gpu

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
NONZERO = """nonzero (float[n,4] x) => (int32[2,k] places, float[n,4] twice) {
    found = NonZero (x)
    places = Cast <to = 6> (found)
    twice = Add (x, x)
}"""
SLACK_BYTES = 4 << 20
"""What the driver may take for itself between two readings of free memory."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engines of this file are built, once."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture
def model(tiny: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    """Two convolutions, a residual add, pooling and a Gemm."""
    return tiny("residual")


@pytest.fixture
def engine(model: onnx.ModelProto, folder: Path) -> Path:
    """Its engine."""
    path = folder / "fp32.engine"
    return path if path.is_file() else build(model, folder)


@pytest.fixture(scope="module")
def negate(folder: Path) -> Path:
    """An engine that negates 1 to 16 rows."""
    model = parser.parse_model(HEADER + "negate (float[n,4,8,8] x) => (float[n,4,8,8] y) { y = Neg (x) }")
    return build(model, folder / "negate")


@pytest.fixture
def context() -> PrimaryContext:
    return PrimaryContext(0, "test")


def torch_with_cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch here has no CUDA")
    return torch


def free_bytes(context: PrimaryContext) -> int:
    """Free memory of the device."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with context.active("reading free memory"):
        driver = ctypes.CDLL("libcuda.so.1")
        assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


def expected(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What ONNX's reference implementation computes."""
    found: np.ndarray[Any, Any] = ReferenceEvaluator(model).run(None, {"x": x})[0]
    return found


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 2e-2)])
def test_it_computes_what_the_model_does(
    model: onnx.ModelProto, engine: Path, folder: Path, precision: str, tolerance: float
) -> None:
    path = engine if precision == "fp32" else build(model, folder, precision)
    with open_runner(path) as runner:
        for rows in (1, 16, 3, 7):
            x = values(rows)
            dtype = runner.io.inputs[0].dtype
            found = runner.infer({"x": x.astype(dtype)})["y"]
            np.testing.assert_allclose(found, expected(model, x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("cuda_graph", "rows", "turns"), [(False, (16, 1, 5), 10_000), (True, range(1, 17), 320)]
)
def test_ten_thousand_inferences_take_no_memory(
    engine: Path, context: PrimaryContext, cuda_graph: bool, rows: Sequence[int], turns: int
) -> None:
    with open_runner(engine, cuda_graph=cuda_graph) as runner:
        feeds = [{"x": values(count)} for count in rows]
        for turn in range(100):
            runner.infer(feeds[turn % len(feeds)])
        before = free_bytes(context)
        for turn in range(turns):
            runner.infer(feeds[turn % len(feeds)])
        assert free_bytes(context) >= before - SLACK_BYTES


def test_a_hundred_loads_give_everything_back(engine: Path, context: PrimaryContext) -> None:
    for turn in range(105):
        if turn == 5:
            before = free_bytes(context)
        with open_runner(engine) as runner:
            runner.infer({"x": values(4)})
    assert free_bytes(context) >= before - SLACK_BYTES


def test_no_context_stays_current(engine: Path, context: PrimaryContext) -> None:
    driver = ctypes.CDLL("libcuda.so.1")

    def current() -> int | None:
        found = ctypes.c_void_p()
        assert driver.cuCtxGetCurrent(ctypes.byref(found)) == 0
        return found.value

    before = current()
    with open_runner(engine) as runner:
        assert current() == before
        runner.infer({"x": values(4)})
        with pytest.raises(DataError):
            runner.infer({"x": values(40)})
        assert current() == before
    assert current() == before
    with context.active("comparing"):
        assert current() is not None


def test_a_data_dependent_shape_is_the_real_one(folder: Path) -> None:
    (folder / "nonzero").mkdir()
    path = build(parser.parse_model(HEADER + NONZERO), folder / "nonzero")
    generator = np.random.default_rng(0)
    with open_runner(path) as runner:
        for rows in (1, 16, 4):
            x = (generator.random((rows, 4)) < 0.4).astype(np.float32)
            found = runner.infer({"x": x})
            np.testing.assert_array_equal(found["places"], np.array(np.nonzero(x)))
            np.testing.assert_array_equal(found["twice"], x * 2)
        x = np.zeros((3, 4), np.float32)
        assert runner.infer({"x": x})["places"].shape == (2, 0)
    with (
        open_runner(path, cuda_graph=True) as runner,
        pytest.raises(ModelError, match="output 'places': its shape depends on data") as caught,
    ):
        runner.infer({"x": x})
    assert caught.value.hint == "leave cuda_graph off"


def test_several_streams_return_outputs_in_order(engine: Path, model: onnx.ModelProto) -> None:
    import tensorrt

    if tensorrt.__version__.startswith("8.5"):
        with pytest.raises(InvalidOption, match="profile of its own"):
            open_runner(engine, streams=3)
        pytest.skip("before TensorRT 8.6 an engine with one profile runs on one stream")
    runner = open_runner(engine, streams=3)
    many = [{"x": values(1 + turn % 16, seed=turn)} for turn in range(50)]
    with runner:
        for feeds, outputs in zip(many, runner.infer_many(many), strict=True):
            np.testing.assert_allclose(outputs["y"], expected(model, feeds["x"]), rtol=1e-4, atol=1e-4)


def test_times_of_the_gpu_are_within_each_other_and_layers_have_theirs(engine: Path) -> None:
    with open_runner(engine) as runner:
        times = runner.gpu_times({"x": values(16)}, 200)
        host = runner.time({"x": values(16)}, 200)
        layers = runner.layer_times({"x": values(16)})
    assert times.compute.shape == times.with_transfers.shape == times.enqueue.shape == (200,)
    assert (times.compute > 0).all()
    assert (times.with_transfers >= times.compute).all()
    assert np.median(host) >= np.median(times.with_transfers)
    assert layers
    assert all(time_ms >= 0 for time_ms in layers.values())
    assert sum(layers.values()) > 0


def test_tensors_of_pytorch_are_used_where_they_lie(engine: Path, model: onnx.ModelProto) -> None:
    torch = torch_with_cuda()
    x = torch.from_numpy(values(8)).cuda()
    with open_runner(engine) as runner, torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            # Kernels that are still under way on PyTorch's stream when the runner is called.
            busy = x.clone()
            for _ in range(50):
                busy = busy * 1.0
            found = runner.infer({"x": busy})["y"]
            np.testing.assert_allclose(found, expected(model, values(8)), rtol=1e-4, atol=1e-4)
        with pytest.raises(DataError, match="is strided on the device"):
            runner.infer({"x": x.transpose(2, 3)})
        with pytest.raises(DataError, match="float16; float32 is required"):
            runner.infer({"x": x.half()})
    assert float((torch.ones(3, device="cuda") * 2).sum()) == 6.0  # its context is still what it was


def test_inferences_in_flight_compute_and_overlap(negate: Path) -> None:
    with open_runner(negate) as runner:
        if not runner.can_be_shared:
            pytest.skip("before TensorRT 8.6 an engine with one profile has one execution context")
        x = values(16)
        with runner.in_flight({"x": x}, 4) as inferences:
            durations_ns, wall_ns = time_in_flight(inferences, 0.2)
        assert len(durations_ns) > 4
        assert wall_ns > 0
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)


def test_pytorch_is_measured_in_the_same_memory_and_by_the_same_clock(torch_model: str) -> None:
    torch_with_cuda()
    feeds: dict[str, Any] = {"x": np.zeros((4, 3, 8, 8), np.float32)}
    with PyTorch().open_in_mode(torch_model, "eager", device=0) as runner:
        times = runner.gpu_times(feeds, 50)
        host = runner.time(feeds, 50)
        with runner.in_flight(feeds, 3) as inferences:
            for one in inferences:
                one.start()
    assert (times.compute > 0).all()
    assert (times.with_transfers >= times.compute).all()
    assert np.median(host) >= np.median(times.compute)
