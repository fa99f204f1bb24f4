"""Shape tensors, fresh processes, shared engines and fixed graphs on a real GPU.

Not yet run on one. The oracle is ONNX's own reference implementation, or numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines_on_gpu import build, infer_in_a_fresh_process, open_runner, values
from onnx import parser
from onnx.reference import ReferenceEvaluator

from qcompile.errors import DataError, ModelError

pytestmark = pytest.mark.gpu

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
EXPANDED = """expanded (float[1,1] x, {kind}[2] size) => (float[a,b] y) {{
    wide = Cast <to = 7> (size)
    twice = Add (x, x)
    y = Expand (twice, wide)
}}"""
"""Two values: a runtime that reads one of them, or 32 bits of 64, computes another shape."""
GROUP_NORM = """normalized (float[n,8,6,6] x) => (float[n,8,6,6] y)
<float[4] scale = {1.0, 0.5, 2.0, 1.5}, float[4] bias = {0.0, 1.0, -1.0, 0.5}> {
    to = Constant <value_ints = [0, 4, -1]> ()
    back = Shape (x)
    grouped = Reshape (x, to)
    even = InstanceNormalization (grouped, scale, bias)
    y = Reshape (even, back)
}"""
"""What a GroupNorm of 4 groups becomes: InstanceNormalization is a plugin in TensorRT 8.5."""
VALUES: dict[str, dict[str, tuple[int, ...]]] = {
    "min_shapes": {"size": (1, 1)},
    "opt_shapes": {"size": (8, 6)},
    "max_shapes": {"size": (96, 96)},
}
X = np.full((1, 1), 1.5, np.float32)


KINDS = pytest.mark.parametrize("kind", ["int32", "int64"], scope="module")


@pytest.fixture(scope="module")
def expanded(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine of the network with a shape tensor of two values."""
    folder = tmp_path_factory.mktemp("expanded")
    return build(parser.parse_model(HEADER + EXPANDED.format(kind=kind)), folder, shapes=VALUES)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine that negates 1 to 16 rows."""
    model = parser.parse_model(HEADER + "negate (float[n,4,8,8] x) => (float[n,4,8,8] y) { y = Neg (x) }")
    return build(model, tmp_path_factory.mktemp("negate"))


@KINDS
@pytest.mark.parametrize("cuda_graph", [False, True], ids=["plain", "graph"])
def test_a_shape_tensor_of_two_values_decides_the_shape(expanded: Path, kind: str, cuda_graph: bool) -> None:
    with open_runner(expanded, cuda_graph=cuda_graph) as runner:
        assert {tensor.name: tensor.dtype for tensor in runner.io.inputs}["size"] == kind
        for size in ((8, 6), (6, 8), (48, 1), (2, 96), (1, 1), (8, 6)):
            found = runner.infer({"x": X, "size": np.array(size, kind)})["y"]
            np.testing.assert_array_equal(found, np.full(size, 3.0, np.float32))
        said = r"input 'size' holds 1, 97, outside .* required: 1x1 to 96x96"
        with pytest.raises(DataError, match=said):
            runner.infer({"x": X, "size": np.array([1, 97], kind)})


@KINDS
def test_an_engine_with_shape_tensors_runs_in_a_fresh_process(
    expanded: Path, kind: str, tmp_path: Path
) -> None:
    feeds = {"x": X, "size": np.array([3, 8], kind)}
    found = infer_in_a_fresh_process(expanded, feeds, tmp_path)["y"]
    np.testing.assert_array_equal(found, np.full((3, 8), 3.0, np.float32))


def test_a_group_norm_runs_in_a_fresh_process(tmp_path: Path) -> None:
    model = parser.parse_model(HEADER + GROUP_NORM)
    path = build(model, tmp_path)
    x = np.random.default_rng(0).standard_normal((3, 8, 6, 6)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    found = infer_in_a_fresh_process(path, {"x": x}, tmp_path)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first_closed", [0, 1])
def test_two_runners_of_one_engine_are_closed_in_any_order(engine: Path, first_closed: int) -> None:
    owner = open_runner(engine)
    if not owner.can_be_shared:
        owner.close()
        pytest.skip("before TensorRT 8.6 an engine with one profile has one execution context")
    runners = [owner, owner.share()]
    x = values(3)
    for runner in runners:
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
    runners.pop(first_closed).close()
    np.testing.assert_array_equal(runners[0].infer({"x": x})["y"], -x)
    runners[0].close()
    with pytest.raises(ModelError, match="its runner is closed"):
        runners[0].infer({"x": x})


def test_two_engines_are_closed_in_either_order(engine: Path) -> None:
    for reverse in (False, True):
        runners = [open_runner(engine), open_runner(engine)]
        for runner in runners:
            np.testing.assert_array_equal(runner.infer({"x": values(2)})["y"], -values(2))
        for runner in reversed(runners) if reverse else runners:
            runner.close()


def test_inferences_in_flight_compute_and_overlap(engine: Path) -> None:
    from qcompile.bench.measuring.concurrent import time_in_flight

    with open_runner(engine) as runner:
        if not runner.can_be_shared:
            pytest.skip("before TensorRT 8.6 an engine with one profile has one execution context")
        x = values(16)
        with runner.in_flight({"x": x}, 4) as inferences:
            durations_ns, wall_ns = time_in_flight(inferences, 0.2)
        assert len(durations_ns) > 4
        assert wall_ns > 0
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)


def test_a_graph_reads_inputs_of_any_address(engine: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch here has no CUDA")
    with open_runner(engine, cuda_graph=True) as runner:
        kept = []
        for seed in range(20):
            x = torch.from_numpy(values(4, seed=seed)).cuda()
            kept.append(x)  # so that each has an address of its own
            np.testing.assert_array_equal(runner.infer({"x": x})["y"], -values(4, seed=seed))


@pytest.mark.parametrize("cuda_graph", [False, True], ids=["plain", "graph"])
def test_on_the_device_the_outputs_are_the_same(engine: Path, cuda_graph: bool) -> None:
    x = values(5)
    with open_runner(engine, cuda_graph=cuda_graph) as runner:
        run = runner.prepare({"x": x}, on_device=True)
        for _ in range(3):
            np.testing.assert_array_equal(run()["y"].copy_to_host(), -x)


def test_pytorch_is_measured_in_the_same_memory_and_by_the_same_clock(torch_model: str) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch here has no CUDA")
    from qcompile.engines.pytorch import PyTorch

    feeds: dict[str, Any] = {"x": np.zeros((4, 3, 8, 8), np.float32)}
    with PyTorch().open_in_mode(torch_model, "eager", device=0) as runner:
        times = runner.gpu_times(feeds, 50)
        host = runner.time(feeds, 50)
        with runner.in_flight(feeds, 3) as inferences:
            for one in inferences:
                one.start()
        on_device = runner.prepare(feeds, on_device=True)()
        np.testing.assert_allclose(
            on_device.cpu().numpy(), next(iter(runner.infer(feeds).values())), rtol=1e-3, atol=1e-3
        )
    assert (times.compute > 0).all()
    assert (times.with_transfers >= times.compute).all()
    assert np.median(host) >= np.median(times.compute)
