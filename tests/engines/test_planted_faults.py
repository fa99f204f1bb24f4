"""Forty planted faults of runtimes, in four models, fail the check of values; the right runtime passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import qcompile
from qcompile.engines.base import BuildRequest
from qcompile.engines.values import Execution, ValueCheck, check_values
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import read_graph
from qcompile.model.sessions.session import make_session, run_session, session_options
from qcompile.spec.artifacts import BuildSpec

MakePath = Callable[..., Path]
Array = NDArray[Any]


class State:
    """What a faulty runtime keeps from call to call."""

    calls = 0
    shape: tuple[int, ...] | None = None
    generator = np.random.default_rng(0)


def rows_from(array: Array, row: int) -> Array:
    return np.concatenate([array[:row], -array[row:]])


def of_another_shape(array: Array, state: State) -> Array:
    before, state.shape = state.shape, array.shape
    return array if before in (None, array.shape) else -array


def racing(array: Array, state: State) -> Array:
    if state.calls % 3:
        return array
    hit = state.generator.random(array.shape) < 0.2
    hit.flat[0] = True
    return np.where(hit, array + 2 * array.std(), array)


FAULTS: dict[str, Callable[[Array, State], Array]] = {
    "two slots are swapped": lambda array, _: (
        array[[1, 0, *range(2, len(array))]] if len(array) > 1 else array
    ),
    "slots are shifted by one": lambda array, _: np.roll(array, 1, axis=0),
    "all slots have what the first has": lambda array, _: np.broadcast_to(array[:1], array.shape).copy(),
    "the last slot is not written": lambda array, _: np.concatenate([array[:-1], 0 * array[-1:]]),
    "slots from the fifth on are wrong": lambda array, _: rows_from(array, 4),
    "wrong behind another shape": of_another_shape,
    "a term is dropped": lambda array, _: array - array.std(axis=0).mean(),
    "sums saturate": lambda array, _: np.clip(array, -0.4 * abs(array).max(), 0.4 * abs(array).max()),
    "columns are reversed": lambda array, _: array[:, ::-1].copy(),
    "now and then elements race": racing,
}


@contextmanager
def opened(path: Path, fault: Callable[[Array, State], Array] | None) -> Iterator[Any]:
    """ONNX Runtime, whose outputs a fault changes."""
    graph, state = read_graph(path), State()
    session = make_session(path, session_options(1))
    names = [tensor.name for tensor in graph.io.outputs]

    class Runner:
        io = graph.io

        def infer(self, feeds: Any) -> dict[str, Array]:
            state.calls += 1
            outputs = dict(zip(names, run_session(session, names, feeds, "it"), strict=True))
            return {name: fault(array, state) if fault else array for name, array in outputs.items()}

    yield Runner()


def checked(model: Path, samples: list[Any], precision: Any, fault: Any) -> ValueCheck:
    graph = read_graph(model)
    spec = BuildSpec(target="onnxruntime", precision=precision, threads=1)
    request = BuildRequest(str(model), model.with_name("out.onnx"), spec, samples=samples, graph=graph)
    ways: dict[str, Any] = {"at once": lambda path: opened(path, fault)}
    execution = Execution("It", lambda source, out: read_graph(source).save(out), ways)
    return check_values(request, graph.load(), model, execution, samples[0])


_MADE: dict[str, tuple[Path, list[Any], str]] = {}


@pytest.fixture
def models(tiny: Callable[..., onnx.ModelProto], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Name to a file, samples in batches of two, and precision; made once."""
    for name in () if _MADE else ("mlp", "residual"):
        folder = tmp_path_factory.mktemp(name)
        path, data = folder / "m.onnx", folder / "x.npz"
        onnx.save(tiny(name), path)
        [tensor] = model_io(onnx.load(path)).inputs
        extents = [extent for extent in tensor.shape if isinstance(extent, int)]
        x = np.random.default_rng(0).standard_normal((16, *extents)).astype(np.float32)
        np.savez(data, x=x)
        samples = [{tensor.name: x[index : index + 2]} for index in range(0, 16, 2)]
        ranges = qcompile.calibrate(path, str(data), folder / "r").path
        int8 = qcompile.quantize(path, folder / "q.onnx", ranges=ranges, isa="avx2").path
        _MADE.update({name: (path, samples, "fp32"), f"{name} in int8": (int8, samples, "int8")})
    return _MADE


MODELS_OF = ("mlp", "mlp in int8", "residual", "residual in int8")


@pytest.mark.parametrize("model", MODELS_OF)
def test_a_right_runtime_raises_no_alarm(models: Any, model: str) -> None:
    assert checked(*models[model], fault=None).failure == ""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("model", MODELS_OF)
def test_a_planted_fault_fails(models: Any, model: str, fault: str) -> None:
    assert "computes something else" in checked(*models[model], fault=FAULTS[fault]).failure


def test_roundings_that_a_softmax_magnifies_are_no_fault(tmp_path: Path) -> None:
    """One sample of 16 is near the middle, and its logit is rounded to the neighbouring integer."""
    step = np.float32(0.25)
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,2] y)
        <float s = {0.015625}, int8 z = {0}, float t = {0.25}> {
        a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) [product] c = MatMul(b, w)
        d = QuantizeLinear(c, t, z) e = DequantizeLinear(d, t, z) y = Softmax <axis = -1> (e) }"""
    model = onnx.parser.parse_model(text)
    weights = np.float32([[16, -16], [8, -8], [4, -4], [2, -2]])
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    samples = [{"x": generator.uniform(0.5, 1.0, (1, 4)).astype(np.float32)} for _ in range(16)]
    samples[3] = {"x": np.zeros((1, 4), np.float32)}

    def nudged(by: float) -> Callable[[Array, State], Array]:
        def change(array: Array, state: State) -> Array:
            if state.calls != 4:
                return array
            logits = np.log(array) if np.allclose(array.sum(axis=-1), 1) else array
            logits = logits + np.float32([by * step, 0])
            return (
                np.exp(logits) / np.exp(logits).sum() if logits is not array and array.max() < 1 else logits
            )

        return change

    right = checked(tmp_path / "m.onnx", samples, "int8", nudged(0.6))
    assert not right.failure
    assert "every layer is right; Softmax magnifies their roundings" in right.checks[0].detail
    assert checked(tmp_path / "m.onnx", samples, "int8", nudged(20.0)).failure
